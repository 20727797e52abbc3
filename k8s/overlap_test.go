package k8s

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claimant makes a Service of an age in hours, with one TCP port 80.
func claimant(name, clusterIP string, age int, change ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.Time{Time: time.Unix(1e9, 0).Add(-time.Duration(age) * time.Hour)}},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}},
		},
	}
	if strings.Contains(clusterIP, ":") {
		s.Spec.IPFamilies[0] = v1.IPv6Protocol
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func withExternal(ip string) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, ip) }
}

func withIngress(ip string) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip})
	}
}

func withNodePort(port int32) func(*v1.Service) {
	return func(s *v1.Service) {
		if s.Spec.Type == v1.ServiceTypeClusterIP {
			s.Spec.Type = v1.ServiceTypeNodePort
		}
		s.Spec.Ports[0].NodePort = port
	}
}

func onPort(port int32) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.Ports[0].Port = port }
}

// shadowed lists the frontends that are not in force as "service type by owner", sorted.
func shadowed(m *Model) (list []string) {
	for n, p := range m.Ports {
		for i := range p.Frontends {
			if f := &p.Frontends[i]; f.ShadowedBy != "" {
				list = append(list, fmt.Sprintf("%s %s by %s", n.Name, f.Type, f.ShadowedBy))
			}
		}
	}
	slices.Sort(list)
	return list
}

// TestClusterIPsComeFirst has frontends of all types want one address and port, in every order of age and arrival.
func TestClusterIPsComeFirst(t *testing.T) {
	for _, c := range []struct {
		name   string
		a, b   *v1.Service // a gets it
		opts   Options
		lost   string
		reason string
	}{
		{"an older externalIP", claimant("web", "40.0.0.1", 1), claimant("old", "40.0.0.2", 9, withExternal("40.0.0.1")), Options{},
			"old ExternalIP by default/web", "whose cluster IP it is"},
		{"a younger externalIP", claimant("web", "40.0.0.1", 9), claimant("new", "40.0.0.2", 1, withExternal("40.0.0.1")), Options{},
			"new ExternalIP by default/web", "whose cluster IP it is"},
		{"an older externalIP, IPv6", claimant("web", "fd00:40::1", 1), claimant("old", "fd00:40::2", 9, withExternal("fd00:40::1")), Options{},
			"old ExternalIP by default/web", "whose cluster IP it is"},
		{"an older load balancer's address", claimant("web", "40.0.0.1", 1), claimant("old", "40.0.0.2", 9, withIngress("40.0.0.1")), Options{},
			"old LoadBalancer by default/web", "whose cluster IP it is"},
		{"an older NodePort", claimant("web", "40.0.0.1", 1, onPort(30080)), claimant("old", "40.0.0.2", 9, withNodePort(30080)),
			Options{NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("40.0.0.1/32")}, LocalAddresses: []netip.Addr{netip.MustParseAddr("40.0.0.1")}},
			"old NodePort by default/web", "whose cluster IP it is"},
		{"an externalIP and an older NodePort", claimant("web", "40.0.0.1", 1, onPort(30080), withExternal("172.16.0.2")), claimant("old", "40.0.0.2", 9, withNodePort(30080)),
			Options{NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/24")}, LocalAddresses: []netip.Addr{netip.MustParseAddr("172.16.0.2")}},
			"old NodePort by default/web", "which names the address (ExternalIP)"},
		{"an older externalIP and a load balancer's address", claimant("old", "40.0.0.2", 9, withExternal("20.0.0.1")), claimant("web", "40.0.0.1", 1, withIngress("20.0.0.1")), Options{},
			"web LoadBalancer by default/old", "which is older"},
		{"an older load balancer's address and an externalIP", claimant("old", "40.0.0.2", 9, withIngress("20.0.0.1")), claimant("web", "40.0.0.1", 1, withExternal("20.0.0.1")), Options{},
			"web ExternalIP by default/old", "which is older"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, order := range [][]*v1.Service{{c.a, c.b}, {c.b, c.a}} {
				for _, atOnce := range []bool{true, false} {
					tr := NewTracker(c.opts)
					for _, s := range order {
						tr.SetService(s, Origin{})
						if !atOnce {
							tr.Flush()
						}
					}
					m, _ := tr.Flush()
					if got := shadowed(m); len(got) != 1 || got[0] != c.lost+":" && got[0] != c.lost {
						t.Errorf("%s first, at once %t: shadowed %q, want %q", order[0].Name, atOnce, got, c.lost)
					}
					if !slices.ContainsFunc(m.Warnings, func(w Warning) bool { return strings.Contains(w.Text, c.reason+": this frontend is not served") }) {
						t.Errorf("no warning says %q: %v", c.reason, m.Warnings)
					}
					tr.DeleteService(c.a.Namespace, c.a.Name)
					if m, _ := tr.Flush(); len(shadowed(m)) != 0 {
						t.Errorf("the owner is gone, and still: %q", shadowed(m))
					}
				}
			}
		})
	}
}

// TestOverlaps has addresses come to overlap others and cease to, by changes on either side.
func TestOverlaps(t *testing.T) {
	node := func(ips ...string) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		for _, ip := range ips {
			n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
		}
		return n
	}
	tr := NewTracker(Options{NodeName: "node-1"})
	check := func(when string, want ...string) {
		t.Helper()
		m, _ := tr.Flush()
		var got []string
		for _, w := range m.Warnings {
			if w.Event == EventOverlap {
				got = append(got, w.Object+" "+w.Field+": "+w.Text)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d warnings, want %d:\n%s", when, len(got), len(want), strings.Join(got, "\n"))
			return
		}
		for i, w := range want {
			if !strings.HasPrefix(got[i], w) {
				t.Errorf("%s: %s\nwant it to begin with %s", when, got[i], w)
			}
		}
	}
	set := func(s *v1.Service) { tr.SetService(s, Origin{}) }
	ranges := func(cidrs ...string) {
		tr.SetServiceCIDR(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}, Origin{})
	}
	tr.SetNode(node("172.16.0.2"), Origin{})
	set(claimant("ext", "40.0.0.9", 1, withExternal("40.0.0.1"), withExternal("172.16.0.3"), onPort(443)))
	set(claimant("lb", "40.0.0.8", 1, withIngress("40.0.0.2"), withIngress("172.16.0.3")))
	set(claimant("self", "40.0.0.7", 1, withExternal("40.0.0.7")))
	check("nothing overlaps")
	ranges("40.0.0.0/16")
	check("a Service range comes",
		"Service default/ext spec.externalIPs[0]: 40.0.0.1 is inside the Service range 40.0.0.0/16:",
		"Service default/lb status.loadBalancer.ingress[0].ip: 40.0.0.2 is inside the Service range 40.0.0.0/16:")
	set(claimant("web", "40.0.0.1", 1))
	set(claimant("web2", "40.0.0.2", 9))
	check("cluster IPs come",
		"Service default/ext spec.externalIPs[0]: 40.0.0.1 is the cluster IP of Service default/web.",
		"Service default/lb status.loadBalancer.ingress[0].ip: 40.0.0.2 is the cluster IP of Service default/web2.")
	tr.SetNode(node("172.16.0.3"), Origin{})
	check("the node gets an address: a load balancer may use it",
		"Service default/ext spec.externalIPs[0]: 40.0.0.1 is the cluster IP of Service default/web.",
		"Service default/ext spec.externalIPs[1]: 172.16.0.3 is an address of node node-1:",
		"Service default/lb status.loadBalancer.ingress[0].ip: 40.0.0.2 is the cluster IP of Service default/web2.")
	ranges()
	tr.SetNode(node("172.16.0.2"), Origin{})
	tr.DeleteService("default", "web")
	set(claimant("web2", "40.0.0.3", 9))
	check("all is gone again")
	if n, m := len(tr.addresses.cluster), len(tr.addresses.external); n != 4 || m != 4 {
		t.Errorf("%d cluster IPs and %d external addresses are remembered; want 4 and 4", n, m)
	}
	for _, name := range []string{"ext", "lb", "self", "web2"} {
		tr.DeleteService("default", name)
	}
	check("no Services")
	if n, m := len(tr.addresses.cluster), len(tr.addresses.external); n+m != 0 {
		t.Errorf("%d cluster IPs and %d external addresses are remembered of no Services", n, m)
	}
	off := NewTracker(Options{IgnoreExternalIPs: true, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("40.0.0.0/16")}})
	off.SetService(claimant("ext", "40.0.0.9", 1, withExternal("40.0.0.1")), Origin{})
	if m, _ := off.Flush(); len(m.Warnings) != 0 {
		t.Errorf("external IPs are refused, and still: %v", m.Warnings)
	}
}

// A claim between those of other ports at its address, in any order, is nobody's rival.
func TestClaimsOfOtherPorts(t *testing.T) {
	c := claims{}
	at := func(port uint16) claimKey {
		return claimKey{netip.MustParseAddr("40.0.0.1"), claimPortOf(port, v1.ProtocolTCP)}
	}
	for _, port := range []uint16{80, 90, 70, 85, 85 + 1<<8} {
		if c.insert(at(port), &claim{typ: ExternalIP}) {
			t.Errorf("port %d: there are others", port)
		}
	}
	if !c.insert(at(85), &claim{typ: ClusterIP}) || len(c.of(at(85))) != 2 || c.of(at(85))[0].typ != ClusterIP {
		t.Errorf("a second claim: %v", c.of(at(85)))
	}
}

// Other claims are looked up for a Service only as long as there are some for one of its frontends: a flush of a large Service must
// not take longer for what nobody shares.
func TestContested(t *testing.T) {
	service := func(name, vip string, external ...string) *v1.Service {
		return &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: v1.ServiceSpec{ClusterIP: vip, ClusterIPs: []string{vip}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol}, ExternalIPs: external,
				Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}}},
		}
	}
	tr := NewTracker(Options{})
	check := func(what, contested string) {
		t.Helper()
		m, _ := tr.Flush()
		for name, s := range tr.services {
			if want := strings.Contains(contested, name.Name); s.contested != want {
				t.Errorf("%s: %s contested: %t", what, name.Name, s.contested)
			}
		}
		for n, sp := range m.Ports { // what the flags leave out is what nobody shadows
			for i := range sp.Frontends {
				f := &sp.Frontends[i]
				if by, _ := tr.claims.winner(n, tr.services[n.ServiceName].def.created, f); (by != nil) != (f.ShadowedBy != "") {
					t.Errorf("%s: %s at %s: shadowed by %q", what, n, f.Address, f.ShadowedBy)
				}
			}
		}
	}
	tr.SetService(service("a", "40.0.0.1", "50.0.0.1", "50.0.0.2"), Origin{})
	tr.SetService(service("b", "40.0.0.2"), Origin{})
	check("alone", "")
	tr.SetService(service("c", "40.0.0.3", "50.0.0.1"), Origin{})
	check("two want an address", "a c")
	tr.SetService(service("d", "40.0.0.4", "50.0.0.2", "40.0.0.2"), Origin{})
	check("and another", "a b c d")
	tr.DeleteService("ns", "c")
	check("one left", "a b d")
	tr.SetService(service("d", "40.0.0.4", "50.0.0.3"), Origin{})
	check("and another", "")
}
