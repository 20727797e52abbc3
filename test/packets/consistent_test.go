//go:build linux

package packets

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
)

const consistentNodePort = 30080

// consistent makes a Service's load balancer address one of consistent choice.
func consistent(address string) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Annotations = map[string]string{k8s.AnnotationConsistent: "true"}
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].NodePort = consistentNodePort
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: address}}
	}
}

// heldConnections returns how many connections TestConsistentChoice moves. NKP_CONNECTIONS=10000 needs 21,000 open files.
func heldConnections() int {
	if n, err := strconv.Atoi(os.Getenv("NKP_CONNECTIONS")); err == nil {
		return n
	}
	return 500
}

// nodes are three nodes with a switch each. The router of the first has the client behind it.
func nodes(t *testing.T) (list []*cluster) {
	t.Helper()
	for i := range 3 {
		var o testbed.Options
		ip := testbed.NodeIP4
		if i > 0 {
			ip = netip.AddrFrom4([4]byte{172, 17, byte(i), 2})
			o.IPv4 = testbed.Addressing{Node: ip, Remote: ip.Next(),
				Pods: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), 24), RemotePods: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, byte(i), 0}), 24)}
		}
		name := nodeOf(i)
		c := newCluster(t, o, "--hostname-override", name, "--cluster-cidr", "10.0.0.0/8")
		for j, p := range c.pods {
			p.Name = fmt.Sprintf("%s-%d", name, j)
		}
		c.objects["node"] = &v1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: ip.String()}}},
		}
		if i > 0 {
			must(t, testbed.Join(list[0].Bed, c.Bed))
		}
		c.servePods(t)
		list = append(list, c)
	}
	return list
}

func nodeOf(i int) string { return "node-" + string('a'+rune(i)) }

// on is a ready endpoint on a node.
func on(node string, ip netip.Addr) discoveryv1.Endpoint {
	e := at(ip)
	e.NodeName = &node
	return e
}

// TestConsistentChoice moves connections between three nodes. The router sends a Service's address to the first one, then the
// first node dies and the router sends it to the second, then to the third: no connection to a pod of the others breaks, over TCP
// and UDP. A client's port leads to the endpoint that Choose returns, wherever it enters.
func TestConsistentChoice(t *testing.T) {
	t.Parallel()
	all := nodes(t)
	a := all[0]
	web, dns := service("web", "40.0.0.1", consistent("20.0.0.1")), service("dns", "40.0.0.2", protocol(v1.ProtocolUDP), consistent("20.0.0.2"))
	dns.Spec.Ports[0].NodePort++
	var endpoints []discoveryv1.Endpoint
	choice := &k8s.Consistent{}
	name := map[netip.AddrPort]string{} // of the pod
	for i, c := range all {
		for _, p := range c.pods[:2] {
			endpoints = append(endpoints, on(nodeOf(i), p.IP4))
			to := netip.AddrPortFrom(p.IP4, 8080)
			choice.Endpoints, name[to] = append(choice.Endpoints, k8s.Endpoint{Addr: to}), p.Name
		}
	}
	for _, c := range all {
		c.put(web, slice(web, 8080, endpoints...), dns, slice(dns, 8080, endpoints...))
		c.run()
	}
	for _, c := range all {
		c.settle()
	}
	a.reachable(t, "20.0.0.1:80")

	n := heldConnections()
	held := make([]*testbed.Held, n)
	errs := make([]error, n)
	parallel(n, func(i int) { held[i], errs[i] = a.External.Hold(a.ctx, "20.0.0.1:80", testbed.DialOptions{}) })
	who := map[string]int{}
	for i, h := range held {
		must(t, errs[i])
		who[h.Who]++
		if h.Client.Addr() != a.External.IP4 {
			t.Fatalf("%s sees the client as %s", h.Who, h.Client)
		}
		if want := name[choice.Choose(h.Client.Port()).Addr]; h.Who != want {
			t.Errorf("port %d leads to %s, not %s", h.Client.Port(), h.Who, want)
		}
	}
	t.Logf("%d connections: %v", n, who)
	if len(who) != len(endpoints) {
		t.Errorf("%d endpoints of %d got connections", len(who), len(endpoints))
	}
	udp := func(port int) string {
		t.Helper()
		answer, err := a.External.AskWith(a.ctx, "udp", "20.0.0.2:80", testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: port}})
		must(t, err)
		if answer.Client.Addr() != a.External.IP4 {
			t.Errorf("%s sees the UDP client as %s", answer.Pod, answer.Client)
		}
		return answer.Pod
	}
	udpAt := map[int]string{}
	for port := 20000; port < 20024; port++ {
		if pod := udp(port); !strings.HasPrefix(pod, nodeOf(0)) {
			udpAt[port] = pod
		}
	}

	// trace names the endpoint, and the switch agrees: at the first node, and at the second for what the first one sends on.
	for port := uint16(40000); port < 40040; port += 2 {
		to := choice.Choose(port).Addr
		from := netip.AddrPortFrom(a.External.IP4, port).String()
		a.traced(t, from, "20.0.0.1:80", to)
		if strings.HasPrefix(name[to], nodeOf(1)) {
			all[1].traced(t, from, netip.AddrPortFrom(to.Addr(), consistentNodePort).String(), to)
		}
	}
	if r, status := a.trace(t, "tcp", a.External.IP4.String(), "20.0.0.1:80", "--live"); len(r.Endpoints) != len(endpoints) || status != 0 || !r.Live.Agrees {
		t.Errorf("without a port, trace says %+v", r)
	}

	a.KillVswitchd()
	for i := range 2 {
		for _, p := range []string{"20.0.0.1/32", "20.0.0.2/32"} {
			must(t, a.SendServices(netip.MustParsePrefix(p), i))
		}
		broken, asked := 0, 0
		parallel(n, func(j int) {
			errs[j] = nil
			if !strings.HasPrefix(held[j].Who, nodeOf(0)) {
				errs[j] = held[j].Check()
			}
		})
		for j, h := range held {
			if strings.HasPrefix(h.Who, nodeOf(0)) {
				continue
			}
			asked++
			if errs[j] != nil {
				broken++
				t.Logf("from port %d to %s: %v", h.Client.Port(), h.Who, errs[j])
			}
		}
		t.Logf("through %s: %d of %d connections broke", nodeOf(i+1), broken, asked)
		if broken > 0 || asked == 0 {
			t.Errorf("through %s: %d of %d connections broke", nodeOf(i+1), broken, asked)
		}
		for _, port := range slices.Sorted(maps.Keys(udpAt)) {
			if pod := udp(port); pod != udpAt[port] {
				t.Errorf("through %s: UDP port %d leads to %s, not %s", nodeOf(i+1), port, pod, udpAt[port])
			}
		}
	}
}

// traced wants trace, with a look at the switch, to lead to one endpoint.
func (c *cluster) traced(t *testing.T, from, to string, endpoint netip.AddrPort) {
	t.Helper()
	r, status := c.trace(t, "tcp", from, to, "--live", "--reply")
	if !slices.Equal(r.Endpoints, []string{endpoint.String()}) || r.Verdict != "deliver" || r.Masquerade != "never" || r.Live == nil || !r.Live.Agrees || status != 0 {
		t.Errorf("trace --from %s --to %s: %+v, installed %+v, reply %+v; status %d; want %s", from, to, r, r.Live, r.Reply, status, endpoint)
	}
}

// parallel calls do with the numbers below n, 32 at once.
func parallel(n int, do func(i int)) {
	var wg sync.WaitGroup
	for from := range 32 {
		wg.Go(func() {
			for i := from; i < n; i += 32 {
				do(i)
			}
		})
	}
	wg.Wait()
}
