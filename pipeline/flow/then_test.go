package flow

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
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
			s.Groups[id] = &Group{ID: id, Buckets: []Bucket{{Weight: uint16(1 + rng.IntN(2))}}}
		}
	}
	if rng.IntN(2) == 0 {
		s.Meters[1] = Meter{ID: 1, Rate: 1 + rng.Uint32N(2)}
	}
	return s
}

// Two differences put together do what they do one after the other; and a part of the flows, held back by their cookie and
// applied later, or with what came meanwhile, ends at the same.
func TestThen(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for round := range 3000 {
		states := []*State{randomState(rng), randomState(rng), randomState(rng)}
		first, second := Diff(states[0], states[1]), Diff(states[1], states[2])
		start := func() *State {
			s := NewState()
			s.Apply(Diff(s, states[0]))
			return s
		}
		check := func(what string, got *State) {
			t.Helper()
			if d := Diff(got, states[2]); !d.Empty() {
				t.Fatalf("round %d, %s: still different: %+v", round, what, d)
			}
		}
		at := start()
		at.Apply(first.Then(second))
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
		at.Apply(later.Then(second))
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
		one(func(f *Flow) { f.Match.InPort = 1 }), one(func(f *Flow) { f.Match.EthType = 1 }), one(func(f *Flow) { f.Match.EthDst[5] = 1 }),
		one(func(f *Flow) { f.Match.Src = netip.MustParsePrefix("10.0.0.0/8") }), one(func(f *Flow) { f.Match.Src = netip.MustParsePrefix("10.0.0.0/9") }),
		one(func(f *Flow) { f.Match.Dst = netip.MustParsePrefix("10.0.0.0/8") }), one(func(f *Flow) { f.Match.IPProto = 1 }),
		one(func(f *Flow) { f.Match.DstPort = 1 }), one(func(f *Flow) { f.Match.ICMPv6Type = 1 }),
		one(func(f *Flow) { f.Match.TCPFlags.Mask = 1 }), one(func(f *Flow) { f.Match.CTState.Mask = 1 }), one(func(f *Flow) { f.Match.CTMark.Mask = 1 }),
		one(func(f *Flow) { f.Match.Reg[3].Mask = 1 }), one(func(f *Flow) { f.Match.Unknown = "x" }),
	}
	for i, a := range list {
		for j, b := range list {
			if n := compareFlows(a, b); (n == 0) != (i == j) || n != -compareFlows(b, a) {
				t.Errorf("%v and %v compare as %d", a, b, n)
			}
		}
	}
}
