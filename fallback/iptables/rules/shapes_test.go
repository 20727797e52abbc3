package rules

import (
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

// kinds are the kinds of Service port, with the number of chains and rules that each adds; a number that grows shows
// here. With N endpoints in force a plain NodePort Service adds 2+N chains and 6+3N rules. One of them (the last + 1) is
// nkp's own: it refuses the other ports of the ClusterIP, which kube-proxy does in nftables mode only.
//
// The account that is often given, 2+2+(1+2)N rules and 1+N chains, is that of old kube-proxies: a jump and a mark rule
// each in KUBE-SERVICES and KUBE-NODEPORTS, one rule for each endpoint in KUBE-SVC, two in KUBE-SEP. Since then the mark
// rules have moved behind the jumps. The ClusterIP's is in KUBE-SVC; the NodePort's is in a chain KUBE-EXT of its own,
// which external IPs and load balancers share, and which needs a jump on to KUBE-SVC: one chain and one rule more.
// Beyond the first such frontend, each costs one rule instead of two.
var kinds = []struct {
	shape
	chains, rules int
}{
	{shape{Name: "clusterip", Cluster: 3, Types: inside}, 1 + 3, 1 + 1 + 3*3 + 1},
	{shape{Name: "clusterip-one", Cluster: 1, Types: inside}, 1 + 1, 1 + 1 + 3 + 1},
	{shape{Name: "clusterip-ipv6", Cluster: 3, Family: k8s.IPv6, Types: inside}, 1 + 3, 1 + 1 + 3*3 + 1},
	{shape{Name: "clusterip-udp", Cluster: 2, Protocol: "UDP", Types: inside}, 1 + 2, 1 + 1 + 3*2 + 1},
	{shape{Name: "clusterip-sctp", Cluster: 2, Protocol: "SCTP", Types: inside}, 1 + 2, 1 + 1 + 3*2 + 1},
	{shape{Name: "no-endpoints", Types: all}, 0, 4 + 1}, // one REJECT for each frontend
	{shape{Name: "internal-local", Cluster: 3, Local: 1, Internal: k8s.Local, Types: inside}, 1 + 1, 1 + 1 + 3 + 1},
	{shape{Name: "internal-local-none-here", Cluster: 3, Internal: k8s.Local, Types: inside}, 0, 1 + 1},
	{shape{Name: "nodeport", Cluster: 3, Types: nodePort}, 2 + 3, 5 + 3*3 + 1},
	{shape{Name: "nodeport-restricted", Cluster: 3, Types: nodePort, NodePortAt: netip.MustParseAddr("172.16.0.2")}, 2 + 3, 5 + 3*3 + 1},
	{shape{Name: "nodeport-affinity", Cluster: 3, Types: nodePort, Affinity: 10800}, 2 + 3, 5 + 4*3 + 1},
	{shape{Name: "all-frontends", Cluster: 3, Local: 2, Types: all}, 2 + 3, 2 + 2 + 3 + 3*3 + 1},
	// KUBE-EXT sends pods and the node to KUBE-SVC, all others to KUBE-SVL: 4 rules; the local endpoint has a chain once.
	{shape{Name: "external-local", Cluster: 3, Local: 1, External: k8s.Local, Types: all}, 3 + 3, 2 + 4 + 3 + 3*3 + 1 + 1},
	// 3 of the 4 frontends have a DROP each.
	{shape{Name: "external-local-none-here", Cluster: 3, External: k8s.Local, Types: all}, 2 + 3, 2 + 3 + 3 + 3*3 + 3 + 1},
	// KUBE-FW: a rule for each range, one for the load balancer's own address since a range covers the node, one remark;
	// and the DROP for the others.
	{shape{Name: "source-ranges", Cluster: 2, Types: all[2:3], Ranges: shapes.Prefixes("192.168.0.0/24", "172.16.0.0/16")}, 3 + 2, 1 + 2 + 4 + 1 + 3*2},
	// A rule to reset for each frontend.
	{shape{Name: "removed-endpoints", Cluster: 2, Closes: true, Types: all, Ranges: shapes.Prefixes("192.168.0.0/24")}, 3 + 2, 5 + 2 + 2 + 3 + 2*2 + 1 + 4},
	{shape{Name: "removed-endpoints-none", Closes: true, Types: all}, 0, 4 + 1 + 4},
	// Other probabilities; with session affinity, the same as without weights.
	{shape{Name: "weights", Cluster: 3, Weights: []uint8{12, 6, 2}, Types: nodePort}, 2 + 3, 5 + 3*3 + 1},
	{shape{Name: "weights-affinity", Cluster: 3, Weights: []uint8{12, 6, 2}, Affinity: 60, Types: inside}, 1 + 3, 1 + 1 + 4*3 + 1},
	{shape{Name: "affinity-ipv6", Cluster: 2, Family: k8s.IPv6, Affinity: 60, Types: inside}, 1 + 2, 1 + 1 + 4*2 + 1},
}

// The rules of each shape, as nkp plan -o iptables prints them. Run with -update after a change that is meant.
func TestShapes(t *testing.T) {
	for _, tc := range kinds {
		t.Run(tc.Name, func(t *testing.T) {
			sp := tc.ServicePort()
			m := shapes.Model()
			m.Ports[sp.Name] = sp
			c := NewCompiler(serving.DefaultConfig(), sp.Name.Family, m)
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
			golden.Check(t, "testdata/"+tc.Name+".txt", c.Ruleset(m).String())
		})
	}
}

// What other settings change, in one text each.
func TestSettings(t *testing.T) {
	sp := shape{Name: "web", Cluster: 2, Local: 1, External: k8s.Local, Types: all}.ServicePort()
	for name, change := range map[string]func(*serving.Config, *k8s.Model){
		"set-bit-0":          func(c *serving.Config, _ *k8s.Model) { c.MasqueradeBit = 0 },
		"set-masquerade-all": func(c *serving.Config, _ *k8s.Model) { c.MasqueradeAll = true },
		"set-no-localhost":   func(c *serving.Config, _ *k8s.Model) { c.LocalhostNodePorts = false },
		"set-keep-invalid":   func(c *serving.Config, _ *k8s.Model) { c.KeepInvalid, c.RandomFully = true, false },
		"set-brief":          func(c *serving.Config, _ *k8s.Model) { c.BriefEndpoints = true },
		"set-host":           func(c *serving.Config, _ *k8s.Model) { c.Scope, c.PodDevice = serving.Host, "br-int" },
		"set-answer-ping":    func(c *serving.Config, _ *k8s.Model) { c.AnswerPing = true },
		"set-host-by-cidr":   func(c *serving.Config, _ *k8s.Model) { c.Scope = serving.Host },
		"set-own": func(c *serving.Config, _ *k8s.Model) {
			c.Scope, c.MasqueradeMin, c.MasqueradeMax = serving.Own, 1024, 61439
		},
		"set-bridge":           func(_ *serving.Config, m *k8s.Model) { m.Detector = k8s.Detector{Bridge: "cni0"} },
		"set-interface-prefix": func(_ *serving.Config, m *k8s.Model) { m.Detector = k8s.Detector{InterfacePrefix: "veth"} },
		"set-no-detector":      func(_ *serving.Config, m *k8s.Model) { m.Detector = k8s.Detector{} },
		"set-service-cidr": func(_ *serving.Config, m *k8s.Model) {
			m.ServiceCIDRs = shapes.Prefixes("40.0.0.0/24", "fd00:40::/112")
		},
		"set-shadowed": func(_ *serving.Config, m *k8s.Model) { m.Ports[sp.Name] = shadowed(sp) },
		"set-health-check": func(_ *serving.Config, m *k8s.Model) {
			m.HealthChecks = map[k8s.ServiceName]k8s.HealthCheck{sp.Name.ServiceName: {Port: 32000, Local4: 1, Local6: -1}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, m := serving.DefaultConfig(), shapes.Model()
			m.Ports[sp.Name] = sp
			change(&c, m)
			if err := c.Validate(); err != nil {
				t.Fatal(err)
			}
			golden.Check(t, "testdata/"+name+".txt", Plan(m, c))
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

// While ports of a Service are still to come, its ClusterIP refuses no other port.
func TestPartialServiceRefusesNothing(t *testing.T) {
	sp := shape{Name: "partial", Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	for _, sp.Partial = range []bool{true, false} {
		s := NewCompiler(serving.DefaultConfig(), k8s.IPv4, shapes.Model()).Service(sp)
		if refuses := slices.ContainsFunc(s.SharedRules, func(r SharedRule) bool { return r.Chain == ClusterIPs }); refuses == sp.Partial {
			t.Errorf("partial %t: refuses %t", sp.Partial, refuses)
		}
	}
}
