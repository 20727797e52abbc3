package nft

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

var update = flag.Bool("update", false, "rewrite testdata/*.nft")

// shape describes a Service port; servicePort makes it.
type shape struct {
	name               string
	protocol           k8s.Protocol
	family             k8s.Family
	cluster, local     int // endpoints
	types              []k8s.FrontendType
	external, internal k8s.Policy
	affinity           int
	ranges             []netip.Prefix
	nodePortAt         netip.Addr
}

// at returns an address of the shape's family.
func (s shape) at(net, host int) netip.Addr {
	if s.family == k8s.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:%d::%x", net, host))
	}
	return netip.AddrFrom4([4]byte{byte(net), 0, byte(host >> 8), byte(host)})
}

func (s shape) servicePort() *k8s.ServicePort {
	if s.protocol == "" {
		s.protocol = "TCP"
	}
	if s.family == 0 {
		s.family = k8s.IPv4
	}
	sp := &k8s.ServicePort{
		Name: k8s.PortName{
			ServiceName: k8s.ServiceName{Namespace: "default", Name: s.name}, Port: "p", Protocol: s.protocol, Family: s.family,
		},
		AffinitySeconds: s.affinity,
	}
	for i := range s.cluster {
		e := k8s.Endpoint{Addr: netip.AddrPortFrom(s.at(10, 11+i), 8080), Local: i < s.local}
		sp.ClusterEndpoints = append(sp.ClusterEndpoints, e)
		if e.Local {
			sp.LocalEndpoints = append(sp.LocalEndpoints, e)
		}
	}
	for _, t := range s.types {
		f := k8s.Frontend{Type: t, Port: 80, Policy: s.external, WhenEmpty: k8s.Reject}
		switch t {
		case k8s.ClusterIP:
			f.Address, f.Policy = s.at(40, 1), s.internal
		case k8s.ExternalIP:
			f.Address = s.at(30, 1)
		case k8s.LoadBalancer:
			f.Address, f.SourceRanges = s.at(20, 1), s.ranges
		case k8s.NodePort:
			f.Address, f.Port = s.nodePortAt, 30080
		}
		if f.Policy == "" {
			f.Policy = k8s.Cluster
		}
		if f.Policy == k8s.Local && s.cluster > 0 {
			f.WhenEmpty = k8s.Drop
		}
		sp.Frontends = append(sp.Frontends, f)
	}
	return sp
}

var (
	inside   = []k8s.FrontendType{k8s.ClusterIP}
	nodePort = []k8s.FrontendType{k8s.ClusterIP, k8s.NodePort}
	all      = []k8s.FrontendType{k8s.ClusterIP, k8s.ExternalIP, k8s.LoadBalancer, k8s.NodePort}
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

func testModel(cidrs ...string) *k8s.Model {
	return &k8s.Model{
		Node:     k8s.Node{Name: "n1", IPs: []netip.Addr{netip.MustParseAddr("172.16.0.2"), netip.MustParseAddr("fd00:ac::2")}},
		Detector: k8s.Detector{CIDRs: prefixes("10.0.0.0/16", "fd00:10::/32")}, ServiceCIDRs: prefixes(cidrs...),
		Ports: map[k8s.PortName]*k8s.ServicePort{},
	}
}

func testConfig() Config { return Config{Config: rules.DefaultConfig()} }

// shapes are the kinds of Service port, with what each adds to a table; a number that grows shows here. With N endpoints a ClusterIP
// adds 4+2N elements: the frontend, its spread, its address, and for each endpoint a slot and its address; and another frontend 2+N.
// Chains are session affinity's alone; those that pick among N endpoints are shared.
var shapes = []struct {
	shape
	elements, sets, chains int
}{
	{shape{name: "clusterip", cluster: 3, types: inside}, 3 + 2*3, 0, 0},
	{shape{name: "clusterip-one", cluster: 1, types: inside}, 3 + 2*1, 0, 0},
	{shape{name: "clusterip-ipv6", cluster: 3, family: k8s.IPv6, types: inside}, 3 + 2*3, 0, 0},
	{shape{name: "clusterip-udp", cluster: 2, protocol: "UDP", types: inside}, 3 + 2*2, 0, 0},
	{shape{name: "clusterip-sctp", cluster: 2, protocol: "SCTP", types: inside}, 3 + 2*2, 0, 0},
	{shape{name: "wide", cluster: 1000, types: inside}, 3 + 2*1000, 0, 0},
	{shape{name: "no-endpoints", types: all}, 4 + 1, 0, 0}, // each frontend is refused; the ClusterIP's other ports
	{shape{name: "internal-local", cluster: 3, local: 1, internal: k8s.Local, types: inside}, 3 + 1 + 3, 0, 0},
	{shape{name: "internal-local-none-here", cluster: 3, internal: k8s.Local, types: inside}, 1 + 1, 0, 0},
	{shape{name: "nodeport", cluster: 3, types: nodePort}, 2*(2+3) + 1 + 3, 0, 0},
	{shape{name: "nodeport-restricted", cluster: 3, types: nodePort, nodePortAt: netip.MustParseAddr("172.16.0.2")}, 2*(2+3) + 1 + 3, 0, 0},
	// Two elements more for each frontend: where the client's endpoint is found, and where it is recorded.
	{shape{name: "nodeport-affinity", cluster: 3, types: nodePort, affinity: 10800}, 2*(2+3) + 1 + 3 + 2*2, 1, 2},
	{shape{name: "all-frontends", cluster: 3, local: 2, types: all}, 4*(2+3) + 1 + 3, 0, 0},
	// 3 of the 4 frontends have a spread and the slots of the local endpoint besides.
	{shape{name: "external-local", cluster: 3, local: 1, external: k8s.Local, types: all}, 4*(2+3) + 3*(1+1) + 1 + 3, 0, 0},
	{shape{name: "external-local-none-here", cluster: 3, external: k8s.Local, types: all}, 4*(2+3) + 3 + 1 + 3, 0, 0},
	{shape{name: "external-local-affinity", cluster: 3, local: 1, external: k8s.Local, types: nodePort, affinity: 60},
		2*(2+3) + 1 + 1 + 1 + 3 + 2 + 3, 2, 5},
	// The ranges, and the load balancer's own address since a range covers the node; what is refused besides.
	{shape{name: "source-ranges", cluster: 2, types: all[2:3], ranges: prefixes("192.168.0.0/24", "192.168.0.7/32", "172.16.0.0/16")}, 2 + 2 + 2 + 3 + 1, 0, 0},
	{shape{name: "affinity-ipv6", cluster: 2, family: k8s.IPv6, affinity: 60, types: inside}, 3 + 2*2 + 2, 1, 2},
}

// The table of each shape, as nkp plan -o nft prints it. Run with -update after a change that is meant.
func TestShapes(t *testing.T) {
	for _, tc := range shapes {
		t.Run(tc.name, func(t *testing.T) {
			sp := tc.servicePort()
			m := testModel()
			m.Ports[sp.Name] = sp
			c := NewCompiler(testConfig(), sp.Name.Family, m)
			s := c.Service(sp, AssignPorts(Ports{}, sp))
			if n := len(s.Elements) + len(s.Shared); n != tc.elements || len(s.Affinity.Sets) != tc.sets || len(s.Affinity.Chains) != tc.chains {
				t.Errorf("%d elements, %d sets, %d chains; pinned are %d, %d, %d", n, len(s.Affinity.Sets), len(s.Affinity.Chains), tc.elements, tc.sets, tc.chains)
			}
			if tc.cluster < 100 {
				checkGolden(t, tc.name, c.Ruleset(m, nil).String())
			}
		})
	}
}

// What other settings change, in one text each.
func TestSettings(t *testing.T) {
	sp := shape{name: "web", cluster: 2, local: 1, external: k8s.Local, types: all}.servicePort()
	for name, change := range map[string]func(*Config, *k8s.Model){
		"set-bit-0":            func(c *Config, _ *k8s.Model) { c.MasqueradeBit = 0 },
		"set-masquerade-all":   func(c *Config, _ *k8s.Model) { c.MasqueradeAll = true },
		"set-no-localhost":     func(c *Config, _ *k8s.Model) { c.LocalhostNodePorts = false },
		"set-keep-invalid":     func(c *Config, _ *k8s.Model) { c.KeepInvalid = true },
		"set-traffic":          func(c *Config, _ *k8s.Model) { c.CountTraffic = true }, // two elements more for each frontend
		"set-flowtable":        func(c *Config, _ *k8s.Model) { c.FlowtableDevices = []string{"eth0", "veth*"} },
		"set-host":             func(c *Config, _ *k8s.Model) { c.Scope, c.PodDevice = rules.Host, "br-int" },
		"set-own":              func(c *Config, _ *k8s.Model) { c.Scope, c.MasqueradeMin, c.MasqueradeMax = rules.Own, 1024, 61439 },
		"set-bridge":           func(_ *Config, m *k8s.Model) { m.Detector = k8s.Detector{Bridge: "cni0"} },
		"set-interface-prefix": func(_ *Config, m *k8s.Model) { m.Detector = k8s.Detector{InterfacePrefix: "veth"} },
		"set-no-detector":      func(_ *Config, m *k8s.Model) { m.Detector = k8s.Detector{} },
		"set-service-cidr":     func(_ *Config, m *k8s.Model) { m.ServiceCIDRs = prefixes("40.0.0.0/24", "fd00:40::/112") },
	} {
		t.Run(name, func(t *testing.T) {
			c, m := testConfig(), testModel()
			m.Ports[sp.Name] = sp
			change(&c, m)
			checkGolden(t, name, NewCompiler(c, k8s.IPv4, m).Ruleset(m, nil).String())
		})
	}
}

// A frontend that an older Service has claimed is left out.
func TestShadowed(t *testing.T) {
	sp := shape{name: "web", cluster: 2, types: inside}.servicePort()
	sp.Frontends[0].ShadowedBy = "default/older:p"
	m := testModel()
	c := NewCompiler(testConfig(), k8s.IPv4, m)
	if s := c.Service(sp, AssignPorts(Ports{}, sp)); len(s.Elements)+len(s.Shared)+len(s.Chains) != 0 {
		t.Errorf("%+v", s)
	}
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".nft")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// One endpoint more or less changes as many elements as the Service has frontends, twice at most, however many endpoints there are.
func TestOneEndpointIsAFewElements(t *testing.T) {
	for _, n := range []int{2, 10, 100, 1000, 20_000} {
		before := shape{name: "web", cluster: n, types: nodePort}.servicePort()
		m := testModel()
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
	for _, s := range shapes {
		sp := s.servicePort()
		c := NewCompiler(testConfig(), sp.Name.Family, testModel())
		slots := AssignPorts(Ports{}, sp)
		slices.Reverse(slots.Cluster)
		slices.Reverse(slots.Local)
		installed := c.Service(sp, slots).Elements
		if got := c.Service(sp, AssignPorts(c.Adopt(installed, sp), sp)).Elements; !maps.Equal(got, installed) {
			t.Errorf("%s: %d elements differ", s.name, different(installed, got))
		}
	}
}
