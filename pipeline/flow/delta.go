package flow

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// Delta is the set of changes that turns one State of a switch into another. Applied in the order of its
// fields and as one bundle, it never leaves a flow that points to a missing group.
//
// A flow whose cookie changes is in both SetFlows, under the new cookie, and DelFlows, under the old one. The
// deletion has no effect once the new flow is installed, so either part is correct without the other.
type Delta struct {
	Clear      []Cookies // flows deleted first
	SetMeters  []Meter   // added or modified, before the bundle: meters cannot travel in one
	SetGroups  []*Group  // added or modified
	SetFlows   []*Flow   // added or replaced
	Replaced   []*Flow   // what those of SetFlows replace that do not add; not applied
	DelFlows   []*Flow   // deleted strictly: table, priority and match, under the flow's own cookie
	DelLearned []Learned // flows that a Learn action made
	DelGroups  []uint32  // deleted last, when no flow points to them any more
	DelMeters  []uint32  // deleted after the bundle
	// FlushCT are the conntrack entries to delete once the bundle is in force; not part of a transaction.
	FlushCT []CTFilter
}

// Cookies names all flows, in any table, whose cookie is Cookie in the bits of Mask.
type Cookies struct{ Cookie, Mask uint64 }

// Learned names all flows in a table that a Learn action with this cookie made.
type Learned struct {
	Table  uint8
	Cookie uint64
}

// Empty reports whether there is nothing to do.
func (d *Delta) Empty() bool { return d.Len() == 0 }

// Len returns the number of changes.
func (d *Delta) Len() int {
	return len(d.Clear) +
		len(d.SetMeters) +
		len(d.SetGroups) +
		len(d.SetFlows) +
		len(d.Replaced) +
		len(d.DelFlows) +
		len(d.DelLearned) +
		len(d.DelGroups) +
		len(d.DelMeters) +
		len(d.FlushCT)
}

// Diff returns the Delta that turns have into want, each part in a fixed order.
func Diff(have, want *State) *Delta {
	d := &Delta{}
	for _, m := range want.SortedMeters() {
		if h, ok := have.Meters[m.ID]; !ok || h != m {
			d.SetMeters = append(d.SetMeters, m)
		}
	}

	for id, g := range want.Groups {
		d.ChangeGroup(have.Groups[id], g)
	}
	for id, g := range have.Groups {
		if want.Groups[id] == nil {
			d.ChangeGroup(g, nil)
		}
	}

	for k, f := range want.Flows {
		d.ChangeFlow(have.Flows[k], f)
	}
	for k, f := range have.Flows {
		if want.Flows[k] == nil {
			d.ChangeFlow(f, nil)
		}
	}

	for _, m := range have.SortedMeters() {
		if _, ok := want.Meters[m.ID]; !ok {
			d.DelMeters = append(d.DelMeters, m.ID)
		}
	}

	d.Sort()
	return d
}

// ChangeFlow adds the changes that turn the flow was into now; both have the same key. nil means no flow.
func (d *Delta) ChangeFlow(was, now *Flow) {
	if now != nil && (was == nil || !was.Equal(now)) {
		d.SetFlows = append(d.SetFlows, now)
		if was != nil {
			d.Replaced = append(d.Replaced, was)
		}
	}
	if was != nil && (now == nil || was.Cookie != now.Cookie) {
		d.DelFlows = append(d.DelFlows, was)
	}
}

// ChangeGroup adds the change that turns the group was into now; both have the same id. nil means no group.
func (d *Delta) ChangeGroup(was, now *Group) {
	switch {
	case now == nil && was != nil:
		d.DelGroups = append(d.DelGroups, was.ID)
	case now != nil && (was == nil || !was.Equal(now)):
		d.SetGroups = append(d.SetGroups, now)
	}
}

// Sort puts all parts into a fixed order: flows by table, falling priority and match.
func (d *Delta) Sort() {
	sortGroups(d.SetGroups)
	slices.SortFunc(d.SetFlows, compareFlows)
	slices.SortFunc(d.DelFlows, compareFlows)
	slices.Sort(d.DelGroups)
}

// Apply updates s to the state of the switch after d.
func (s *State) Apply(d *Delta) {
	for _, c := range d.Clear {
		maps.DeleteFunc(s.Flows, func(_ Key, f *Flow) bool { return f.Cookie&c.Mask == c.Cookie })
	}
	for _, m := range d.SetMeters {
		s.Meters[m.ID] = m
	}
	for _, g := range d.SetGroups {
		s.Groups[g.ID] = g
	}
	for _, f := range d.SetFlows {
		s.Flows[f.Key] = f
	}
	for _, f := range d.DelFlows {
		if there := s.Flows[f.Key]; there != nil && there.Cookie == f.Cookie {
			delete(s.Flows, f.Key)
		}
	}
	for _, id := range d.DelGroups {
		delete(s.Groups, id)
	}
	for _, id := range d.DelMeters {
		delete(s.Meters, id)
	}
}

// WriteTo prints the difference for people: a line for each object, + added or changed, - deleted.
func (d *Delta) WriteTo(w io.Writer) (int64, error) {
	var n int64
	var err error
	line := func(sign string, v any) {
		if err != nil {
			return
		}
		var k int
		k, err = fmt.Fprintf(w, "%s %v\n", sign, v)
		n += int64(k)
	}

	for _, c := range d.Clear {
		line("-", fmt.Sprintf("cookie=%#x/%#x", c.Cookie, c.Mask))
	}
	for _, m := range d.SetMeters {
		line("+", m)
	}
	for _, g := range d.SetGroups {
		line("+", g)
	}
	for _, f := range d.SetFlows {
		line("+", f)
	}
	for _, f := range d.DelFlows {
		line("-", f)
	}
	for _, id := range d.DelGroups {
		line("-", fmt.Sprintf("group_id=%d", id))
	}
	for _, id := range d.DelMeters {
		line("-", fmt.Sprintf("meter=%d", id))
	}

	return n, err
}
