package flow

import (
	"maps"
	"slices"
)

// Merge returns the Delta equivalent to applying d and then o. Where both change the same object, o wins. The
// flows and groups of the result are sorted. o must not clear anything.
func (d *Delta) Merge(o *Delta) *Delta {
	type named struct { // identifies a flow for strict deletion
		Key
		cookie uint64
	}
	sum := &Delta{
		Clear:      d.Clear,
		DelLearned: slices.Concat(d.DelLearned, o.DelLearned),
		FlushCT:    slices.Concat(d.FlushCT, o.FlushCT),
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

	sum.SetMeters = slices.Collect(maps.Values(setMeters))
	sum.SetGroups = slices.Collect(maps.Values(setGroups))
	sum.SetFlows = slices.Collect(maps.Values(setFlows))
	sum.DelFlows = slices.Collect(maps.Values(delFlows))
	sum.DelGroups = slices.Collect(maps.Keys(delGroups))
	sum.DelMeters = slices.Collect(maps.Keys(delMeters))
	sum.Sort()
	return sum
}
