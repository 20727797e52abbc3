package pipeline

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// edit collects the changes of one step: for each affected key, the object before and after the step.
type edit struct {
	c       *Compiler
	flows   map[flow.Key]change[flow.Flow]
	groups  map[uint32]change[flow.Group]
	learned []flow.Learned
	flush   []flow.CTFilter
	set     []flow.Meter
	del     []uint32 // meters
}

// change is an object before and after a step; nil: absent.
type change[T any] struct{ before, after *T }

func newEdit(c *Compiler) *edit {
	return &edit{c: c, flows: map[flow.Key]change[flow.Flow]{}, groups: map[uint32]change[flow.Group]{}}
}

// remove records that a source no longer needs its objects.
func (e *edit) remove(o *objects) {
	e.c.remove(o,
		func(f *flow.Flow) { recordRemoved(e.flows, f.Key, f) },
		func(g *flow.Group) { recordRemoved(e.groups, g.ID, g) })
}

// add records the objects that a source needs from now on.
func (e *edit) add(o *objects) {
	e.c.add(o,
		func(f *flow.Flow) { recordAdded(e.flows, f.Key, f) },
		func(g *flow.Group) { recordAdded(e.groups, g.ID, g) })
}

// recordRemoved records that an object is removed. It existed before this step unless the step itself added
// it.
func recordRemoved[K comparable, T any](changes map[K]change[T], k K, o *T) {
	ch, touched := changes[k]
	if !touched {
		ch.before = o
	}
	changes[k] = change[T]{before: ch.before}
}

// recordAdded records that an object is there now.
func recordAdded[K comparable, T any](changes map[K]change[T], k K, o *T) {
	changes[k] = change[T]{before: changes[k].before, after: o}
}

// trimEqual returns both lists of objects without those that they have in common at their beginnings and
// ends. For a Service with one endpoint more or less, only its group remains.
func trimEqual(was, now objects) (objects, objects) {
	was.flows, now.flows = trimEqualEnds(was.flows, now.flows, (*flow.Flow).Equal)
	was.shared, now.shared = trimEqualEnds(was.shared, now.shared, (*flow.Flow).Equal)
	was.groups, now.groups = trimEqualEnds(was.groups, now.groups, (*flow.Group).Equal)
	return was, now
}

func trimEqualEnds[T any](a, b []T, equal func(T, T) bool) ([]T, []T) {
	for len(a) > 0 && len(b) > 0 && equal(a[0], b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && equal(a[len(a)-1], b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

// meters records the changes from the meters in was to the desired ones.
func (e *edit) meters(was []flow.Meter) {
	gone := map[uint32]flow.Meter{}
	for _, m := range was {
		gone[m.ID] = m
	}
	for _, m := range e.c.Meters() {
		if gone[m.ID] != m {
			e.set = append(e.set, m)
		}
		delete(gone, m.ID)
	}
	e.del = slices.Sorted(maps.Keys(gone))
}

// retire records the learned pins to delete: those of a Service port that is gone, or whose affinity timeout
// has changed.
func (e *edit) retire(old *placed, now *k8s.ServicePort) {
	if old.sp.AffinitySeconds > 0 && (now == nil || now.AffinitySeconds != old.sp.AffinitySeconds) {
		e.learned = append(e.learned, e.c.cfg.Layout.Pins(old.id))
	}
}

func (e *edit) delta() *flow.Delta {
	d := &flow.Delta{SetMeters: e.set, DelMeters: e.del, DelLearned: e.learned, FlushCT: e.flush}
	for _, ch := range e.flows {
		d.ChangeFlow(ch.before, ch.after)
	}
	for _, ch := range e.groups {
		d.ChangeGroup(ch.before, ch.after)
	}
	slices.SortFunc(d.DelLearned, func(a, b flow.Learned) int { return cmp.Compare(a.Cookie, b.Cookie) })
	d.Sort()
	return d
}
