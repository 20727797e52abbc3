//go:build linux

package semantics

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// Who is masqueraded: the letters are those of the row.
func TestRow21Masquerade(t *testing.T) {
	t.Run("as usual", func(t *testing.T) {
		before := func(c *cluster) { c.addExtraDevice() }
		onEveryPlaneWith(t, setup{before: before}, func(t *testing.T, c *cluster) {
			c.serve(service("here", clusterIP(1), everywhere(1)), c.here)
			c.serve(service("there", clusterIP(2), everywhere(2)), c.there)
			c.serve(service("self", clusterIP(3), everywhere(3)), c.pod)
			c.serve(service("self-local", clusterIP(4), everywhere(4), externalLocal), c.pod)
			c.serve(service("local", clusterIP(5), everywhere(5), externalLocal), c.here)
			c.serve(service("udp", clusterIP(6), protocol(v1.ProtocolUDP), everywhere(6)), c.there)
			c.serve(service("udp-self", clusterIP(7), protocol(v1.ProtocolUDP), everywhere(7)), c.pod)
			c.serve(service("node", clusterIP(8), everywhere(8)), c.Node)
			c.listen(c.Node, 8080)
			c.apply()
			masqueraded := func(h *testbed.Host) outcome { return by(h).masquerade() }
			var probes []probe
			for _, s := range []struct {
				n  int
				at *testbed.Host
			}{{1, c.here}, {2, c.there}} {
				cluster, node, external, lb := c.frontends(s.n)
				for what, to := range map[string]target{"NodePort": node, "externalIP": external, "load balancer": lb} {
					probes = append(probes,
						probe{name: "(a) from outside to " + what + " and " + s.at.Name, from: c.External, to: to, want: masqueraded(s.at)},
						probe{name: "(a) from a pod to " + what + " and " + s.at.Name, from: c.pod, to: to, want: masqueraded(s.at)},
						probe{name: "(a) from another node to " + what + " and " + s.at.Name, from: c.Remote, to: to, want: masqueraded(s.at)},
						probe{name: "(a) from another node's pod to " + what + " and " + s.at.Name, from: c.there2, to: to, want: masqueraded(s.at)})
				}
				probes = append(probes,
					probe{name: "(b) from a pod to " + s.at.Name, from: c.pod, to: cluster, want: by(s.at).keep()},
					probe{name: "(b) from the node to " + s.at.Name, from: c.Node, to: cluster, want: masqueraded(s.at)},
					probe{name: "(b) from the node by another of its addresses to " + s.at.Name, from: c.Node, local: extraAddress, to: cluster, want: masqueraded(s.at)},
					probe{name: "(b) from outside to " + s.at.Name, from: c.External, to: cluster, want: masqueraded(s.at)},
					probe{name: "(b) from another node to " + s.at.Name, from: c.Remote, to: cluster, want: masqueraded(s.at)})
			}
			cluster3, node3, external3, lb3 := c.frontends(3)
			_, node4, external4, lb4 := c.frontends(4)
			_, node5, external5, lb5 := c.frontends(5)
			cluster6, node6, _, lb6 := c.frontends(6)
			cluster7, node7, _, _ := c.frontends(7)
			_, node8, _, lb8 := c.frontends(8)
			c.expect(t, append(probes,
				probe{name: "(b) another node's pod is a pod", from: c.there2, to: clusterIP(1).on(80), want: by(c.here).keep()},
				probe{name: "(d) a pod to itself by the ClusterIP", from: c.pod, to: cluster3, want: masqueraded(c.pod)},
				probe{name: "(d) a pod to itself by the NodePort", from: c.pod, to: node3, want: masqueraded(c.pod)},
				probe{name: "(d) a pod to itself by the externalIP", from: c.pod, to: external3, want: masqueraded(c.pod)},
				probe{name: "(d) a pod to itself by the load balancer", from: c.pod, to: lb3, want: masqueraded(c.pod)},
				probe{name: "(d) a pod to itself by the NodePort, policy Local", from: c.pod, to: node4, want: masqueraded(c.pod)},
				probe{name: "(d) a pod to itself by the externalIP, policy Local", from: c.pod, to: external4, want: masqueraded(c.pod)},
				probe{name: "(d) a pod to itself by the load balancer, policy Local", from: c.pod, to: lb4, want: masqueraded(c.pod)},
				probe{name: "(d) another pod is not concerned", from: c.here, to: cluster3, want: by(c.pod).keep()},
				probe{name: "(d) over UDP", from: c.pod, proto: "udp", to: cluster7, want: masqueraded(c.pod)},
				probe{name: "(d) over UDP by the NodePort", from: c.pod, proto: "udp", to: node7, want: masqueraded(c.pod)},
				probe{name: "(e) policy Local: from the node to the externalIP", from: c.Node, to: external5, want: masqueraded(c.here)},
				probe{name: "(e) policy Local: from the node to the load balancer", from: c.Node, to: lb5, want: masqueraded(c.here)},
				probe{name: "(e) policy Local: from the node by another of its addresses", from: c.Node, local: extraAddress, to: lb5, want: masqueraded(c.here)},
				probe{name: "policy Local: not from outside to the NodePort", from: c.External, to: node5, want: by(c.here).keep()},
				probe{name: "policy Local: not from outside to the externalIP", from: c.External, to: external5, want: by(c.here).keep()},
				probe{name: "policy Local: not from outside to the load balancer", from: c.External, to: lb5, want: by(c.here).keep()},
				probe{name: "policy Local: not from a pod", from: c.pod, to: lb5, want: by(c.here).keep()},
				probe{name: "UDP (a)", from: c.External, proto: "udp", to: node6, want: masqueraded(c.there)},
				probe{name: "UDP (a) from a pod", from: c.pod, proto: "udp", to: lb6, want: masqueraded(c.there)},
				probe{name: "UDP (b) from a pod", from: c.pod, proto: "udp", to: cluster6, want: by(c.there).keep()},
				probe{name: "UDP (b) from the node", from: c.Node, proto: "udp", to: cluster6, want: masqueraded(c.there)},
				probe{name: "what the node itself answers is not, from outside", from: c.External, to: node8, want: by(c.Node).keep()},
				probe{name: "what the node itself answers is not, from a pod", from: c.pod, to: lb8, want: by(c.Node).keep()},
			)...)
		})
	})
	t.Run("masquerade-all", func(t *testing.T) {
		onEveryPlaneWith(t, setup{flags: []string{"--masquerade-all"}}, func(t *testing.T, c *cluster) {
			c.serve(service("here", clusterIP(1), everywhere(1), externalLocal), c.here)
			c.serve(service("there", clusterIP(2)), c.there)
			c.apply()
			cluster, node, _, lb := c.frontends(1)
			c.expect(t,
				probe{name: "(c) from a pod", from: c.pod, to: cluster, want: by(c.here).masquerade()},
				probe{name: "(c) from a pod to another node's", from: c.pod, to: clusterIP(2).on(80), want: by(c.there).masquerade()},
				probe{name: "(c) from another node's pod", from: c.there2, to: cluster, want: by(c.here).masquerade()},
				probe{name: "(c) from outside", from: c.External, to: cluster, want: by(c.here).masquerade()},
				probe{name: "the NodePort under policy Local is not concerned", from: c.External, to: node, want: by(c.here).keep()},
				probe{name: "the load balancer under policy Local is not concerned, from a pod", from: c.pod, to: lb, want: by(c.here).keep()},
			)
		})
	})
	t.Run("without a detector", func(t *testing.T) {
		onEveryPlaneWith(t, setup{noDetector: true}, func(t *testing.T, c *cluster) {
			c.serve(service("here", clusterIP(1), everywhere(1)), c.here)
			c.serve(service("local", clusterIP(2), everywhere(2), externalLocal), c.there)
			c.serve(service("self", clusterIP(3)), c.pod)
			c.apply()
			cluster, node, _, _ := c.frontends(1)
			_, node2, _, lb2 := c.frontends(2)
			c.expect(t,
				probe{name: "(b) is off: from outside", from: c.External, to: cluster, want: by(c.here).keep()},
				probe{name: "(b) is off: from a pod", from: c.pod, to: cluster, want: by(c.here).keep()},
				probe{name: "(a) stays", from: c.External, to: node, want: by(c.here).masquerade()},
				probe{name: "(d) stays", from: c.pod, to: clusterIP(3).on(80), want: by(c.pod).masquerade()},
				probe{name: "pods have no short circuit: NodePort", from: c.pod, to: node2, want: dropped},
				probe{name: "pods have no short circuit: load balancer", from: c.pod, to: lb2, want: dropped},
				probe{name: "the node has", from: c.Node, to: lb2, want: by(c.there).masquerade()},
			)
		})
	})
}

// detect-local-mode: how pods are told from others.
func TestRow22DetectLocalMode(t *testing.T) {
	for _, tc := range []struct {
		name       string
		setup      setup
		podIsLocal bool // a pod of this node
		otherIs    bool // a pod of another node
	}{
		{"ClusterCIDR of all nodes", setup{flags: []string{"--detect-local-mode", "ClusterCIDR", "--cluster-cidr", clusterCIDR}}, true, true},
		{"ClusterCIDR of other pods", setup{flags: []string{"--detect-local-mode", "ClusterCIDR", "--cluster-cidr", "10.0.1.0/24,fd00:b::/64"}}, false, true},
		{"ClusterCIDR of several ranges of each family", setup{
			flags: []string{"--detect-local-mode", "ClusterCIDR", "--cluster-cidr", "10.99.0.0/16,10.0.1.0/24,10.0.0.0/24,fd00:99::/64,fd00:b::/64,fd00:a::/64"},
			before: func(c *cluster) {
				if c.plane.name == "kube-proxy" {
					c.t.Skip("kube-proxy takes one range of each family")
				}
			},
		}, true, true},
		{"NodeCIDR", setup{flags: []string{"--detect-local-mode", "NodeCIDR"}}, true, false},
		{"BridgeInterface", setup{flags: []string{"--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "br-int"}, podBridge: true}, true, false},
		{"InterfaceNamePrefix", setup{flags: []string{"--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "pod-"}}, true, false},
		{"InterfaceNamePrefix of nothing", setup{flags: []string{"--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "veth"}}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onEveryPlaneWith(t, tc.setup, func(t *testing.T, c *cluster) {
				c.serve(service("web", clusterIP(1)), c.here)
				c.serve(service("far", clusterIP(2)), c.there)
				c.serve(service("local", clusterIP(3), everywhere(3), externalLocal), c.there)
				c.apply()
				seen := func(h *testbed.Host, local bool) outcome {
					if local {
						return by(h).keep()
					}
					return by(h).masquerade()
				}
				short, lb3 := dropped, vip(3).on(80)
				if tc.podIsLocal {
					short = by(c.there).keep()
				}
				c.expect(t,
					probe{name: "a pod of this node", from: c.pod, to: clusterIP(1).on(80), want: seen(c.here, tc.podIsLocal)},
					probe{name: "a pod of this node to another's", from: c.pod, to: clusterIP(2).on(80), want: seen(c.there, tc.podIsLocal)},
					probe{name: "a pod of another node", from: c.there2, to: clusterIP(1).on(80), want: seen(c.here, tc.otherIs)},
					probe{name: "the node", from: c.Node, to: clusterIP(2).on(80), want: by(c.there).masquerade()},
					probe{name: "another node", from: c.Remote, to: clusterIP(1).on(80), want: by(c.here).masquerade()},
					probe{name: "outside", from: c.External, to: clusterIP(1).on(80), want: by(c.here).masquerade()},
					probe{name: "the short circuit of policy Local", from: c.pod, to: lb3, want: short},
					probe{name: "policy Local from outside", from: c.External, to: lb3, want: dropped},
				)
			})
		})
	}
}

// What is masqueraded and what belongs to a connection passes, though the node's own rules forward nothing.
func TestRow23ForwardAccept(t *testing.T) {
	before := func(c *cluster) {
		for _, program := range []string{"iptables", "ip6tables"} {
			_, err := c.Exec(c.Node, program, "-P", "FORWARD", "DROP")
			must(c.t, err)
		}
	}
	onEveryPlaneWith(t, setup{before: before, needs: forwardAccept}, func(t *testing.T, c *cluster) {
		c.serve(service("here", clusterIP(1), everywhere(1)), c.here)
		c.serve(service("there", clusterIP(2), everywhere(2)), c.there)
		c.serve(service("udp", clusterIP(3), protocol(v1.ProtocolUDP), everywhere(3)), c.there)
		c.apply()
		_, node1, _, lb1 := c.frontends(1)
		_, node2, external2, _ := c.frontends(2)
		_, node3, _, _ := c.frontends(3)
		c.expect(t,
			probe{name: "from outside to a pod here", from: c.External, to: node1, want: by(c.here)},
			probe{name: "from a pod to a pod here", from: c.pod, to: lb1, want: by(c.here)},
			probe{name: "from outside and out again", from: c.External, to: node2, want: by(c.there)},
			probe{name: "from a pod and out", from: c.pod, to: external2, want: by(c.there)},
			probe{name: "over UDP", from: c.External, proto: "udp", to: node3, want: by(c.there)},
			probe{name: "from outside to a ClusterIP", from: c.External, to: clusterIP(2).on(80), want: by(c.there)},
		)
	})
}

// flow is a client's UDP socket: to conntrack one connection.
type flow struct {
	what string
	net.Conn
	asked int // questions, which differ by their size
}

// resend is after how long a client repeats a question. Its answer may be lost while conntrack entries are deleted.
const resend = time.Second

// ask returns who answers one more datagram. Answers to earlier ones do not count.
func (f *flow) ask(limit time.Duration) (string, error) {
	f.asked++
	_ = f.SetDeadline(time.Now().Add(limit))
	if _, err := f.Write(make([]byte, f.asked)); err != nil {
		return "", err
	}
	buf := make([]byte, 4096)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return "", err
		}
		if words := strings.Fields(string(buf[:n])); len(words) == 3 && words[2] == strconv.Itoa(f.asked) {
			return words[0], nil
		}
	}
}

// flows opens a flow to each address of the targets.
func (c *cluster) flows(t *testing.T, from *testbed.Host, targets ...target) (fs []*flow) {
	t.Helper()
	for _, to := range targets {
		for _, a := range to.addresses() {
			conn, err := from.DialUDP(c.ctx, a.String(), testbed.DialOptions{})
			must(t, err)
			t.Cleanup(func() { conn.Close() })
			fs = append(fs, &flow{what: fmt.Sprintf("%s -> udp %s", from.Name, a), Conn: conn})
		}
	}
	return fs
}

// answered is a subtest: the flows are answered by the host, all the time; or, if they were answered by another before, from some time
// on.
func answered(t *testing.T, what string, fs []*flow, h *testbed.Host, always bool) {
	t.Helper()
	t.Run(what, func(t *testing.T) {
		for _, f := range fs {
			check := func(limit time.Duration) error {
				if who, err := f.ask(limit); err != nil || who != h.Name {
					return fmt.Errorf("%s: answered by %q, %v; want %s", f.what, who, err, h.Name)
				}
				return nil
			}
			if !always {
				wait.NoError(t, what, func() error { return check(resend) })
			}
			for range 3 {
				if err := check(wait.Limit); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// The proxy deletes conntrack entries of UDP clients whose endpoints do not serve any more, and no others.
func TestRow24UDPConnections(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		udp := protocol(v1.ProtocolUDP)
		web := c.serve(service("web", clusterIP(1), udp, everywhere(1)), c.here)
		steady := c.serve(service("steady", clusterIP(2), udp, everywhere(2)), c.here)
		orphan := c.serve(service("orphan", clusterIP(3), udp), c.here)
		tcp := c.serve(service("tcp", clusterIP(4)), c.here)
		local := c.serve(service("local", clusterIP(5), udp, everywhere(5), externalLocal), c.here)
		empty := c.serve(service("empty", clusterIP(6), udp, everywhere(6)))
		c.apply()
		cluster1, node1, external1, lb1 := c.frontends(1)
		cluster2, node2, _, _ := c.frontends(2)
		cluster5, node5, _, lb5 := c.frontends(5)
		cluster6, node6, _, _ := c.frontends(6)
		moving := append(c.flows(t, c.pod, cluster1, node1, external1, lb1), c.flows(t, c.External, node1, external1, lb1)...)
		moving = append(moving, c.flows(t, c.Node, cluster1)...)
		staying := append(c.flows(t, c.pod, cluster2), c.flows(t, c.External, node2)...)
		orphaned := c.flows(t, c.pod, clusterIP(3).on(80))
		short := append(c.flows(t, c.pod, cluster5), c.flows(t, c.External, node5, lb5)...)
		direct := c.flows(t, c.pod, of(c.here).on(8080))
		for what, fs := range map[string][]*flow{"web": moving, "steady": staying, "orphan": orphaned, "local": short, "direct": direct} {
			answered(t, "at first/"+what, fs, c.here, true)
		}
		var held []*testbed.Held
		for _, a := range clusterIP(4).on(80).addresses() {
			h, err := c.pod.Hold(c.ctx, a.String(), testbed.DialOptions{})
			must(t, err)
			held = append(held, h)
		}
		before := append(c.flows(t, c.pod, cluster6), c.flows(t, c.External, node6)...)
		for _, f := range before {
			if who, err := f.ask(wait.Limit); !errors.Is(err, errRefused) {
				t.Errorf("%s: answered by %q, %v; want it refused", f.what, who, err)
			}
		}

		c.endpoints(web, ready(c.there)...)
		c.endpoints(steady, ep{host: c.here, terminating: true}, ep{host: c.there})
		c.endpoints(orphan)
		c.endpoints(tcp, ready(c.there)...)
		c.endpoints(local, ready(c.here2)...)
		c.endpoints(empty, ready(c.there)...)
		c.apply()
		answered(t, "an endpoint that goes is forgotten", moving, c.there, false)
		answered(t, "also under policy Local", short, c.here2, false)
		answered(t, "one that terminates and serves is not", staying, c.here, true)
		t.Run("without any that serves everything is forgotten, and clients are refused", func(t *testing.T) {
			for _, f := range orphaned {
				wait.NoError(t, f.what, func() error {
					if who, err := f.ask(resend); !errors.Is(err, errRefused) {
						return fmt.Errorf("%s: answered by %q, %v; want it refused", f.what, who, err)
					}
					return nil
				})
			}
		})
		answered(t, "connections past Services are not concerned", direct, c.here, true)
		answered(t, "what was refused is answered once endpoints come", before, c.there, false)
		t.Run("TCP is not concerned", func(t *testing.T) {
			for _, h := range held {
				if err := h.Check(); err != nil {
					t.Error(err)
				}
			}
		})

		c.endpoints(steady, ep{host: c.here, terminating: true, notServing: true}, ep{host: c.there})
		c.apply()
		answered(t, "it stops to serve and is forgotten", staying, c.there, false)
	})
}

// A frontend that passes from one Service to another takes its clients along, also those that keep sending from one port.
func TestRow24MovedFrontends(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		udp := protocol(v1.ProtocolUDP)
		old := c.serve(service("old", clusterIP(1), udp, everywhere(1)), c.here)
		c.serve(service("new", clusterIP(2), udp), c.there)
		c.apply()
		cluster1, node1, external1, lb1 := c.frontends(1)
		kept := c.flows(t, c.pod, cluster1)
		moving := append(c.flows(t, c.pod, node1, external1, lb1), c.flows(t, c.External, node1, external1, lb1)...)
		answered(t, "at first", append(moving, kept...), c.here, true)

		c.put(service("old", clusterIP(1), udp), service("new", clusterIP(2), udp, everywhere(1)))
		c.apply()
		answered(t, "NodePort, external and load balancer's address", moving, c.there, false)
		answered(t, "what did not move", kept, c.here, true)

		c.endpoints(old)
		c.remove(old)
		c.apply()
		c.serve(service("again", clusterIP(1), udp), c.there)
		c.apply()
		answered(t, "a ClusterIP that is given again", kept, c.there, false)
	})
}

// silent is a subtest: from some time on the flows are not answered any more, though their endpoint goes on serving.
func silent(t *testing.T, what string, fs []*flow) {
	t.Helper()
	t.Run(what, func(t *testing.T) {
		for _, f := range fs {
			for range 2 {
				wait.NoError(t, what, func() error {
					if who, err := f.ask(resend); err == nil {
						return fmt.Errorf("%s: still answered by %q", f.what, who)
					}
					return nil
				})
			}
		}
	})
}

// Entries of UDP clients that keep sending go with their Service or its port, whether the Service or its EndpointSlices are
// deleted first. Kubernetes does so since 1.38.
func TestRow24DeletedServices(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		udp := protocol(v1.ProtocolUDP)
		first := c.serve(service("first", clusterIP(1), udp, everywhere(1)), c.here)
		last := c.serve(service("last", clusterIP(2), udp, everywhere(2)), c.here)
		both := []v1.ServicePort{{Name: "a", Protocol: v1.ProtocolUDP, Port: 80}, {Name: "b", Protocol: v1.ProtocolUDP, Port: 81}}
		c.serve(service("two", clusterIP(3), ports(both...)), c.here)
		c.serve(service("steady", clusterIP(4), udp), c.here)
		c.apply()

		all := func(n int) []*flow {
			cluster, node, external, lb := c.frontends(n)
			return append(c.flows(t, c.pod, cluster, external, lb), c.flows(t, c.External, node, external, lb)...)
		}
		ofFirst, ofLast := all(1), all(2)
		ofPort, steady := c.flows(t, c.pod, clusterIP(3).on(81)), c.flows(t, c.pod, clusterIP(3).on(80), clusterIP(4).on(80))
		answered(t, "at first", slices.Concat(ofFirst, ofLast, ofPort, steady), c.here, true)

		delete(c.objects, harness.Key(first)) // its slices stay
		c.endpoints(last)
		c.put(service("two", clusterIP(3), ports(both[:1]...)))
		c.apply()
		silent(t, "a deleted Service's, though there are its EndpointSlices", ofFirst)
		silent(t, "a deleted port's", ofPort)

		c.remove(first, last)
		c.apply()
		silent(t, "a Service's whose EndpointSlices went before", ofLast)
		silent(t, "a deleted Service's", ofFirst)
		answered(t, "others' stay", steady, c.here, true)
	})
}
