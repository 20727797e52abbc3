package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// The guestbook's file has node 1 as the one that "make demo" serves.
const (
	guestbookFile = "../../../examples/guestbook.yaml"
	guestbookNode = 30784 // its NodePort
	redisMaster   = "172.16.155.140:6379"
	redisSlave    = "172.16.67.204:6379"
	frontend      = "172.16.92.224:80"
)

// guestbook is the cluster of the file: two nodes, each with nkp and a switch of its own. Where the API server is, the
// traffic of node 2 with it crosses both bridges.
type guestbook struct {
	*cluster
	one, two *node
	pods     map[string]*testbed.Pod // by address
	clients  [2]*testbed.Pod         // one on each node, of no Service
}

func newGuestbook(t *testing.T) *guestbook {
	t.Helper()
	spec := func(name, node, remote, pods, remotePods string) nodeSpec {
		return nodeSpec{name, testbed.Options{Standalone: true, IPv4: testbed.Addressing{
			Node: netip.MustParseAddr(node), Remote: netip.MustParseAddr(remote),
			Pods: netip.MustParsePrefix(pods), RemotePods: netip.MustParsePrefix(remotePods),
		}}}
	}
	g := &guestbook{pods: map[string]*testbed.Pod{}}
	g.cluster = newCluster(t, layout{
		nodes: []nodeSpec{
			spec("haofan-test-1", "192.168.3.233", "192.168.3.2", "172.18.1.0/24", "172.18.2.0/24"),
			spec("haofan-test-2", "192.168.3.232", "192.168.3.3", "172.18.0.0/24", "172.18.3.0/24"),
		},
		serviceCIDR: "172.16.0.0/16", clusterCIDR: "172.18.0.0/16",
	})
	g.one, g.two = g.nodes[0], g.nodes[1]
	for i, n := range g.nodes {
		p, err := n.AddPod(testbed.PodSpec{Name: fmt.Sprint("client-", i+1), NoIPv6: true})
		must(t, err)
		g.clients[i] = p
	}
	g.createGuestbook()
	return g
}

// createGuestbook makes the Services of the file, and its endpoints as pods: their slices are the controller's work.
func (g *guestbook) createGuestbook() {
	g.t.Helper()
	objects, err := decodeFile(guestbookFile)
	must(g.t, err)
	services := map[string]*v1.Service{}
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Service:
			_, err := g.client.CoreV1().Services(o.Namespace).Create(g.ctx, o, metav1.CreateOptions{})
			must(g.t, err)
			services[o.Name] = o
		case *discoveryv1.EndpointSlice:
			s := services[o.Labels[discoveryv1.LabelServiceName]]
			for _, e := range o.Endpoints {
				g.addPod(s, g.nodeNamed(*e.NodeName), netip.MustParseAddr(e.Addresses[0]))
			}
		}
	}
}

func (g *guestbook) nodeNamed(name string) *node {
	if name == g.one.name {
		return g.one
	}
	return g.two
}

// addPod makes a pod of a Service on a node.
func (g *guestbook) addPod(s *v1.Service, n *node, ip netip.Addr) *testbed.Pod {
	g.t.Helper()
	b := ip.As4()
	p, err := n.AddPod(testbed.PodSpec{Name: fmt.Sprintf("%s-%d-%d", s.Name, b[2], b[3]), Number: int(b[3]), NoIPv6: true})
	must(g.t, err)
	if p.IP4 != ip {
		g.t.Fatalf("pod %s on %s has %s", ip, n.name, p.IP4)
	}
	g.createPodOn(n.name, p, s.Spec.Selector, int(s.Spec.Ports[0].Port))
	g.pods[ip.String()] = p
	return p
}

// at returns pods by their addresses below 172.18.
func (g *guestbook) at(addrs ...string) (pods []*testbed.Pod) {
	for _, a := range addrs {
		p := g.pods["172.18."+a]
		if p == nil {
			g.t.Fatalf("no pod %s", a)
		}
		pods = append(pods, p)
	}
	return pods
}

// nodePort is the frontend's at a node.
func nodePort(n *node) string {
	return netip.AddrPortFrom(n.Node.IP4, guestbookNode).String()
}

// seen asks addr until each of the pods has answered, and fails if one of them saw another client than want.
func (g *guestbook) seen(h *testbed.Host, addr string, want netip.Addr, pods ...*testbed.Pod) error {
	missing := map[string]bool{}
	for _, p := range pods {
		missing[p.Name] = true
	}
	for range 200 {
		a, err := h.AskWith(g.ctx, "tcp", addr, testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
		if err != nil {
			return err
		}
		if a.Client.Addr() != want {
			return fmt.Errorf("%s at %s: %s saw %s; want %s", h.Name, addr, a.Pod, a.Client, want)
		}
		if delete(missing, a.Pod); len(missing) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%s at %s: %v never answered", h.Name, addr, missing)
}

// patchFrontend sets the external traffic policy.
func (g *guestbook) patchFrontend(policy v1.ServiceExternalTrafficPolicy) {
	g.t.Helper()
	patch := fmt.Sprintf(`{"spec": {"externalTrafficPolicy": %q}}`, policy)
	_, err := g.client.CoreV1().Services("default").Patch(g.ctx, "frontend", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(g.t, err)
}

// The guestbook through a real API server, on two nodes.
func TestGuestbook(t *testing.T) {
	g := newGuestbook(t)
	front := g.at("1.22", "1.23", "0.20")
	for _, n := range g.nodes {
		n.startAgent()
	}
	for i, client := range g.clients {
		n := g.nodes[i]
		g.eventually("redis-master is served on "+n.name, func() error { return g.answers(client.Host, redisMaster, g.at("0.18")...) })
		g.eventually("redis-slave is served on "+n.name, func() error { return g.answers(client.Host, redisSlave, g.at("0.19", "1.52")...) })
		g.eventually("frontend is served on "+n.name, func() error { return g.answers(client.Host, frontend, front...) })
		g.eventually("the NodePort is served on "+n.name, func() error { return g.answers(g.External, nodePort(n), front...) })
		must(t, g.seen(client.Host, frontend, client.IP4, front...))
		must(t, g.seen(g.External, nodePort(n), n.Node.IP4, front...))
		must(t, g.seen(client.Host, nodePort(n), n.Node.IP4, front...))
		g.eventually("nothing differs on "+n.name, func() error { // iptables beside the bridge takes longer than the bridge
			if out, status := n.diff(); status != 0 {
				return fmt.Errorf("nkp diff ends with %d: %s", status, out)
			}
			return nil
		})
	}
	// The frontend itself asks redis, as the guestbook does.
	for _, p := range front {
		must(t, g.answers(p.Host, redisMaster, g.at("0.18")...))
		must(t, g.answers(p.Host, redisSlave, g.at("0.19", "1.52")...))
	}
	t.Run("triangle", g.testTriangle)
	t.Run("local", g.testLocal)
	t.Run("replicas", g.testReplicas)
}

// Through a node without masquerading, a pod on the other node would answer the client straight, with its own address: the
// third side of a triangle, which no client accepts. Every answer goes back through the node that was asked.
func (g *guestbook) testTriangle(t *testing.T) {
	between, outside := listen(t, g.Router, testbed.JoinDevice), listen(t, g.Router, "external")
	client := g.External.IP4
	front := g.at("1.22", "1.23", "0.20")
	for i, n := range g.nodes {
		pod := g.at("0.20", "1.22")[i] // of the other node
		between.forget()
		outside.forget()
		must(t, g.answers(g.External, nodePort(n), front...))
		asked, endpoint := netip.MustParseAddrPort(nodePort(n)), netip.AddrPortFrom(pod.IP4, 80)
		if got := outside.count(func(l leg) bool { return l.from == asked && l.to.Addr() == client }); got < 60 {
			t.Errorf("through %s: %d packets from %s to the client; want some for each of 60 connections", n.name, got, asked)
		}
		if got := between.count(func(l leg) bool { return l.from == endpoint && l.to.Addr() == n.Node.IP4 }); got == 0 {
			t.Errorf("%s never answered %s across the link", endpoint, n.name)
		}
		for _, p := range front {
			straight := func(l leg) bool { return l.from.Addr() == p.IP4 && l.to.Addr() == client }
			if got := between.count(straight) + outside.count(straight); got > 0 {
				t.Errorf("through %s: %s answered the client straight: %d packets", n.name, p.Name, got)
			}
		}
	}
}

// With externalTrafficPolicy Local the pods see the client itself, and only those of the asked node answer.
func (g *guestbook) testLocal(t *testing.T) {
	client := g.External.IP4
	g.patchFrontend(v1.ServiceExternalTrafficPolicyLocal)
	onlyB := g.at("0.20")
	g.eventually("only pods of node 1 answer there", func() error { return g.answers(g.External, nodePort(g.one), g.at("1.22", "1.23")...) })
	g.eventually("only the pod of node 2 answers there", func() error { return g.answers(g.External, nodePort(g.two), onlyB...) })
	must(t, errors.Join(
		g.seen(g.External, nodePort(g.one), client, g.at("1.22", "1.23")...),
		g.seen(g.External, nodePort(g.two), client, onlyB...),
	))

	g.deletePod(onlyB[0])
	g.eventually("a node without endpoints does not answer", func() error { return g.fails(g.External, nodePort(g.two), testbed.ErrTimeout) })
	for i, pod := range g.clients { // pods are of the cluster: for them any pod does, and they keep their address
		must(t, g.answers(pod.Host, nodePort(g.nodes[i]), g.at("1.22", "1.23")...))
		must(t, g.seen(pod.Host, nodePort(g.nodes[i]), pod.IP4, g.at("1.22")...))
	}
	must(t, g.answers(g.External, nodePort(g.one), g.at("1.22", "1.23")...))

	g.patchFrontend(v1.ServiceExternalTrafficPolicyCluster)
	g.eventually("any pod answers again", func() error { return g.answers(g.External, nodePort(g.two), g.at("1.22", "1.23")...) })
	must(t, g.seen(g.External, nodePort(g.two), g.two.Node.IP4, g.at("1.22")...))
}

// Pods come and go while clients ask and connections are held: no question fails, and connections stay with their pod.
func (g *guestbook) testReplicas(t *testing.T) {
	service, err := g.client.CoreV1().Services("default").Get(g.ctx, "frontend", metav1.GetOptions{})
	must(t, err)
	from := map[string]*testbed.Host{frontend: g.clients[0].Host, nodePort(g.one): g.External, nodePort(g.two): g.External}
	u := g.use(g.clients[1].Host, frontend)
	for addr, h := range from {
		u.add(h, addr)
	}
	everywhere := func(what string, pods ...*testbed.Pod) {
		t.Helper()
		for addr, h := range from {
			g.eventually(what+" at "+addr, func() error { return g.answers(h, addr, pods...) })
		}
		u.check(what)
	}
	first := g.addPod(service, g.two, netip.MustParseAddr("172.18.0.21"))
	everywhere("one more pod", append(g.at("1.22", "1.23"), first)...)
	g.deletePod(g.at("1.22")[0])
	g.deletePod(g.at("1.23")[0])
	everywhere("only the pod of node 2", first)
	second := g.addPod(service, g.one, netip.MustParseAddr("172.18.1.24"))
	everywhere("one pod on each node", first, second)
	u.end()
}
