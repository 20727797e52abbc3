package k8s

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// The rows of docs/semantics.md that decide a route: by type of frontend, policy, endpoints, what recognizes pods, and --masquerade-all.
// A route is written as the set of endpoints, with "+" if the client is masqueraded; or as what happens where the set is empty.
func TestRoutes(t *testing.T) {
	here := Endpoint{Addr: netip.MustParseAddrPort("10.0.0.11:80"), Local: true}
	there := Endpoint{Addr: netip.MustParseAddrPort("10.0.1.11:80")}
	known := Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}
	for _, tc := range []struct {
		name               string
		kind               FrontendType
		policy             Policy
		cluster, local     []Endpoint
		detector           Detector
		all                bool
		outside, pod, node string
	}{
		{"a cluster IP", ClusterIP, Cluster, []Endpoint{here, there}, []Endpoint{here}, known, false, "anywhere+", "anywhere", "anywhere+"},
		{"a cluster IP, pods are not recognized", ClusterIP, Cluster, []Endpoint{here, there}, nil, Detector{}, false, "anywhere", "anywhere", "anywhere"},
		{"a cluster IP, masquerade all", ClusterIP, Cluster, []Endpoint{there}, nil, known, true, "anywhere+", "anywhere+", "anywhere+"},
		{"a cluster IP, masquerade all, pods are not recognized", ClusterIP, Cluster, []Endpoint{there}, nil, Detector{}, true, "anywhere+", "anywhere+", "anywhere+"},
		{"a cluster IP of internal policy Local", ClusterIP, Local, []Endpoint{here, there}, []Endpoint{here}, known, false, "node+", "node", "node+"},
		{"no endpoint here", ClusterIP, Local, []Endpoint{there}, nil, known, false, "drop", "drop", "drop"},
		{"no endpoint", ClusterIP, Cluster, nil, nil, known, false, "reject", "reject", "reject"},
		{"no endpoint, internal policy Local", ClusterIP, Local, nil, nil, known, false, "reject", "reject", "reject"},

		{"a NodePort", NodePort, Cluster, []Endpoint{here, there}, []Endpoint{here}, known, false, "anywhere+", "anywhere+", "anywhere+"},
		{"an external IP, pods are not recognized", ExternalIP, Cluster, []Endpoint{there}, nil, Detector{}, false, "anywhere+", "anywhere+", "anywhere+"},
		{"a load balancer without endpoints", LoadBalancer, Cluster, nil, nil, known, false, "reject", "reject", "reject"},
		{"external policy Local", NodePort, Local, []Endpoint{here, there}, []Endpoint{here}, known, false, "node", "anywhere", "anywhere+"},
		{"external policy Local, pods are not recognized", LoadBalancer, Local, []Endpoint{here, there}, []Endpoint{here}, Detector{}, false, "node", "node", "anywhere+"},
		{"external policy Local, masquerade all", ExternalIP, Local, []Endpoint{here, there}, []Endpoint{here}, known, true, "node", "anywhere", "anywhere+"},
		{"external policy Local, no endpoint here", LoadBalancer, Local, []Endpoint{there}, nil, known, false, "drop", "anywhere", "anywhere+"},
		{"external policy Local, an endpoint here that is left out by topology", LoadBalancer, Local, nil, []Endpoint{here}, known, false, "node", "reject", "reject"},
		{"external policy Local, no endpoint", NodePort, Local, nil, nil, known, false, "reject", "reject", "reject"},
	} {
		f := Frontend{Type: tc.kind, Policy: tc.policy}
		sp := &ServicePort{Name: PortName{Family: IPv4}, ClusterEndpoints: tc.cluster, LocalEndpoints: tc.local}
		r := Router{Detector: tc.detector, MasqueradeAll: tc.all}
		routes := r.Routes(sp, &f)
		for kind, want := range []string{Outside: tc.outside, Pod: tc.pod, ThisNode: tc.node} {
			if got := routeText(routes[kind]); got != want {
				t.Errorf("%s: %v: %s, want %s", tc.name, ClientKind(kind), got, want)
			}
		}
		for _, set := range Sets {
			if want := slices.ContainsFunc(routes[:], func(r Route) bool {
				return strings.HasPrefix(routeText(r), [...]string{"anywhere", "node"}[set])
			}); routes.Reach(set) != want {
				t.Errorf("%s: reaches set %d: %v", tc.name, set, !want)
			}
		}
	}
}

func routeText(r Route) string {
	text := [...]string{"anywhere", "node"}[r.Set]
	if r.Masquerade {
		text += "+"
	}
	if r.Empty != "" {
		text = string(r.Empty)
	}
	return text
}

// Only clients from outside have the consistent choice, and only at its address.
func TestConsistentRoute(t *testing.T) {
	at, other := netip.MustParseAddr("20.0.0.1"), netip.MustParseAddr("20.0.0.2")
	sp := &ServicePort{Name: PortName{Family: IPv4}, Consistent: &Consistent{Address: at}}
	for _, tc := range []struct {
		address netip.Addr
		want    bool
	}{{at, true}, {other, false}, {netip.Addr{}, false}} {
		routes := (&Router{}).Routes(sp, &Frontend{Type: LoadBalancer, Address: tc.address, Policy: Cluster})
		if routes[Outside].Consistent != tc.want || routes[Pod].Consistent || routes[ThisNode].Consistent {
			t.Errorf("%v: %+v", tc.address, routes)
		}
	}
}

func TestRouterServes(t *testing.T) {
	local := netip.MustParseAddr("172.16.0.2")
	loopback, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("20.0.0.1")
	for _, tc := range []struct {
		name  string
		f     Frontend
		own   []netip.Addr
		loops bool
		want  bool
	}{
		{"a cluster IP", Frontend{Type: ClusterIP, Address: other}, nil, false, true},
		{"one that another Service has", Frontend{Type: ClusterIP, Address: other, ShadowedBy: "default/web"}, nil, false, false},
		{"a NodePort at a loopback address", Frontend{Type: NodePort, Address: loopback}, nil, false, false},
		{"a NodePort at a loopback address that is served", Frontend{Type: NodePort, Address: loopback}, nil, true, true},
		{"own addresses: a NodePort", Frontend{Type: NodePort}, []netip.Addr{local}, false, true},
		{"own addresses: an external IP", Frontend{Type: ExternalIP, Address: local}, []netip.Addr{local}, false, true},
		{"own addresses: an address of another", Frontend{Type: LoadBalancer, Address: other}, []netip.Addr{local}, false, false},
		{"own addresses: a cluster IP", Frontend{Type: ClusterIP, Address: local}, []netip.Addr{local}, false, false},
		{"own addresses, of which there are none", Frontend{Type: ExternalIP, Address: local}, []netip.Addr{}, false, false},
	} {
		if got := (&Router{Own: tc.own, Loopback: tc.loops}).Serves(&tc.f); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

func TestClients(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("172.16.0.0/24"), netip.MustParsePrefix("198.51.100.0/24")}
	f := Frontend{Type: LoadBalancer, Address: netip.MustParseAddr("20.0.0.1"), SourceRanges: ranges}
	for node, want := range map[string]int{"172.16.0.2": 3, "172.16.1.2": 2} {
		r := Router{NodeIPs: []netip.Addr{netip.MustParseAddr(node)}}
		got := r.Clients(&f)
		if len(got) != want || !slices.Equal(got[:2], ranges) || want == 3 && got[2] != netip.MustParsePrefix("20.0.0.1/32") {
			t.Errorf("node %s: %v", node, got)
		}
	}
	if got := (&Router{}).Clients(&Frontend{}); len(got) != 0 {
		t.Errorf("without ranges: %v", got)
	}
}
