package flow

// Merge returns the Delta equivalent to applying d and then o. Where both change the same object, o wins. The flows and groups
// of the result are sorted. o must not clear anything.
func (d *Delta) Merge(o *Delta) *Delta {
	type named struct { // identifies a flow for strict deletion
		Key
		cookie uint64
	}
	sum := &Delta{
		Clear:      d.Clear,
		DelLearned: append(d.DelLearned[:len(d.DelLearned):len(d.DelLearned)], o.DelLearned...),
		FlushCT:    append(d.FlushCT[:len(d.FlushCT):len(d.FlushCT)], o.FlushCT...),
	}
	setFlows, delFlows := map[Key]*Flow{}, map[named]*Flow{}
	setGroups, delGroups := map[uint32]*Group{}, map[uint32]bool{}
	setMeters, delMeters := map[uint32]Meter{}, map[uint32]bool{}
	for _, part := range []*Delta{d, o} {
		for _, m := range part.SetMeters {
			setMeters[m.ID] = m
			delete(delMeters, m.ID)
		}
		for _, g := range part.SetGroups {
			setGroups[g.ID] = g
			delete(delGroups, g.ID)
		}
		for _, f := range part.SetFlows {
			setFlows[f.Key] = f
			delete(delFlows, named{f.Key, f.Cookie})
		}
		for _, f := range part.DelFlows {
			if s := setFlows[f.Key]; s != nil && s.Cookie == f.Cookie {
				delete(setFlows, f.Key)
			}
			delFlows[named{f.Key, f.Cookie}] = f
		}
		for _, id := range part.DelGroups {
			delete(setGroups, id)
			delGroups[id] = true
		}
		for _, id := range part.DelMeters {
			delete(setMeters, id)
			delMeters[id] = true
		}
	}
	sum.SetMeters = collect(setMeters)
	sum.SetGroups = collect(setGroups)
	sum.SetFlows = collect(setFlows)
	sum.DelFlows = collect(delFlows)
	for id := range delGroups {
		sum.DelGroups = append(sum.DelGroups, id)
	}
	for id := range delMeters {
		sum.DelMeters = append(sum.DelMeters, id)
	}
	sum.Sort()
	return sum
}

func collect[K comparable, V any](m map[K]V) []V {
	list := make([]V, 0, len(m))
	for _, v := range m {
		list = append(list, v)
	}
	return list
}
