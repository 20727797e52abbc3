package flow

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
)

// randomState has some of a few flows, under one of three cookies each, groups and meters.
func randomState(rng *rand.Rand) *State {
	s := NewState()
	for i := range 12 {
		if rng.IntN(2) == 0 {
			f := &Flow{Key: Key{Priority: uint16(i)}, Cookie: 1 + rng.Uint64N(3)}
			if rng.IntN(3) == 0 {
				f.Actions = []Action{DecTTL{}}
			}
			s.Flows[f.Key] = f
		}
		if id := uint32(i); rng.IntN(2) == 0 {
			b := Bucket{ID: rng.Uint32N(2), Weight: uint16(1 + rng.IntN(2))}
			if rng.IntN(3) == 0 {
				b.Actions = []Action{DecTTL{}}
			}
			s.Groups[id] = &Group{ID: id, Method: Method(rng.IntN(2)), Buckets: []Bucket{b}}
		}
	}
	if rng.IntN(2) == 0 {
		s.Meters[1] = Meter{ID: 1, Rate: 1 + rng.Uint32N(2)}
	}
	return s
}

// Two differences put together do what they do one after the other; and a part of the flows, held back by their cookie and
// applied later, or with what came meanwhile, ends at the same.
func TestMerge(t *testing.T) {
	rng := rand.New(rand.NewPCG(nightly.Seed(t), 4))
	for round := range nightly.Count(1000, 50_000) {
		states := []*State{randomState(rng), randomState(rng), randomState(rng)}
		first, second := Diff(states[0], states[1]), Diff(states[1], states[2])
		start := func() *State {
			s := NewState()
			s.Apply(Diff(s, states[0]))
			return s
		}
		check := func(what string, got *State) {
			t.Helper()
			if !reflect.DeepEqual(got, states[2]) { // not Diff, which is what made it
				t.Fatalf("round %d, %s: still different: %+v", round, what, Diff(got, states[2]))
			}
		}
		at := start()
		at.Apply(first.Merge(second))
		check("both at once", at)

		held := 1 + rng.Uint64N(3)
		now, later := *first, Delta{}
		now.SetFlows, later.SetFlows = part(first.SetFlows, held)
		now.DelFlows, later.DelFlows = part(first.DelFlows, held)
		at = start()
		at.Apply(&now)
		for k, f := range at.Flows {
			if was := states[0].Flows[k]; f.Cookie == held && (was == nil || !was.Equal(f)) {
				t.Fatalf("round %d: what was held back is there: %v", round, f)
			}
			if want := states[1].Flows[k]; f.Cookie != held && (want == nil || want.Cookie != held && !want.Equal(f)) {
				t.Fatalf("round %d: what was not held back is wrong: %v", round, f)
			}
		}
		at.Apply(later.Merge(second))
		check(fmt.Sprint("cookie ", held, " held back"), at)
	}
}

// part divides flows: those under other cookies, those under this one.
func part(fs []*Flow, cookie uint64) (others, these []*Flow) {
	for _, f := range fs {
		if f.Cookie == cookie {
			these = append(these, f)
		} else {
			others = append(others, f)
		}
	}
	return others, these
}

// The order of a Delta's flows depends on nothing but the flows: no two that differ in anything are equal in it.
func TestOrderOfFlows(t *testing.T) {
	one := func(change func(*Flow)) *Flow {
		f := &Flow{Key: Key{Priority: 1}}
		change(f)
		return f
	}
	list := []*Flow{
		one(func(*Flow) {}),
		one(func(f *Flow) { f.Table = 1 }), one(func(f *Flow) { f.Priority = 2 }), one(func(f *Flow) { f.Cookie = 1 }),
		one(func(f *Flow) { f.Match.InPort = 1 }), one(func(f *Flow) { f.Match.Tagged = true }), one(func(f *Flow) { f.Match.EthType = 1 }), one(func(f *Flow) { f.Match.EthDst[5] = 1 }),
		one(func(f *Flow) { f.Match.Src = netip.MustParsePrefix("10.0.0.0/8") }), one(func(f *Flow) { f.Match.Src = netip.MustParsePrefix("10.0.0.0/9") }),
		one(func(f *Flow) { f.Match.Dst = netip.MustParsePrefix("10.0.0.0/8") }), one(func(f *Flow) { f.Match.IPProto = 1 }),
		one(func(f *Flow) { f.Match.DstPort = 1 }), one(func(f *Flow) { f.Match.SrcPort.Mask = 1 }), one(func(f *Flow) { f.Match.ICMPType = 1 }),
		one(func(f *Flow) { f.Match.Frag.Mask = 1 }), one(func(f *Flow) { f.Match.CTZone = 1 }),
		one(func(f *Flow) { f.Match.CTProto = 1 }), one(func(f *Flow) { f.Match.CTDstPort = 1 }), one(func(f *Flow) { f.Match.CTSrcPort = 1 }),
		one(func(f *Flow) { f.Match.TCPFlags.Mask = 1 }), one(func(f *Flow) { f.Match.CTState.Mask = 1 }), one(func(f *Flow) { f.Match.CTMark.Mask = 1 }),
		one(func(f *Flow) { f.Match.Reg[3].Mask = 1 }), one(func(f *Flow) { f.Match.Unknown = "x" }),
		one(func(f *Flow) { f.Match.Clear31 = 10 }),
	}
	for i, a := range list {
		for j, b := range list {
			if n := compareFlows(a, b); (n == 0) != (i == j) || n != -compareFlows(b, a) {
				t.Errorf("%v and %v compare as %d", a, b, n)
			}
		}
	}
}

// TestEmptyDelta checks that a Delta is empty only if none of its parts has anything, and that Merge keeps what has no key.
func TestEmptyDelta(t *testing.T) {
	if d := (Delta{}); !d.Empty() {
		t.Error("a Delta without parts is not empty")
	}
	for i := range reflect.TypeFor[Delta]().NumField() {
		var d Delta
		part := reflect.ValueOf(&d).Elem().Field(i)
		part.Set(reflect.MakeSlice(part.Type(), 1, 1))
		if name := reflect.TypeFor[Delta]().Field(i).Name; d.Empty() {
			t.Errorf("a Delta with one of %s is empty", name)
		}
	}
	first := &Delta{DelLearned: []Learned{{1, 1}}, FlushCT: []CTFilter{{Zone: 1}}}
	sum := first.Merge(&Delta{DelLearned: []Learned{{2, 2}}, FlushCT: []CTFilter{{Zone: 2}}})
	if !slices.Equal(sum.DelLearned, []Learned{{1, 1}, {2, 2}}) || !slices.Equal(sum.FlushCT, []CTFilter{{Zone: 1}, {Zone: 2}}) {
		t.Errorf("Merge: %+v", sum)
	}
}

// TestOrderOfDelta checks that a difference is in a fixed order, by table, priority and id, however its maps are walked.
func TestOrderOfDelta(t *testing.T) {
	have, want := NewState(), NewState()
	for i := range 40 {
		f := &Flow{Key: Key{Table: uint8(i % 3), Priority: uint16(i)}}
		g := &Group{ID: uint32(i)}
		if i%2 == 0 {
			have.Flows[f.Key], have.Groups[g.ID] = f, g
		} else {
			want.Flows[f.Key], want.Groups[g.ID] = f, g
		}
	}
	d := Diff(have, want)
	if !slices.IsSorted(d.DelGroups) || !slices.IsSortedFunc(d.SetGroups, func(a, b *Group) int { return int(a.ID) - int(b.ID) }) ||
		!slices.IsSortedFunc(d.SetFlows, compareFlows) || !slices.IsSortedFunc(d.DelFlows, compareFlows) {
		t.Errorf("out of order: %+v", d)
	}
	if len(d.SetFlows) != 20 || len(d.DelFlows) != 20 || len(d.SetGroups) != 20 || len(d.DelGroups) != 20 {
		t.Errorf("not all there: %+v", d)
	}
}
