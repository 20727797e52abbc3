package pipeline

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// compared returns a Comparison of all that is in a state.
func compared(c *Compiler, have *flow.State) *Comparison {
	x := c.Compare()
	feed(x, have)
	return x
}

// feed adds all that is in a state, as a switch sends it: flows first.
func feed(x *Comparison, have *flow.State) {
	for _, f := range have.Flows {
		x.Flow(f)
	}
	for _, g := range have.Groups {
		x.Group(g)
	}
	for _, m := range have.Meters {
		x.Meter(m)
	}
}

// A Comparison, which keeps digests, finds what a comparison of whole states finds: on an empty switch, on one in step, and
// on switches where flows, groups and meters are missing, changed, of others, or too many.
func TestComparisonFindsWhatDiffFinds(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 5))
	var ports []*k8s.ServicePort
	for i := range 60 {
		ports = append(ports, randomShape(rng, i, i).ServicePort())
	}
	c := compile(t, testConfig(), ports...)
	want := c.State()
	if len(want.Flows) != c.Flows() || len(want.Groups) != c.Groups() {
		t.Fatalf("counted %d flows and %d groups, there are %d and %d", c.Flows(), c.Groups(), len(want.Flows), len(want.Groups))
	}
	if d := compared(c, want).Delta(); !d.Empty() {
		t.Fatalf("a switch in step differs: %+v", d)
	}
	changes := 0
	for round := range 120 {
		have := flow.NewState()
		have.Apply(flow.Diff(have, want))
		spoil := rng.IntN(12)
		if round == 0 {
			have, spoil = flow.NewState(), 0
		}
		for range spoil {
			flows := slices.Collect(maps.Values(have.Flows))
			f := *flows[rng.IntN(len(flows))]
			groups := slices.Collect(maps.Values(have.Groups))
			g := *groups[rng.IntN(len(groups))]
			switch rng.IntN(8) {
			case 0:
				delete(have.Flows, f.Key)
			case 1:
				f.Actions = append(slices.Clone(f.Actions), flow.UnknownAction{Text: "idle_timeout=1"})
				have.Flows[f.Key] = &f
			case 2:
				f.Cookie++
				have.Flows[f.Key] = &f
			case 3:
				f.Priority++
				have.Flows[f.Key] = &f
			case 4:
				f.Match.Unknown = "nw_tos=4"
				have.Flows[f.Key] = &f
			case 5:
				delete(have.Groups, g.ID)
			case 6:
				g.Buckets = g.Buckets[:len(g.Buckets)/2]
				have.Groups[g.ID] = &g
			case 7:
				g.ID++
				have.Groups[g.ID] = &g
			}
		}
		switch rng.IntN(6) {
		case 0:
			clear(have.Meters)
		case 1:
			have.Meters[c.cfg.Layout.MeterID] = flow.Meter{ID: c.cfg.Layout.MeterID, Rate: 1}
		}
		got, full := compared(c, have).Delta(), flow.Diff(have, want)
		if got, full := fmt.Sprintf("%+v", printed(got)), fmt.Sprintf("%+v", printed(full)); got != full {
			t.Fatalf("round %d: the comparison gives\n%s\nthe states' difference is\n%s", round, got, full)
		}
		changes += len(full.SetFlows) + len(full.DelFlows) + len(full.SetGroups) + len(full.DelGroups)
		have.Apply(got)
		equal(t, fmt.Sprint("round ", round), have, want)
	}
	if changes < 800 {
		t.Errorf("only %d differences were met", changes)
	}
}

func printed(d *flow.Delta) []string {
	var out []string
	for _, f := range d.SetFlows {
		out = append(out, "+ "+f.String())
	}
	for _, f := range d.DelFlows {
		out = append(out, "- "+f.String())
	}
	for _, g := range d.SetGroups {
		out = append(out, "+ "+g.String())
	}
	return append(out, fmt.Sprint(d.DelGroups, d.SetMeters, d.DelMeters))
}

// A switch reports a flow twice if it is replaced while it is read: the older version is no reason to delete the newer one.
func TestComparisonMeetsAFlowTwice(t *testing.T) {
	c := compile(t, testConfig(), shape{Name: "web", Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort())
	have := c.State()
	x := compared(c, have)
	for _, f := range have.Flows {
		older := *f
		older.Actions = []flow.Action{flow.DecTTL{}}
		x.Flow(&older)
		x.Flow(f)
	}
	if d := x.Delta(); !d.Empty() {
		t.Errorf("to be done: %v", printed(d))
	}
}

// What endpoints a switch may have sent UDP clients to, that have stopped serving since, shows in what differs.
func TestStaleSinceNobodyWatched(t *testing.T) {
	s := shape{Name: "dns", Protocol: "UDP", Cluster: 3, Types: []k8s.FrontendType{k8s.ClusterIP}}
	before := compile(t, testConfig(), s.ServicePort()).State()
	s.Cluster = 2
	c := compile(t, testConfig(), s.ServicePort())
	want := "[zone=1001,ct_nw_proto=17,dst=40.0.0.1:80,replier=10.0.0.13:80]"
	if got := fmt.Sprint(compared(c, before).Stale()); got != want {
		t.Errorf("to be forgotten: %s, want %s", got, want)
	}
	if got := compared(c, c.State()).Stale(); len(got) != 0 {
		t.Errorf("a switch in step has connections to forget: %v", got)
	}
}

// The pins of a learn action that should not be on the switch go, and those with another timeout; one with another limit keeps
// them. What a learn action elsewhere has made is not touched.
func TestOrphanPins(t *testing.T) {
	sticky := shape{Name: "web", Cluster: 2, Affinity: 10, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	plain := shape{Name: "other", Cluster: 2, VIP: 1, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	c := compile(t, testConfig(), sticky, plain)
	l := c.cfg.Layout
	x := c.Compare()
	have := func(id uint32, change func(*flow.Learn)) {
		learn := flow.Learn{Table: l.table(tablePins), IdleTimeout: 10, Cookie: l.cookie(cookieLearned, id)}
		if change != nil {
			change(&learn)
		}
		f := &flow.Flow{Key: flow.Key{Table: l.table(tableLearn), Priority: uint16(len(x.flows))}, Cookie: l.cookie(cookieStatic, id), Actions: []flow.Action{learn}}
		x.Flow(f)
	}
	web, other := c.ports[sticky.Name].id, c.ports[plain.Name].id
	have(web, func(l *flow.Learn) { l.Limit = 7 })
	have(7, nil)
	have(7, nil)
	have(other, nil)
	have(8, func(l *flow.Learn) { l.Table++ })
	have(9, func(l *flow.Learn) { l.Cookie ^= 3 << 32 })
	if got := x.OrphanPins(); len(got) != 2 || got[0].Cookie != l.cookie(cookieLearned, 7) || got[1].Cookie != l.cookie(cookieLearned, other) {
		t.Errorf("orphans: %v", got)
	}
	have(web, func(l *flow.Learn) { l.IdleTimeout = 9 })
	if got := x.OrphanPins(); len(got) != 3 || !slices.Contains(got, flow.Learned{Table: l.table(tablePins), Cookie: l.cookie(cookieLearned, web)}) {
		t.Errorf("orphans: %v", got)
	}
}

// Whoever asks for a shared flow asks for the same: table, priority and match tell all of it.
func TestSharedFlowsAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 9))
	seen, asked := map[flow.Key]*flow.Flow{}, 0
	c := compile(t, testConfig())
	for i := range 2000 {
		o := c.compilePort(&placed{sp: randomShape(rng, i, i%97).ServicePort(), id: uint32(1 + i)})
		for _, f := range o.shared {
			if before := seen[f.Key]; before != nil && !before.Equal(f) {
				t.Fatalf("one asks for %v, another for %v", before, f)
			}
			seen[f.Key] = f
			asked++
		}
	}
	if len(seen) < 100 || asked < 2*len(seen) {
		t.Errorf("%d shared flows, asked for %d times", len(seen), asked)
	}
}

func BenchmarkCompare10000Services(b *testing.B) {
	c, _ := NewCompiler(testConfig())
	c.Load(manyPorts())
	have := c.State()
	b.ReportAllocs()
	for b.Loop() {
		if d := compared(c, have).Delta(); !d.Empty() {
			b.Fatal("differs")
		}
	}
}

// A Service port that was deleted before the first state was compiled is no part of it.
func TestLoadOfADeletedPort(t *testing.T) {
	c, err := NewCompiler(Config{Layout: DefaultLayout()})
	if err != nil {
		t.Fatal(err)
	}
	gone := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "gone"}, Protocol: "TCP", Family: k8s.IPv4}
	stays := gone
	stays.Name = "stays"
	c.Load(map[k8s.PortName]*k8s.ServicePort{gone: nil, stays: {Name: stays}})
	if c.Serves(gone) || !c.Serves(stays) {
		t.Errorf("it serves what is gone: %t, what stays: %t", c.Serves(gone), c.Serves(stays))
	}
}

// Service ports of which nothing is on the switch, in any form, can come later: until then nothing of them is wanted, and all else is as
// without them. They keep their ids. What differs, at an address that moved, or under their id, is brought in step at once.
func TestPostponedPorts(t *testing.T) {
	rng := rand.New(rand.NewPCG(44, 1))
	postponed, kept := 0, 0
	for round := range 60 {
		vips := rng.Perm(40)
		now := slices.Clone(vips) // some move, maybe to where another was
		for range 6 {
			a, b := rng.IntN(len(now)), rng.IntN(len(now))
			now[a], now[b] = now[b], now[a]
		}
		var before, ports []*k8s.ServicePort
		for i := range 30 {
			s := randomShape(rng, i, vips[i])
			if rng.IntN(2) == 0 {
				before = append(before, s.ServicePort())
			}
			if now[i] != vips[i] {
				s = randomShape(rng, i, now[i])
			}
			if rng.IntN(8) > 0 {
				ports = append(ports, s.ServicePort())
			}
		}
		have := flow.NewState()
		if round > 5 {
			have.Apply(flow.Diff(have, compile(t, testConfig(), before...).State()))
			for k := range have.Flows {
				if rng.IntN(40) == 0 {
					delete(have.Flows, k)
				}
			}
		}

		c := compile(t, testConfig(), ports...)
		x := c.Compare()
		x.Adopt()
		feed(x, have)
		absent := x.Absent()
		there, at := map[uint32]bool{}, map[place]bool{}
		for _, f := range have.Flows {
			there[portID(f.Cookie)] = true
			at[placeOf(&f.Match)] = f.Table == c.cfg.Layout.FrontendTable() || at[placeOf(&f.Match)]
		}
		ids := map[k8s.PortName]uint32{}
		for _, sp := range absent {
			ids[sp.Name] = c.ports[sp.Name].id
			for _, f := range sp.Frontends {
				if there[ids[sp.Name]] || f.ShadowedBy == "" && at[place{ethType(sp.Name.Family), ipProto(sp.Name.Protocol), f.Address, f.Port}] {
					t.Fatalf("round %d: something is there at %v of %s", round, f, sp.Name)
				}
			}
		}
		kept += len(ports) - len(absent)
		if rng.IntN(3) == 0 {
			absent = absent[:len(absent)/2]
		}
		postponed += len(absent)
		x.Postpone(absent)
		have.Apply(x.Delta())
		equal(t, fmt.Sprint("at first, round ", round), have, c.State())
		later := map[k8s.PortName]*k8s.ServicePort{}
		for _, sp := range absent {
			for _, f := range have.Flows {
				if portID(f.Cookie) == ids[sp.Name] {
					t.Fatalf("round %d: %s is there", round, f)
				}
			}
			later[sp.Name] = sp
		}
		if again := compared(c, have); !again.Delta().Empty() {
			t.Fatalf("round %d: what is postponed differs", round)
		}
		have.Apply(c.Update(later))
		equal(t, fmt.Sprint("then, round ", round), have, c.State())
		for n, id := range ids {
			if c.ports[n].id != id {
				t.Fatalf("round %d: %s has another id", round, n)
			}
		}
		if len(absent) > 0 && c.Flows() != len(have.Flows) {
			t.Fatalf("round %d: %d flows are wanted, %d there", round, c.Flows(), len(have.Flows))
		}
	}
	if postponed < 200 || kept < 200 {
		t.Errorf("%d postponed, %d kept", postponed, kept)
	}
}

// While ports of a Service are still to come, packets to them are not refused as to ports that it does not serve.
func TestPartialServiceRefusesNothing(t *testing.T) {
	sp := shape{Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	for _, partial := range []bool{true, false} {
		sp.Partial = partial
		table, cookie := DefaultLayout().Unserved()
		refuses := false
		for _, f := range compile(t, testConfig(), sp).State().Flows {
			refuses = refuses || f.Table == table && f.Cookie == cookie
		}
		if refuses == partial {
			t.Errorf("partial %t: refuses %t", partial, refuses)
		}
	}
}

// A port that is Partial no more gets what it lacks, without being compiled again; with every shape and family it ends as one that never
// was, and when it goes nothing of it is left.
func TestPartialBecomesComplete(t *testing.T) {
	for _, six := range []bool{false, true} {
		for _, tc := range kinds {
			sp := tc.shape
			if six {
				sp.Family = k8s.IPv6
			}
			complete := sp.ServicePort()
			partial := *complete
			partial.Partial = true
			c := compile(t, testConfig(), &partial)
			before, empty := c.Flows(), compile(t, testConfig())
			d := c.Update(map[k8s.PortName]*k8s.ServicePort{complete.Name: complete})
			if len(d.DelFlows)+len(d.SetGroups)+len(d.DelGroups) > 0 || len(d.SetFlows) > 1 || c.Flows() != before+len(d.SetFlows) {
				t.Errorf("%s: %d flows set, %d deleted", sp.Name, len(d.SetFlows), len(d.DelFlows))
			}
			equal(t, sp.Name, c.State(), compile(t, testConfig(), complete).State())
			c.Update(map[k8s.PortName]*k8s.ServicePort{complete.Name: nil})
			if n, want := c.Flows()-len(c.ids.resting), empty.Flows(); n > want+4 || len(c.refs) > len(empty.refs) {
				t.Errorf("%s: %d flows are left of %d; %d shared, want %d", sp.Name, n, want, len(c.refs), len(empty.refs))
			}
		}
	}
}
