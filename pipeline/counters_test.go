package pipeline

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// With counters and without, packets go the same ways: the flows differ in the visits to the counter table alone.
func TestCountingChangesNoWay(t *testing.T) {
	var ports []*k8s.ServicePort
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 50 {
		ports = append(ports, randomShape(rng, i, i).ServicePort())
	}
	off := testConfig()
	off.Counters = false
	with, without := compile(t, testConfig(), ports...).State(), compile(t, off, ports...).State()
	visit := flow.Resubmit{Table: tableCount}
	for k, f := range with.Flows {
		if k.Table == tableCount {
			if len(f.Actions) != 0 {
				t.Errorf("a counter does something: %v", f)
			}
			continue
		}
		g := *f
		g.Actions = slices.DeleteFunc(slices.Clone(f.Actions), func(a flow.Action) bool { return a == visit })
		if len(f.Actions)-len(g.Actions) > 1 {
			t.Errorf("counts twice: %v", f)
		}
		if want := without.Flows[k]; want == nil || !want.Equal(&g) {
			t.Errorf("with counters   %v\nwithout counters %v", &g, want)
		}
	}
	if n := len(with.Flows) - len(without.Flows); n != counterFlows*len(ports) {
		t.Errorf("counting %d Service ports takes %d flows, want %d", len(ports), n, counterFlows*len(ports))
	}
	for id, g := range with.Groups {
		if !g.Equal(without.Groups[id]) {
			t.Errorf("group %d differs", id)
		}
	}
}

// No change of endpoints touches a counter, not even that the last one goes: the switch would begin again at 0.
func TestEndpointsComeAndGoCountersStay(t *testing.T) {
	for _, affinity := range []int{0, 60} {
		sh := shape{Name: "web", Cluster: 3, Local: 1, Types: all, External: k8s.Local, Affinity: affinity}
		c := compile(t, testConfig(), sh.ServicePort())
		for _, n := range []int{4, 100, 1, 0, 2} {
			sh.Cluster, sh.Local = n, min(n, 1)
			sp := sh.ServicePort()
			d := c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: sp})
			if d.Empty() {
				t.Fatalf("%d endpoints: nothing changes", n)
			}
			for _, f := range slices.Concat(d.SetFlows, d.DelFlows) {
				if f.Table == tableCount {
					t.Errorf("%d endpoints: %v", n, f)
				}
			}
		}
	}
}

// Tally tells whose a counter is and what it counts; of a Service that is gone it knows nothing.
func TestTally(t *testing.T) {
	cfg := testConfig()
	cfg.Layout.TableBase = 100
	sp := shape{Name: "web", Cluster: 1, Types: all[:1]}.ServicePort()
	c := compile(t, cfg, sp)
	seen := map[Tally]flow.Match{}
	var cookie uint64
	for k, f := range c.State().Flows {
		if k.Table != cfg.Layout.CounterTable() {
			continue
		}
		n, what := c.Tally(f.Cookie, k.Priority)
		if n != sp.Name {
			t.Errorf("%v belongs to %v", f, n)
		}
		seen[what], cookie = k.Match, f.Cookie
	}
	if len(seen) != 3 {
		t.Fatalf("counts %v", seen)
	}
	if m := seen[TallyOpened]; m.CTState != opening || m.CTMark != (flow.Bits{Mask: markService}) {
		t.Errorf("connections are counted by %v", m)
	}
	if m := seen[TallyFromClient]; m.CTState.Mask&flow.CTReply == 0 || m.CTState.Value&flow.CTReply != 0 {
		t.Errorf("the client's packets are counted by %v", m)
	}
	if m := seen[TallyFromEndpoint]; m.CTState.Value&flow.CTReply == 0 {
		t.Errorf("the endpoint's packets are counted by %v", m)
	}
	if _, what := c.Tally(cookie, 7); what != TallyNone {
		t.Errorf("a flow of unknown priority counts %v", what)
	}
	c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: nil})
	if _, what := c.Tally(cookie, prioOpened); what != TallyNone {
		t.Errorf("a flow of nobody counts %v", what)
	}
}
