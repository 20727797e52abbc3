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
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

const consistentNodePort = 30080

// consistent makes a Service's load balancer address one of consistent choice.
func consistent(address string) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Annotations = map[string]string{k8s.AnnotationConsistent: "true"}
		exposed(consistentNodePort)(s)
		loadBalancer(address)(s)
	}
}

// manyRanges gives a Service so many source ranges that each has one flow; first are among them.
func manyRanges(first ...string) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.LoadBalancerSourceRanges = slices.Clone(first)
		for i := range 10 {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, fmt.Sprintf("203.0.113.%d/32", i))
		}
	}
}

// heldConnections returns how many connections TestConsistentChoice makes, two thirds of which move. The test has two open files for each.
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
	nightly.Only(t, "three beds and hundreds of connections; TestConsistentHere looks at each choice")
	all := nodes(t)
	a := all[0]
	web, dns := service("web", "40.0.0.1", consistent("20.0.0.1"), manyRanges("192.168.0.0/24", "10.0.0.0/8")), service("dns", "40.0.0.2", protocol(v1.ProtocolUDP), consistent("20.0.0.2"))
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

// TestConsistentChange changes the endpoints while connections are held, which enter at a node without endpoints: one endpoint
// begins to terminate and goes on serving, then another one comes. No connection breaks, and the one that terminates gets no new one.
func TestConsistentChange(t *testing.T) {
	nightly.Only(t, "three beds and hundreds of connections; TestConsistentHere looks at each choice")
	all := nodes(t)
	a, b, c := all[0], all[1], all[2]
	web := service("web", "40.0.0.1", consistent("20.0.0.1"))
	put := func(endpoints ...discoveryv1.Endpoint) {
		t.Helper()
		for _, n := range all {
			n.put(web, slice(web, 8080, endpoints...))
		}
		for _, n := range all {
			if n.agent == nil {
				n.run()
			}
			n.inForce(t)
		}
	}
	leaving, stays, comes := on(nodeOf(1), b.pods[0].IP4), on(nodeOf(2), c.pods[0].IP4), on(nodeOf(1), b.pods[1].IP4)
	put(leaving, stays)
	a.reachable(t, "20.0.0.1:80")
	held := make([]*testbed.Held, 100)
	parallel(len(held), func(i int) {
		var err error
		if held[i], err = a.External.Hold(a.ctx, "20.0.0.1:80", testbed.DialOptions{}); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		return
	}
	check := func(when string) {
		t.Helper()
		errs := make([]error, len(held))
		parallel(len(held), func(i int) { errs[i] = held[i].Check() })
		broken := len(held) - len(slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err != nil }))
		if t.Logf("%s: %d of %d connections broke", when, broken, len(held)); broken > 0 {
			t.Errorf("%s: %d of %d connections broke", when, broken, len(held))
		}
	}
	no, yes := false, true
	leaving.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	put(leaving, stays)
	check("an endpoint terminates")
	if who, errs := a.External.Many(a.ctx, 60, 8, "20.0.0.1:80"); len(errs) > 0 || who[c.pods[0].Name] != 60 {
		t.Errorf("new connections: %v, %v", who, firstOf(errs))
	}
	leaving.Conditions = discoveryv1.EndpointConditions{}
	put(leaving, stays)
	check("it is back")
	put(leaving, stays, comes)
	check("another endpoint comes")

	manyRanges("192.168.0.0/24")(web)
	put(leaving, stays, comes)
	check("there are many source ranges")
	web.Spec.LoadBalancerSourceRanges = nil
	put(leaving, stays, comes)
	check("there are none")
}

// TestConsistentHere has all endpoints on one node: over both families a client's port leads to the endpoint that Choose returns,
// each connection counts once, clients out of loadBalancerSourceRanges get nothing, and neither a restart of nkp nor a second look
// changes a flow. A Service that loses the annotation is served as before.
func TestConsistentHere(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	four, six := service("four", "40.0.0.1", consistent("20.0.0.1")), service("six", "fd00:40::1", consistent("fd00:20::1"))
	six.Spec.Ports[0].NodePort++
	closed := service("closed", "40.0.0.2", consistent("20.0.0.2"), func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} })
	closed.Spec.Ports[0].NodePort += 2
	closedToo := service("closed-too", "40.0.0.3", consistent("20.0.0.3"), manyRanges("192.0.2.0/24"))
	closedToo.Spec.Ports[0].NodePort += 3
	open := service("open", "40.0.0.4", consistent("20.0.0.4"), manyRanges("192.168.0.0/24"))
	open.Spec.Ports[0].NodePort += 4
	var ends4, ends6 k8s.Consistent
	for _, p := range c.pods[:2] {
		ends4.Endpoints = append(ends4.Endpoints, k8s.Endpoint{Addr: netip.AddrPortFrom(p.IP4, 8080)})
		ends6.Endpoints = append(ends6.Endpoints, k8s.Endpoint{Addr: netip.AddrPortFrom(p.IP6, 8080)})
	}
	c.begin(four, slice(four, 8080, ats(c.pods[0].IP4, c.pods[1].IP4)...), six, slice(six, 8080, ats(c.pods[0].IP6, c.pods[1].IP6)...),
		closed, slice(closed, 8080, ats(c.pods[0].IP4)...), closedToo, slice(closedToo, 8080, ats(c.pods[0].IP4)...),
		open, slice(open, 8080, ats(c.pods[0].IP4, c.pods[1].IP4)...))
	const connections = 40
	for _, side := range []struct {
		to    string
		first int // client's port
		ends  *k8s.Consistent
	}{{"20.0.0.1:80", 40000, &ends4}, {"20.0.0.4:80", 41000, &ends4}, {"[fd00:20::1]:80", 40000, &ends6}} {
		who := map[string]int{}
		for i := range connections {
			a, err := c.External.AskWith(c.ctx, "tcp", side.to, testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: side.first + 2*i, Reset: true}})
			must(t, err)
			at := slices.IndexFunc(c.pods, func(p *testbed.Pod) bool {
				return p.IP(a.Client.Addr()) == side.ends.Choose(a.Client.Port()).Addr.Addr()
			})
			if who[a.Pod]++; a.Pod != c.pods[at].Name || a.Client.Addr() != c.External.IP(a.Client.Addr()) || int(a.Client.Port()) != side.first+2*i {
				t.Errorf("%s from port %d: %s answers and sees %s, want %s", side.to, side.first+2*i, a.Pod, a.Client, c.pods[at].Name)
			}
		}
		if len(who) != 2 {
			t.Errorf("%s: %v", side.to, who)
		}
	}
	far := service("far", "40.0.0.5", consistent("20.0.0.5"))
	far.Spec.Ports[0].NodePort += 5
	c.put(far, slice(far, 8080, on("node-b", c.remotes[0].IP4)))
	c.settle()
	for to, want := range map[string]string{"20.0.0.1:80": "client's port decides", "20.0.0.5:80": "does not come through this node"} {
		for port, said := range map[string]bool{"": true, ":40000": to == "20.0.0.5:80"} {
			r, _ := c.trace(t, "tcp", c.External.IP4.String()+port, to, "--live")
			if r.Live == nil || strings.Contains(strings.Join(r.Live.Steps, "\n"), "the answer is not followed") != said ||
				port != "" && said && !strings.Contains(strings.Join(r.Live.Steps, "\n"), want) {
				t.Errorf("from port %q to %s: what is said of the answer: %+v", port, to, r.Live)
			}
		}
	}
	for _, to := range []string{"20.0.0.2:80", "20.0.0.3:80"} { // out of the source ranges
		c.unanswered(t, c.External, "tcp", to, c.direct(t, c.External))
	}
	counted := c.awaitCounters(t, map[string]uint64{"four": connections, "six": connections, "open": connections})
	for _, name := range []string{"four", "six", "open"} {
		if n := counted[name].Connections; n != connections {
			t.Errorf("%d connections of %s are counted, want %d", n, name, connections)
		}
	}

	for mode, want := range map[string]string{"ovs": "consistent choice", "nftables": "masqueraded"} { // without an agent
		out := c.local("trace", "--from", "192.168.0.2:40000", "--to", "20.0.0.1:80", "--mode", mode, "--manifests", c.manifest,
			"--hostname-override", nodeName, "--cluster-cidr", "10.0.0.0/16")
		if !strings.Contains(out, want) {
			t.Errorf("trace in mode %s lacks %q:\n%s", mode, want, out)
		}
	}

	same := c.flowsNow(t)
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.run()
	c.settle()
	c.awaitStatus(t, "the first read-back", func(s *api.Status) bool { return s.Audits > 0 })
	if log, err := c.agent.Log.String(), same(); strings.Contains(log, "bringing the switch in step") || err != nil {
		t.Errorf("a restart changed something: %v\n%s", err, log)
	}
	delete(four.Annotations, k8s.AnnotationConsistent)
	c.put(four)
	c.inForce(t)
	a, err := c.External.Ask(c.ctx, "tcp", "20.0.0.1:80")
	must(t, err)
	if a.Client.Addr() != testbed.NodeIP4 {
		t.Errorf("without the annotation the endpoint sees %s, not the node", a.Client)
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
