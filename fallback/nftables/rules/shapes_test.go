package rules

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/golden"
	"github.com/nkp-proxy/nkp/test/shapes"
)

type shape = shapes.Shape

var all, inside, nodePort = shapes.All, shapes.Inside, shapes.NodePort

func testConfig() Config { return Config{Config: serving.DefaultConfig()} }

// kinds are the kinds of Service port, with what each adds to a table; a number that grows shows here. With N endpoints a ClusterIP
// adds 4+2N elements: the frontend, its spread, its address, and for each endpoint a slot and its address; and another frontend 2+N.
// Chains are session affinity's alone; those that pick among N endpoints are shared.
var kinds = []struct {
	shape
	elements, sets, chains int
}{
	{shape{Name: "clusterip", Cluster: 3, Types: inside}, 3 + 2*3, 0, 0},
	{shape{Name: "clusterip-one", Cluster: 1, Types: inside}, 3 + 2*1, 0, 0},
	{shape{Name: "clusterip-ipv6", Cluster: 3, Family: k8s.IPv6, Types: inside}, 3 + 2*3, 0, 0},
	{shape{Name: "clusterip-udp", Cluster: 2, Protocol: "UDP", Types: inside}, 3 + 2*2, 0, 0},
	{shape{Name: "clusterip-sctp", Cluster: 2, Protocol: "SCTP", Types: inside}, 3 + 2*2, 0, 0},
	{shape{Name: "wide", Cluster: 1000, Types: inside}, 3 + 2*1000, 0, 0},
	{shape{Name: "no-endpoints", Types: all}, 4 + 1, 0, 0}, // each frontend is refused; the ClusterIP's other ports
	{shape{Name: "internal-local", Cluster: 3, Local: 1, Internal: k8s.Local, Types: inside}, 3 + 1 + 3, 0, 0},
	{shape{Name: "internal-local-none-here", Cluster: 3, Internal: k8s.Local, Types: inside}, 1 + 1, 0, 0},
	{shape{Name: "nodeport", Cluster: 3, Types: nodePort}, 2*(2+3) + 1 + 3, 0, 0},
	{shape{Name: "nodeport-restricted", Cluster: 3, Types: nodePort, NodePortAt: netip.MustParseAddr("172.16.0.2")}, 2*(2+3) + 1 + 3, 0, 0},
	// Two elements more for each frontend: where the client's endpoint is found, and where it is recorded.
	{shape{Name: "nodeport-affinity", Cluster: 3, Types: nodePort, Affinity: 10800}, 2*(2+3) + 1 + 3 + 2*2, 1, 2},
	{shape{Name: "all-frontends", Cluster: 3, Local: 2, Types: all}, 4*(2+3) + 1 + 3, 0, 0},
	// 3 of the 4 frontends have a spread and the slots of the local endpoint besides.
	{shape{Name: "external-local", Cluster: 3, Local: 1, External: k8s.Local, Types: all}, 4*(2+3) + 3*(1+1) + 1 + 3, 0, 0},
	{shape{Name: "external-local-none-here", Cluster: 3, External: k8s.Local, Types: all}, 4*(2+3) + 3 + 1 + 3, 0, 0},
	{shape{Name: "external-local-affinity", Cluster: 3, Local: 1, External: k8s.Local, Types: nodePort, Affinity: 60},
		2*(2+3) + 1 + 1 + 1 + 3 + 2 + 3, 2, 5},
	// The ranges, and the load balancer's own address since a range covers the node; what is refused besides.
	{shape{Name: "source-ranges", Cluster: 2, Types: all[2:3], Ranges: shapes.Prefixes("192.168.0.0/24", "192.168.0.7/32", "172.16.0.0/16")}, 2 + 2 + 2 + 3 + 1, 0, 0},
	{shape{Name: "removed-endpoints", Cluster: 2, Closes: true, Types: all, Ranges: shapes.Prefixes("192.168.0.0/24")}, 4*(2+2) + 1 + 2 + 2 + 4, 0, 0},
	// Ten slots for each frontend instead of three.
	{shape{Name: "weights", Cluster: 3, Weights: []uint8{12, 6, 2}, Types: nodePort}, 2*(2+10) + 1 + 3, 0, 0},
	{shape{Name: "weights-affinity", Cluster: 3, Weights: []uint8{12, 6, 2}, Affinity: 60, Types: inside}, 3 + 2*3 + 2, 1, 2},
	{shape{Name: "affinity-ipv6", Cluster: 2, Family: k8s.IPv6, Affinity: 60, Types: inside}, 3 + 2*2 + 2, 1, 2},
}

// The table of each shape, as nkp plan -o nft prints it. Run with -update after a change that is meant.
func TestShapes(t *testing.T) {
	for _, tc := range kinds {
		t.Run(tc.Name, func(t *testing.T) {
			sp := tc.ServicePort()
			m := shapes.Model()
			m.Ports[sp.Name] = sp
			c := NewCompiler(testConfig(), sp.Name.Family, m)
			s := c.Service(sp, AssignPorts(Ports{}, sp))
			if n := len(s.Elements) + len(s.Shared); n != tc.elements || len(s.Own.Sets) != tc.sets || len(s.Own.Chains) != tc.chains {
				t.Errorf("%d elements, %d sets, %d chains; pinned are %d, %d, %d", n, len(s.Own.Sets), len(s.Own.Chains), tc.elements, tc.sets, tc.chains)
			}
			if tc.Cluster < 100 {
				golden.Check(t, "testdata/"+tc.Name+".nft", c.Ruleset(m, nil).String())
			}
		})
	}
}

// What other settings change, in one text each.
func TestSettings(t *testing.T) {
	sp := shape{Name: "web", Cluster: 2, Local: 1, External: k8s.Local, Types: all}.ServicePort()
	for name, change := range map[string]func(*Config, *k8s.Model){
		"set-bit-0":            func(c *Config, _ *k8s.Model) { c.MasqueradeBit = 0 },
		"set-masquerade-all":   func(c *Config, _ *k8s.Model) { c.MasqueradeAll = true },
		"set-no-localhost":     func(c *Config, _ *k8s.Model) { c.LocalhostNodePorts = false },
		"set-keep-invalid":     func(c *Config, _ *k8s.Model) { c.KeepInvalid = true },
		"set-traffic":          func(c *Config, _ *k8s.Model) { c.CountTraffic = true }, // two elements more for each frontend
		"set-flowtable":        func(c *Config, _ *k8s.Model) { c.FlowtableDevices = []string{"eth0", "veth*"} },
		"set-host":             func(c *Config, _ *k8s.Model) { c.Scope, c.PodDevice = serving.Host, "br-int" },
		"set-answer-ping":      func(c *Config, _ *k8s.Model) { c.AnswerPing = true },
		"set-own":              func(c *Config, _ *k8s.Model) { c.Scope, c.MasqueradeMin, c.MasqueradeMax = serving.Own, 1024, 61439 },
		"set-bridge":           func(_ *Config, m *k8s.Model) { m.Detector = k8s.Detector{Bridge: "cni0"} },
		"set-interface-prefix": func(_ *Config, m *k8s.Model) { m.Detector = k8s.Detector{InterfacePrefix: "veth"} },
		"set-no-detector":      func(_ *Config, m *k8s.Model) { m.Detector = k8s.Detector{} },
		"set-service-cidr":     func(_ *Config, m *k8s.Model) { m.ServiceCIDRs = shapes.Prefixes("40.0.0.0/24", "fd00:40::/112") },
	} {
		t.Run(name, func(t *testing.T) {
			c, m := testConfig(), shapes.Model()
			m.Ports[sp.Name] = sp
			change(&c, m)
			golden.Check(t, "testdata/"+name+".nft", NewCompiler(c, k8s.IPv4, m).Ruleset(m, nil).String())
		})
	}
}

// A frontend that an older Service has claimed is left out.
func TestShadowed(t *testing.T) {
	sp := shape{Name: "web", Cluster: 2, Types: inside}.ServicePort()
	sp.Frontends[0].ShadowedBy = "default/older:p"
	m := shapes.Model()
	c := NewCompiler(testConfig(), k8s.IPv4, m)
	if s := c.Service(sp, AssignPorts(Ports{}, sp)); len(s.Elements)+len(s.Shared)+len(s.Chains) != 0 {
		t.Errorf("%+v", s)
	}
}

// One endpoint more or less changes as many elements as the Service has frontends, twice at most, however many endpoints there are.
func TestOneEndpointIsAFewElements(t *testing.T) {
	for _, n := range []int{2, 10, 100, 1000, 20_000} {
		before := shape{Name: "web", Cluster: n, Types: nodePort}.ServicePort()
		m := shapes.Model()
		c := NewCompiler(testConfig(), k8s.IPv4, m)
		slots := AssignPorts(Ports{}, before)
		for _, gone := range []int{0, n / 2, n - 1} {
			after := *before
			after.ClusterEndpoints = slices.Delete(slices.Clone(before.ClusterEndpoints), gone, gone+1)
			a, b := c.Service(before, slots), c.Service(&after, AssignPorts(slots, &after))
			if d := different(a.Elements, b.Elements); d > 2*(2+1) { // a slot that moved, the last one, and perhaps the spread
				t.Errorf("%d endpoints without number %d: %d elements differ", n, gone, d)
			}
		}
	}
}

func different(a, b Elements) (n int) {
	for r, v := range a {
		if b[r] != v {
			n++
		}
	}
	for r := range b {
		if _, ok := a[r]; !ok {
			n++
		}
	}
	return n
}

// The endpoints that an installed table has in its slots keep them.
func TestAdopt(t *testing.T) {
	for _, s := range kinds {
		sp := s.ServicePort()
		c := NewCompiler(testConfig(), sp.Name.Family, shapes.Model())
		slots := AssignPorts(Ports{}, sp)
		slices.Reverse(slots[k8s.Anywhere])
		slices.Reverse(slots[k8s.OnNode])
		installed := c.Service(sp, slots).Elements
		if got := c.Service(sp, AssignPorts(c.Adopt(installed, sp), sp)).Elements; !maps.Equal(got, installed) {
			t.Errorf("%s: %d elements differ", s.Name, different(installed, got))
		}
	}
}

// A Service port with many addresses takes a sum of elements, not a product. Its endpoints keep their slots when it gets there, at an
// upgrade as well, and a change of one endpoint is the change of one frontend.
func TestSharedSlots(t *testing.T) {
	const addresses, endpoints = 1000, 1000
	few := shape{Name: "web", Cluster: endpoints, Local: 2, External: k8s.Local, Types: nodePort}.ServicePort()
	many := *few
	many.Frontends = slices.Clone(few.Frontends)
	for i := range addresses {
		many.Frontends = append(many.Frontends, k8s.Frontend{Type: k8s.ExternalIP, Address: netip.AddrFrom4([4]byte{30, 0, byte(i >> 8), byte(i)}),
			Port: 80, Policy: k8s.Local, WhenEmpty: k8s.Drop})
	}

	c := NewCompiler(testConfig(), k8s.IPv4, shapes.Model())
	slots := AssignPorts(Ports{}, few)
	slices.Reverse(slots[k8s.Anywhere])
	before := c.Service(few, slots).Elements
	adopted := AssignPorts(c.Adopt(before, &many), &many)
	if !slices.Equal(adopted[k8s.Anywhere], slots[k8s.Anywhere]) || !slices.Equal(adopted[k8s.OnNode], slots[k8s.OnNode]) {
		t.Error("endpoints of an address with slots of its own have others now")
	}
	s := c.Service(&many, adopted)
	if n, most := len(s.Elements)+len(s.Shared), 3*addresses+3*endpoints+20; n > most || len(s.Own.Chains) != 2 {
		t.Errorf("%d elements and %d chains, want up to %d and 2", n, len(s.Own.Chains), most)
	}
	for ref, v := range before {
		if now := s.Elements[ref]; now != v && ref.Set != Spread && ref.Set != SpreadLocal {
			t.Fatalf("%s changes", ref.Text(k8s.IPv4, v))
		}
	}
	if again := AssignPorts(c.Adopt(s.Elements, &many), &many); !slices.Equal(again[k8s.Anywhere], adopted[k8s.Anywhere]) {
		t.Error("endpoints of shared slots have others after a restart")
	}

	less := many
	less.ClusterEndpoints = many.ClusterEndpoints[:endpoints-1]
	if d := different(s.Elements, c.Service(&less, AssignPorts(adopted, &less)).Elements); d > 4 {
		t.Errorf("one endpoint less changes %d elements", d)
	}
}

// The kernel accepts no range within another, in whatever order they come.
func TestNestedSourceRanges(t *testing.T) {
	ranges := shapes.Prefixes("10.0.0.0/8", "10.0.0.0/16", "10.1.0.0/16", "11.0.0.0/8", "11.255.255.255/32", "12.0.0.0/32")
	sp := shape{Name: "nested", Cluster: 1, Types: all[2:3], Ranges: ranges}.ServicePort()
	s := NewCompiler(testConfig(), k8s.IPv4, shapes.Model()).Service(sp, AssignPorts(Ports{}, sp))
	var got []string
	for ref, v := range s.Elements {
		if ref.Set == SourceRanges {
			parts := Parts(k8s.IPv4, Sets[SourceRanges].Key, ref.Key)
			got = append(got, rangeText(parts[3], Parts(k8s.IPv4, Sets[SourceRanges].Key, v.End)[3]))
		}
	}
	slices.Sort(got)
	if want := []string{"10.0.0.0/8", "11.0.0.0/8", "12.0.0.0-12.0.0.0"}; !slices.Equal(got, want) {
		t.Errorf("ranges %v, want %v", got, want)
	}
}

// While ports of a Service are still to come, its ClusterIP refuses no other port.
func TestPartialServiceRefusesNothing(t *testing.T) {
	sp := shape{Name: "partial", Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	m := shapes.Model()
	m.ServiceCIDRs = nil
	for _, sp.Partial = range []bool{true, false} {
		s := NewCompiler(testConfig(), k8s.IPv4, m).Service(sp, AssignPorts(Ports{}, sp))
		if refuses := slices.ContainsFunc(s.Shared, func(r Ref) bool { return r.Set == ClusterIPs }); refuses == sp.Partial {
			t.Errorf("partial %t: refuses %t", sp.Partial, refuses)
		}
	}
}
