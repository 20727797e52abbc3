package rules

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt")

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

func (s shape) servicePort() *k8s.ServicePort {
	v6 := s.family == k8s.IPv6
	at := func(net, host int) netip.Addr {
		if v6 {
			return netip.MustParseAddr(fmt.Sprintf("fd00:%x::%x", net, host))
		}
		return netip.MustParseAddr(fmt.Sprintf("%d.0.0.%d", net, host))
	}
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
		e := k8s.Endpoint{Addr: netip.AddrPortFrom(at(10, 11+i), 80), Local: i < s.local}
		sp.ClusterEndpoints = append(sp.ClusterEndpoints, e)
		if e.Local {
			sp.LocalEndpoints = append(sp.LocalEndpoints, e)
		}
	}
	for _, t := range s.types {
		f := k8s.Frontend{Type: t, Port: 80, Policy: s.external, WhenEmpty: k8s.Reject}
		switch t {
		case k8s.ClusterIP:
			f.Address, f.Policy = at(40, 1), s.internal
		case k8s.ExternalIP:
			f.Address = at(30, 1)
		case k8s.LoadBalancer:
			f.Address, f.SourceRanges = at(20, 1), s.ranges
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

// shapes are the kinds of Service port, with the number of chains and rules that each adds; a number that grows shows
// here. With N endpoints in force a plain NodePort Service adds 2+N chains and 6+3N rules. One of them (the last + 1) is
// nkp's own: it refuses the other ports of the ClusterIP, which kube-proxy does in nftables mode only.
//
// The account that is often given, 2+2+(1+2)N rules and 1+N chains, is that of old kube-proxies: a jump and a mark rule
// each in KUBE-SERVICES and KUBE-NODEPORTS, one rule for each endpoint in KUBE-SVC, two in KUBE-SEP. Since then the mark
// rules have moved behind the jumps. The ClusterIP's is in KUBE-SVC; the NodePort's is in a chain KUBE-EXT of its own,
// which external IPs and load balancers share, and which needs a jump on to KUBE-SVC: one chain and one rule more.
// Beyond the first such frontend, each costs one rule instead of two.
var shapes = []struct {
	shape
	chains, rules int
}{
	{shape{name: "clusterip", cluster: 3, types: inside}, 1 + 3, 1 + 1 + 3*3 + 1},
	{shape{name: "clusterip-one", cluster: 1, types: inside}, 1 + 1, 1 + 1 + 3 + 1},
	{shape{name: "clusterip-ipv6", cluster: 3, family: k8s.IPv6, types: inside}, 1 + 3, 1 + 1 + 3*3 + 1},
	{shape{name: "clusterip-udp", cluster: 2, protocol: "UDP", types: inside}, 1 + 2, 1 + 1 + 3*2 + 1},
	{shape{name: "clusterip-sctp", cluster: 2, protocol: "SCTP", types: inside}, 1 + 2, 1 + 1 + 3*2 + 1},
	{shape{name: "no-endpoints", types: all}, 0, 4 + 1}, // one REJECT for each frontend
	{shape{name: "internal-local", cluster: 3, local: 1, internal: k8s.Local, types: inside}, 1 + 1, 1 + 1 + 3 + 1},
	{shape{name: "internal-local-none-here", cluster: 3, internal: k8s.Local, types: inside}, 0, 1 + 1},
	{shape{name: "nodeport", cluster: 3, types: nodePort}, 2 + 3, 5 + 3*3 + 1},
	{shape{name: "nodeport-restricted", cluster: 3, types: nodePort, nodePortAt: netip.MustParseAddr("172.16.0.2")}, 2 + 3, 5 + 3*3 + 1},
	{shape{name: "nodeport-affinity", cluster: 3, types: nodePort, affinity: 10800}, 2 + 3, 5 + 4*3 + 1},
	{shape{name: "all-frontends", cluster: 3, local: 2, types: all}, 2 + 3, 2 + 2 + 3 + 3*3 + 1},
	// KUBE-EXT sends pods and the node to KUBE-SVC, all others to KUBE-SVL: 4 rules; the local endpoint has a chain once.
	{shape{name: "external-local", cluster: 3, local: 1, external: k8s.Local, types: all}, 3 + 3, 2 + 4 + 3 + 3*3 + 1 + 1},
	// 3 of the 4 frontends have a DROP each.
	{shape{name: "external-local-none-here", cluster: 3, external: k8s.Local, types: all}, 2 + 3, 2 + 3 + 3 + 3*3 + 3 + 1},
	// KUBE-FW: a rule for each range, one for the load balancer's own address since a range covers the node, one remark;
	// and the DROP for the others.
	{shape{name: "source-ranges", cluster: 2, types: all[2:3], ranges: prefixes("192.168.0.0/24", "172.16.0.0/16")}, 3 + 2, 1 + 2 + 4 + 1 + 3*2},
	{shape{name: "affinity-ipv6", cluster: 2, family: k8s.IPv6, affinity: 60, types: inside}, 1 + 2, 1 + 1 + 4*2 + 1},
}

// The rules of each shape, as nkp plan -o iptables prints them. Run with -update after a change that is meant.
func TestShapes(t *testing.T) {
	for _, tc := range shapes {
		t.Run(tc.name, func(t *testing.T) {
			sp := tc.servicePort()
			m := testModel()
			m.Ports[sp.Name] = sp
			c := NewCompiler(DefaultConfig(), sp.Name.Family, m)
			s := c.Service(sp)
			rules := len(s.SharedRules)
			for _, l := range s.SharedRules {
				if l.Last { // shared by all NodePorts
					rules--
				}
			}
			for _, chain := range s.Chains {
				rules += len(chain.Rules)
			}
			if len(s.Chains) != tc.chains || rules != tc.rules {
				t.Errorf("%d chains, %d rules; pinned are %d, %d", len(s.Chains), rules, tc.chains, tc.rules)
			}
			checkGolden(t, tc.name, c.Ruleset(m).String())
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
		"set-keep-invalid":     func(c *Config, _ *k8s.Model) { c.KeepInvalid, c.RandomFully = true, false },
		"set-brief":            func(c *Config, _ *k8s.Model) { c.BriefEndpoints = true },
		"set-host":             func(c *Config, _ *k8s.Model) { c.Scope, c.PodDevice = Host, "br-int" },
		"set-host-by-cidr":     func(c *Config, _ *k8s.Model) { c.Scope = Host },
		"set-own":              func(c *Config, _ *k8s.Model) { c.Scope, c.MasqueradeMin, c.MasqueradeMax = Own, 1024, 61439 },
		"set-bridge":           func(_ *Config, m *k8s.Model) { m.Detector = k8s.Detector{Bridge: "cni0"} },
		"set-interface-prefix": func(_ *Config, m *k8s.Model) { m.Detector = k8s.Detector{InterfacePrefix: "veth"} },
		"set-no-detector":      func(_ *Config, m *k8s.Model) { m.Detector = k8s.Detector{} },
		"set-service-cidr":     func(_ *Config, m *k8s.Model) { m.ServiceCIDRs = prefixes("40.0.0.0/24", "fd00:40::/112") },
		"set-shadowed":         func(_ *Config, m *k8s.Model) { m.Ports[sp.Name] = shadowed(sp) },
		"set-health-check": func(_ *Config, m *k8s.Model) {
			m.HealthChecks = map[k8s.ServiceName]k8s.HealthCheck{sp.Name.ServiceName: {Port: 32000, Local4: 1, Local6: -1}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, m := DefaultConfig(), testModel()
			m.Ports[sp.Name] = sp
			change(&c, m)
			if err := c.Validate(); err != nil {
				t.Fatal(err)
			}
			checkGolden(t, name, Plan(m, c))
		})
	}
}

// shadowed returns the Service port with all but the ClusterIP taken by another Service.
func shadowed(sp *k8s.ServicePort) *k8s.ServicePort {
	s := *sp
	s.Frontends = append([]k8s.Frontend{}, sp.Frontends...)
	for i := range s.Frontends[1:] {
		s.Frontends[i+1].ShadowedBy = "default/older:p"
	}
	return &s
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
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
