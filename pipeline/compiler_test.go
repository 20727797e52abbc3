package pipeline

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/nightly"
)

func compile(t testing.TB, cfg Config, sps ...*k8s.ServicePort) *Compiler {
	t.Helper()
	c, err := NewCompiler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ports := map[k8s.PortName]*k8s.ServicePort{}
	for _, sp := range sps {
		ports[sp.Name] = sp
	}
	c.Update(ports)
	return c
}

func text(t testing.TB, s *flow.State) string {
	t.Helper()
	var b strings.Builder
	if err := WriteBundle(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// equal compares two states object by object and says what differs.
func equal(t *testing.T, what string, got, want *flow.State) {
	t.Helper()
	d := flow.Diff(got, want)
	if d.Empty() {
		return
	}
	var b strings.Builder
	d.WriteTo(&b)
	t.Fatalf("%s: to be added (+) and removed (-):\n%s", what, b.String())
}

// A switch that is fed every Delta ends where a compilation from scratch does that adopts the switch's slots, after any sequence of changes:
// Services that come, go, change, trade addresses, collide in their ids, and a node whose facts change.
func TestIncrementalEqualsFromScratch(t *testing.T) {
	crowd(t, 64)
	const steps = 500
	seed := nightly.Seed(t)
	for round := range nightly.Count(4, 100) {
		rng := rand.New(rand.NewPCG(seed, uint64(round)))
		cfg := testConfig()
		c := compile(t, cfg)
		onSwitch := flow.NewState()
		onSwitch.Apply(flow.Diff(onSwitch, c.State()))
		model := map[k8s.PortName]*k8s.ServicePort{}
		vips := shuffled(rng, 40) // service i has the addresses vips[i]; swapping two swaps their addresses
		for step := range steps {
			changes := map[k8s.PortName]*k8s.ServicePort{}
			set := func(i int) {
				for n := range model {
					if n.Name == fmt.Sprint("s", i) {
						changes[n] = nil
					}
				}
				sp := randomShape(rng, i, vips[i]).ServicePort()
				changes[sp.Name] = sp
			}
			i, j := rng.IntN(40), rng.IntN(40)
			switch op := rng.IntN(12); {
			case op < 6:
				set(i)
			case op < 9:
				for n := range model {
					if n.Name == fmt.Sprint("s", i) {
						changes[n] = nil
					}
				}
			case op < 11:
				vips[i], vips[j] = vips[j], vips[i]
				set(i)
				set(j)
			default:
				cfg = testConfig()
				if rng.IntN(2) == 0 {
					cfg.Pods = cfg.Pods[:1]
				}
				cfg.Detector = []k8s.Detector{
					cfg.Detector, {}, {Bridge: "br-int"}, {InterfacePrefix: "veth"},
				}[rng.IntN(4)]
				cfg.PodPorts = [][]uint32{{11, 12}, {11}}[rng.IntN(2)]
				cfg.NodeElsewhere = [][]k8s.Family{nil, nil, families[:1], families[1:], families}[rng.IntN(5)]
				if rng.IntN(4) == 0 {
					cfg.HairpinIPs = nil
				}
				if rng.IntN(3) == 0 {
					cfg.LocalIPs = append(cfg.LocalIPs, addr("172.16.0.7"))
				}
				if rng.IntN(3) == 0 {
					cfg.Uplink = 0
				}
				if rng.IntN(3) == 0 {
					cfg.NodeIPs = []netip.Addr{addr("172.16.0.3")}
				}
				cfg.LocalDelivery = rng.IntN(2) == 0
				d, err := c.Reconfigure(cfg)
				if err != nil {
					t.Fatal(err)
				}
				onSwitch.Apply(d)
			}
			for n, sp := range changes {
				if sp == nil {
					delete(model, n)
				} else {
					model[n] = sp
				}
			}
			onSwitch.Apply(c.Update(changes))
			if step%10 != 0 && step != steps-1 {
				continue
			}
			fresh := compile(t, cfg)
			fresh.Update(model)
			adopt(fresh, onSwitch)
			where := fmt.Sprintf("round %d step %d", round, step)
			equal(t, where+": compiler", c.State(), fresh.State())
			equal(t, where+": switch", onSwitch, fresh.State())
		}
	}
}

// No step of a Delta, taken in its order, leaves a flow or bucket pointing to a group that is not there.
func TestDeltaNeverDangles(t *testing.T) {
	rng := rand.New(rand.NewPCG(nightly.Seed(t), 3))
	c := compile(t, testConfig())
	groups := map[uint32]bool{}
	flows := map[flow.Key]*flow.Flow{}
	check := func(as []flow.Action) {
		for _, a := range as {
			if g, ok := a.(flow.ToGroup); ok && !groups[g.ID] {
				t.Fatalf("%v points to a group that is not there", as)
			}
		}
	}
	for step := range nightly.Count(1000, 20_000) {
		sp := randomShape(rng, rng.IntN(10), step%97).ServicePort()
		changes := map[k8s.PortName]*k8s.ServicePort{sp.Name: sp}
		if rng.IntN(3) == 0 {
			changes[sp.Name] = nil
		}
		d := c.Update(changes)
		for _, g := range d.SetGroups {
			groups[g.ID] = true
		}
		for _, f := range d.SetFlows {
			check(f.Actions)
			flows[f.Key] = f
		}
		for _, f := range d.DelFlows {
			delete(flows, f.Key)
		}
		for _, id := range d.DelGroups {
			delete(groups, id)
		}
		for _, f := range flows {
			check(f.Actions)
		}
	}
}

func TestOwner(t *testing.T) {
	sp := shape{Name: "web", Cluster: 300, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	c := compile(t, testConfig(), sp)
	flows, groups := c.Objects(sp.Name)
	if len(flows) == 0 || len(groups) == 0 {
		t.Fatal("no flows or no groups")
	}
	for _, f := range flows {
		if n, ok := c.Owner(f.Cookie); !ok || n != sp.Name {
			t.Errorf("owner of %v is %v", f, n)
		}
	}
	for _, g := range groups {
		if n, ok := c.GroupOwner(g.ID); !ok || n != sp.Name {
			t.Errorf("owner of group %d is %v", g.ID, n)
		}
	}
	first, last := DefaultLayout().Groups()
	if _, ok := c.Owner(0); ok || groups[0].ID < first || groups[0].ID > last {
		t.Error("the common part has an owner, or the group is out of range")
	}
}

// UDP clients that keep talking must not keep an endpoint that is gone.
func TestStaleUDPConnectionsAreFlushed(t *testing.T) {
	s := shape{Name: "dns", Protocol: "UDP", Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP, k8s.NodePort}}
	c := compile(t, testConfig(), s.ServicePort())
	s.Cluster = 1
	sp := s.ServicePort()
	d := c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: sp})
	want := "[zone=1001,ct_nw_proto=17,dst=40.0.0.1:80,replier=10.0.0.12:80 zone=1001,ct_nw_proto=17,dst=172.16.0.2:30000,replier=10.0.0.12:80]"
	if got := fmt.Sprint(d.FlushCT); got != want {
		t.Errorf("flushed %s, want %s", got, want)
	}
	// The last endpoint too: kube-proxy leaves those connections to a black hole.
	d = c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: nil})
	if len(d.FlushCT) != 2 { // a frontend each
		t.Errorf("flushed %v when the Service went", d.FlushCT)
	}
	s.Protocol, s.Cluster = "TCP", 2
	c = compile(t, testConfig(), s.ServicePort())
	s.Cluster = 1
	sp = s.ServicePort()
	if d := c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: sp}); len(d.FlushCT) != 0 {
		t.Errorf("TCP connections flushed: %v", d.FlushCT)
	}
}

func TestPinsGoWithTheirService(t *testing.T) {
	s := shape{Name: "web", Cluster: 2, Affinity: 10, Types: []k8s.FrontendType{k8s.ClusterIP}}
	c := compile(t, testConfig(), s.ServicePort())
	sp := s.ServicePort()
	if d := c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: sp}); !d.Empty() {
		t.Errorf("nothing changed, but %+v", d)
	}
	if d := c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: nil}); len(d.DelLearned) != 1 || d.DelLearned[0].Table != 10 {
		t.Errorf("pins deleted: %v", d.DelLearned)
	}
}

func TestLayoutIsValidated(t *testing.T) {
	for _, tc := range []struct {
		change func(*Layout)
		want   string
	}{
		{func(l *Layout) { l.TableBase = 230 }, "table base 230 leaves no room"},
		{func(l *Layout) { l.NextTable = 13 }, "next table 13 is one of nkp's own"},
		{func(l *Layout) { l.NextTable = 254 }, "next table 254 is out of range"},
		{func(l *Layout) { l.CookiePrefix = 0 }, "cookie prefix"},
		{func(l *Layout) { l.CookiePrefix = 1 << 24 }, "cookie prefix 0x1000000"},
		{func(l *Layout) { l.GroupBase = 5 }, "group base 0x5"},
		{func(l *Layout) { l.ZoneSNAT = l.ZoneDNAT }, "zone 1001 is given for both"},
		{func(l *Layout) { l.ZoneSNAT = 0 }, "zone 0 is the host's own"},
		{func(l *Layout) { l.MeterID = 0 }, "meter id"},
	} {
		l := DefaultLayout()
		tc.change(&l)
		if err := l.Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: got %v", tc.want, err)
		}
	}
	l := DefaultLayout()
	l.TableBase, l.NextTable = 100, 10
	if err := l.Validate(); err != nil {
		t.Error(err)
	}
}

// manyPorts are 10,000 Service ports with 10 endpoints each.
func manyPorts() map[k8s.PortName]*k8s.ServicePort {
	ports := map[k8s.PortName]*k8s.ServicePort{}
	for i := range 10_000 {
		sp := shape{Name: fmt.Sprint("s", i), Cluster: 10, VIP: i, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
		ports[sp.Name] = sp
	}
	return ports
}

func BenchmarkCompile10000Services(b *testing.B) {
	ports := manyPorts()
	for b.Loop() {
		c, _ := NewCompiler(testConfig())
		c.Update(ports)
	}
}

// One endpoint changes among 10,000 Services.
func BenchmarkOneEndpoint(b *testing.B) {
	c, _ := NewCompiler(testConfig())
	c.Update(manyPorts())
	var states [2]*k8s.ServicePort
	for i := range states {
		states[i] = shape{Name: "s7", Cluster: 9 + i, VIP: 7, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		sp := states[i%2]
		if d := c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: sp}); len(d.SetGroups) != 1 {
			b.Fatalf("%+v", d)
		}
	}
}

// What a start of many Services allocates for each: the keys that tell flows apart are not among it.
func TestCompileAllocations(t *testing.T) {
	sp := shape{Name: "web", Cluster: 5, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	for i := range sp.ClusterEndpoints { // each with a guard of its own
		e := &sp.ClusterEndpoints[i].Addr
		*e = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 1}), e.Port())
	}
	c := compile(t, testConfig(), sp)
	p := c.ports[sp.Name]
	var o objects
	n := testing.AllocsPerRun(100, func() { o = c.compilePort(p) })
	if most := 47.0; n > most || len(o.flows) != 4 || len(o.shared) != 6 {
		t.Errorf("%v allocations for %d flows and %d shared ones, want %v at most", n, len(o.flows), len(o.shared), most)
	}
}
