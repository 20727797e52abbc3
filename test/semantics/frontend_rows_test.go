//go:build linux

package semantics

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A ClusterIP is served to pods, the node and whoever is routed here, by every endpoint.
func TestRow09ClusterIP(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		c.serve(service("web", clusterIP(1)), c.here, c.here2, c.there)
		c.serve(service("self", clusterIP(2)), c.pod)
		c.serve(service("outside", clusterIP(3)), c.External)
		c.listen(c.External, 8080)
		c.listen(c.Node, 8080)
		c.serve(service("node", clusterIP(4)), c.Node)
		c.listen(c.Remote, 8080)
		c.serve(service("other-node", clusterIP(5)), c.Remote)
		c.serve(service("udp", clusterIP(6), protocol(v1.ProtocolUDP)), c.here, c.there)
		c.serve(service("here", clusterIP(7)), c.here, c.here2)
		c.apply()
		web := clusterIP(1).on(80)
		c.expect(t,
			probe{name: "from a pod", from: c.pod, to: web, want: by(c.here, c.here2, c.there)},
			probe{name: "from a pod that is an endpoint", from: c.here, to: web, want: by(c.here, c.here2, c.there)},
			probe{name: "from the node", from: c.Node, to: web, want: by(c.here, c.here2, c.there)},
			probe{name: "from another node's pod", from: c.there2, to: clusterIP(7).on(80), want: by(c.here, c.here2)},
			probe{name: "from another node", from: c.Remote, to: web, want: by(c.here, c.here2, c.there)},
			probe{name: "from outside", from: c.External, to: web, want: by(c.here, c.here2, c.there)},
			probe{name: "over UDP, from a pod", from: c.pod, proto: "udp", to: clusterIP(6).on(80), want: by(c.here, c.there)},
			probe{name: "over UDP, from the node", from: c.Node, proto: "udp", to: clusterIP(6).on(80), want: by(c.here, c.there)},
			probe{name: "from a pod to itself", from: c.pod, to: clusterIP(2).on(80), want: by(c.pod)},
			probe{name: "from the node to that pod", from: c.Node, to: clusterIP(2).on(80), want: by(c.pod)},
			probe{name: "to an endpoint outside the cluster", from: c.pod, to: clusterIP(3).on(80), want: by(c.External)},
			probe{name: "from the node to an endpoint outside the cluster", from: c.Node, to: clusterIP(3).on(80), want: by(c.External)},
			probe{name: "to the node", from: c.pod, to: clusterIP(4).on(80), want: by(c.Node)},
			probe{name: "from the node to itself", from: c.Node, to: clusterIP(4).on(80), want: by(c.Node)},
			probe{name: "from outside to the node", from: c.External, to: clusterIP(4).on(80), want: by(c.Node)},
			probe{name: "to another node", from: c.pod, to: clusterIP(5).on(80), want: by(c.Remote)},
			probe{name: "from the node to another node", from: c.Node, to: clusterIP(5).on(80), want: by(c.Remote)},
		)
	})
}

// NodePorts are served at every address of the node, whichever interface has it, and at no other address.
func TestRow10NodePort(t *testing.T) {
	before := func(c *cluster) {
		c.addNodeAddress(c.NodeDevice(), secondAddress)
		c.addExtraDevice()
	}
	onEveryPlaneWith(t, setup{before: before}, func(t *testing.T, c *cluster) {
		const port = 30001
		c.serve(service("web", clusterIP(1), nodePort(port)), c.here, c.there)
		c.serve(service("udp", clusterIP(2), protocol(v1.ProtocolUDP), nodePort(port)), c.here)
		c.serve(service("node", clusterIP(3), nodePort(30003)), c.Node)
		c.listen(c.Node, 8080)
		c.listen(c.Node, port) // answers what the proxy leaves alone
		c.listen(c.External, port)
		c.apply()
		main, second, extra := of(c.Node).on(port), secondAddress.on(port), extraAddress.on(port)
		own := by(c.Node)
		c.expect(t,
			probe{name: "from outside", from: c.External, to: main, want: by(c.here, c.there)},
			probe{name: "from another node", from: c.Remote, to: main, want: by(c.here, c.there)},
			probe{name: "from a pod", from: c.pod, to: main, want: by(c.here, c.there)},
			probe{name: "from another node's pod", from: c.there2, to: main, want: by(c.here, c.there)}, // masqueraded
			probe{name: "from a pod that is an endpoint", from: c.here, to: main, want: by(c.here, c.there)},
			probe{name: "over UDP from outside", from: c.External, proto: "udp", to: main, want: by(c.here)},
			probe{name: "over UDP from a pod", from: c.pod, proto: "udp", to: main, want: by(c.here)},
			probe{name: "a second address, from outside", from: c.External, to: second, want: by(c.here, c.there)},
			probe{name: "a second address, from a pod", from: c.pod, to: second, want: by(c.here, c.there)},
			probe{name: "another interface's address, from outside", from: c.External, to: extra, want: by(c.here, c.there)},
			probe{name: "another interface's address, from a pod", from: c.pod, to: extra, want: by(c.here, c.there)},
			probe{name: "not at another host's address, from a pod", from: c.pod, to: of(c.External).on(port), want: by(c.External)},
			probe{name: "not at another host's address, from the node", from: c.Node, to: of(c.External).on(port), want: by(c.External)},
			probe{name: "to the node itself, from outside", from: c.External, to: of(c.Node).on(30003), want: by(c.Node)},
			probe{name: "to the node itself, from a pod", from: c.pod, to: of(c.Node).on(30003), want: by(c.Node)},
			probe{name: "from the node", from: c.Node, to: main, want: by(c.here, c.there), needs: ownAddresses, without: &own},
			probe{name: "from the node to its other interface", from: c.Node, to: extra, want: by(c.here, c.there), needs: ownAddresses, without: &own},
			probe{name: "from the node to loopback", from: c.Node, to: v4(numbered("127.0.0.", "::", 1).on(port)), want: by(c.here, c.there), needs: localhost, without: &own},
			probe{name: "never to loopback", from: c.Node, to: v6(numbered("127.0.0.", "::", 1).on(port)), want: own},
		)
		later := numbered("172.31.0.", "fc00:31::", 77)
		c.addNodeAddress(extraDevice, later)
		wait.NoError(t, "an address that the node gets later", func() error {
			for _, to := range later.on(port).addresses() {
				p := probe{from: c.External, proto: "tcp", want: by(c.here, c.there)}
				if err := p.check(c, to); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Without localhost NodePorts loopback addresses are left alone.
func TestRow10NoLocalhostNodePorts(t *testing.T) {
	const port = 30001
	onEveryPlaneWith(t, setup{flags: []string{"--iptables-localhost-nodeports=false"}, needs: localhost}, func(t *testing.T, c *cluster) {
		c.serve(service("web", clusterIP(1), nodePort(port)), c.here)
		c.listen(c.Node, port)
		c.apply()
		c.expect(t,
			probe{name: "loopback", from: c.Node, to: v4(numbered("127.0.0.", "::", 1).on(port)), want: by(c.Node)},
			probe{name: "the node's address", from: c.Node, to: of(c.Node).on(port), want: by(c.here)},
		)
	})
}

// nodeport-addresses restricts NodePorts to addresses of the node, for each family by itself.
func TestRow11NodePortAddresses(t *testing.T) {
	const port = 30001
	for _, tc := range []struct {
		name, flag  string
		main, extra [2]bool // served at the node's main and extra address, over IPv4 and IPv6
	}{
		{"a range of each family", "172.31.0.0/24,fc00:31::/64", [2]bool{false, false}, [2]bool{true, true}},
		{"a range of one family leaves the other open", "172.16.0.0/24", [2]bool{true, true}, [2]bool{false, true}},
		{"a range without any address of the node", "10.99.0.0/16", [2]bool{false, true}, [2]bool{false, true}},
		{"all of a family", "0.0.0.0/0,fc00:31::/64", [2]bool{true, false}, [2]bool{true, true}},
		{"primary", "primary", [2]bool{true, true}, [2]bool{false, false}},
		{"primary and a range", "172.31.0.0/24,primary", [2]bool{true, true}, [2]bool{true, false}},
		{"localhost", "localhost", [2]bool{false, false}, [2]bool{false, false}},
		{"all takes primary in", "primary,all", [2]bool{true, true}, [2]bool{true, true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := func(c *cluster) { c.addExtraDevice() }
			onEveryPlaneWith(t, setup{flags: []string{"--nodeport-addresses", tc.flag}, before: before}, func(t *testing.T, c *cluster) {
				c.serve(service("web", clusterIP(1), nodePort(port), externalIPs(vip(1))), c.here)
				c.listen(c.Node, port)
				c.apply()
				var probes []probe
				for i, family := range []func(target) target{v4, v6} {
					for _, a := range []struct {
						name   string
						to     dual
						served bool
					}{{"main", of(c.Node), tc.main[i]}, {"extra", extraAddress, tc.extra[i]}} {
						want := by(c.Node)
						if a.served {
							want = by(c.here)
						}
						to := family(a.to.on(port))
						probes = append(probes,
							probe{name: "from outside to the " + a.name + " address", from: c.External, to: to, want: want},
							probe{name: "from a pod to the " + a.name + " address", from: c.pod, to: to, want: want})
					}
				}
				c.expect(t, append(probes,
					probe{name: "other frontends are not meant", from: c.External, to: vip(1).on(80), want: by(c.here)})...)
			})
		})
	}
}

// localAddresses are further addresses that the kernel takes for the node's: on loopback, by a route, link-local, and in a range.
func (c *cluster) localAddresses() (single, all []dual) {
	c.t.Helper()
	onLoopback, routed := numbered("172.30.0.", "fc00:30::", 1), numbered("172.30.0.", "fc00:30::", 2)
	linkLocal, inRange := dual{v4: netip.MustParseAddr("169.254.30.3")}, numbered("172.30.1.", "fc00:31:1::", 9)
	for _, argv := range []string{
		"ip addr add 172.30.0.1/32 dev lo", "ip addr add fc00:30::1/128 dev lo",
		"ip route add local 172.30.0.2 dev lo", "ip route add local fc00:30::2 dev lo",
		"ip addr add 169.254.30.3/32 dev lo",
		"ip route add local 172.30.1.0/24 dev lo", "ip route add local fc00:31:1::/64 dev lo",
	} {
		_, err := c.Exec(c.Node, strings.Fields(argv)...)
		must(c.t, err)
	}
	single = []dual{onLoopback, routed, linkLocal}
	all = append(slices.Clone(single), inRange)
	for _, d := range all {
		for _, a := range d.on(0).addresses() {
			p := netip.PrefixFrom(a.Addr(), a.Addr().BitLen())
			must(c.t, c.Router.AddRoute(p, c.Node.IP(a.Addr()), c.RouterDevice()))
		}
	}
	return single, all
}

// NodePorts are served at every address that the kernel takes for the node's: nodeport-addresses, session affinity and the deletion of
// stale UDP connections count each of them.
func TestRow10NodePortsAtLocalAddresses(t *testing.T) {
	kernelOnly := func(c *cluster) {
		if c.plane.bed.Plane != testbed.Linux {
			c.t.Skip("the bridge serves addresses of interfaces")
		}
	}
	t.Run("nodeport-addresses", func(t *testing.T) {
		flags := []string{"--nodeport-addresses", "172.30.0.0/23,169.254.0.0/16,fc00:30::/31"}
		var mu sync.Mutex
		at := map[*cluster][]dual{}
		before := func(c *cluster) {
			kernelOnly(c)
			_, all := c.localAddresses()
			mu.Lock()
			defer mu.Unlock()
			at[c] = all
		}
		onEveryPlaneWith(t, setup{flags: flags, before: before}, func(t *testing.T, c *cluster) {
			c.serve(service("web", clusterIP(1), nodePort(30001)), c.here)
			c.listen(c.Node, 30001)
			c.apply()
			probes := []probe{{name: "the main address is not in the ranges", from: c.External, to: of(c.Node).on(30001), want: by(c.Node)}}
			mu.Lock()
			defer mu.Unlock()
			for i, d := range at[c] {
				want := by(c.here)
				if i == len(at[c])-1 {
					want = by(c.Node) // a range of routes is no address that could be in the ranges
				}
				probes = append(probes, probe{name: "from outside", from: c.External, to: d.on(30001), want: want},
					probe{name: "from the node", from: c.Node, to: d.on(30001), want: want})
			}
			c.expect(t, probes...)
		})
	})
	t.Run("affinity and UDP", func(t *testing.T) {
		onEveryPlaneWith(t, setup{before: kernelOnly}, func(t *testing.T, c *cluster) {
			_, all := c.localAddresses()
			c.serve(service("web", clusterIP(1), nodePort(30001), affinity(3600)), c.pod, c.here, c.here2, c.there, c.there2)
			dns := c.serve(service("dns", clusterIP(2), nodePort(30002), protocol(v1.ProtocolUDP)), c.here)
			c.apply()
			for _, d := range append(slices.Clone(all), dual{v4: netip.MustParseAddr("127.0.0.5")}) {
				for _, to := range d.on(30001).addresses() {
					client := probe{from: c.Node, proto: "tcp"}
					if !to.Addr().IsLoopback() {
						client.from = c.External
					}
					p := pin{client: client, to: to}
					first := p.ask(t, c)
					for range 5 { // of five endpoints one answers this often by chance once in 10^10
						if again := p.ask(t, c); again != first {
							t.Errorf("%s: answered by %s, then %s", to, first, again)
						}
					}
				}
			}
			var flows []*flow
			for _, d := range all {
				flows = append(flows, c.flows(t, c.External, d.on(30002))...)
			}
			answered(t, "at first", flows, c.here, true)
			c.endpoints(dns, ready(c.there)...)
			c.apply()
			answered(t, "an endpoint that goes is forgotten", flows, c.there, false)
		})
	})
}

// Whatever of the Node object comes late, or goes and comes again, is in force once it is there: its addresses, which nodeport-addresses
// primary stands for and which the node's interfaces had before.
func TestRow11NodePortsOfALateNode(t *testing.T) {
	before := func(c *cluster) {
		if c.node.Status.Addresses = nil; c.plane.name == "kube-proxy" {
			c.t.Skip("kube-proxy does not start without an address of its node")
		}
	}
	onEveryPlaneWith(t, setup{flags: []string{"--nodeport-addresses", "primary"}, before: before}, func(t *testing.T, c *cluster) {
		c.serve(service("web", clusterIP(1), nodePort(30001), externalIPs(vip(1))), c.here)
		c.listen(c.Node, 30001) // answers what the proxy leaves alone
		expect := func(what string, by4, by6 *testbed.Host) {
			t.Helper()
			c.apply()
			c.expect(t,
				probe{name: what, from: c.External, to: v4(of(c.Node).on(30001)), want: by(by4)},
				probe{name: what, from: c.External, to: v6(of(c.Node).on(30001)), want: by(by6)},
				probe{name: what + ", other frontends", from: c.External, to: vip(1).on(80), want: by(c.here)})
		}
		late := c.nodeObject().Status.Addresses
		expect("no address yet", c.Node, c.Node)
		c.node.Status.Addresses = late[:1]
		expect("the first address", c.here, c.Node)
		c.node.Status.Addresses = late
		expect("both addresses", c.here, c.here)
		node := c.node
		c.node = nil
		expect("no Node object", c.Node, c.Node)
		c.node = node
		expect("the Node object again", c.here, c.here)
	})
}

// externalIPs are served from everywhere.
func TestRow12ExternalIPs(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		c.serve(service("plain", clusterIP(1), externalIPs(vip(1))), c.here, c.there)
		c.serve(service("balanced", clusterIP(2), externalIPs(vip(2)), loadBalancer(nil, vip(3)), sourceRanges("203.0.113.0/24", "2001:db8::/64")),
			c.here, c.there)
		c.serve(service("udp", clusterIP(3), protocol(v1.ProtocolUDP), externalIPs(vip(1))), c.there)
		c.serve(service("inside", clusterIP(4), externalIPs(clusterIP(104)), loadBalancer(nil, clusterIP(105))), c.here, c.there)
		c.serve(service("inside-udp", clusterIP(5), protocol(v1.ProtocolUDP), externalIPs(clusterIP(104))), c.there)
		c.serve(service("inside-empty", clusterIP(6), externalIPs(clusterIP(106))))
		c.apply()
		both := by(c.here, c.there).masquerade()
		c.expect(t,
			probe{name: "from outside", from: c.External, to: vip(1).on(80), want: both},
			probe{name: "from another node", from: c.Remote, to: vip(1).on(80), want: both},
			probe{name: "from a pod", from: c.pod, to: vip(1).on(80), want: both},
			probe{name: "from another node's pod", from: c.there2, to: vip(1).on(80), want: both},
			probe{name: "from the node", from: c.Node, to: vip(1).on(80), want: both},
			probe{name: "over UDP", from: c.External, proto: "udp", to: vip(1).on(80), want: by(c.there).masquerade()},
			probe{name: "source ranges are not for them", from: c.External, to: vip(2).on(80), want: both},
			probe{name: "inside the Service range, from outside", from: c.External, to: clusterIP(104).on(80), want: both},
			probe{name: "inside the Service range, from a pod", from: c.pod, to: clusterIP(104).on(80), want: both},
			probe{name: "inside the Service range, from the node", from: c.Node, to: clusterIP(104).on(80), want: both},
			probe{name: "a load balancer's address inside it", from: c.pod, to: clusterIP(105).on(80), want: both},
			probe{name: "inside the Service range, over UDP", from: c.pod, proto: "udp", to: clusterIP(104).on(80), want: by(c.there).masquerade()},
			probe{name: "inside the Service range, without endpoints", from: c.pod, to: clusterIP(106).on(80), want: refused},
		)
	})
}

// Services with many addresses are served at each of them in the same way, before and after a restart that finds few of them installed.
func TestRow12ManyAddresses(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		vips := func(first, last int) (list []dual) {
			for n := first; n <= last; n++ {
				list = append(list, vip(n))
			}
			return list
		}
		web := c.serve(service("web", clusterIP(1), nodePort(30001), externalIPs(vip(10))), c.here, c.here2, c.there)
		c.serve(service("local", clusterIP(2), externalIPs(vips(20, 25)...), externalLocal), c.here, c.there)
		c.serve(service("inside", clusterIP(3), externalIPs(vips(30, 35)...), internalLocal), c.here, c.there)
		c.serve(service("ranges", clusterIP(4), loadBalancer(nil, vips(40, 45)...), sourceRanges("192.168.0.0/24", "fd00:c0::/64")), c.here, c.there)
		c.serve(service("udp", clusterIP(5), protocol(v1.ProtocolUDP), externalIPs(vips(10, 15)...)), c.there)
		c.serve(service("pinned", clusterIP(6), nodePort(30006), externalIPs(vips(60, 65)...), affinity(3600)), c.here, c.here2, c.there)
		c.apply()
		held, err := c.External.Hold(c.ctx, v4(vip(10).on(80)).addresses()[0].String(), testbed.DialOptions{})
		must(t, err)

		must(t, c.proxy.Stop(syscall.SIGTERM))
		web.Spec.ExternalIPs = nil
		externalIPs(vips(10, 15)...)(web)
		c.write()
		c.start()
		if err := held.Check(); err != nil {
			t.Errorf("an open connection: %v", err)
		}
		all, two := by(c.here, c.here2, c.there), by(c.here, c.there)
		c.expect(t,
			probe{name: "the ClusterIP", from: c.pod, to: clusterIP(1).on(80), want: all},
			probe{name: "the NodePort", from: c.External, to: of(c.Node).on(30001), want: all},
			probe{name: "the first", from: c.External, to: vip(10).on(80), want: all},
			probe{name: "the last", from: c.External, to: vip(15).on(80), want: all},
			probe{name: "the last, from a pod", from: c.pod, to: vip(15).on(80), want: all},
			probe{name: "the last, from the node", from: c.Node, to: vip(15).on(80), want: all},
			probe{name: "policy Local, from outside", from: c.External, to: vip(25).on(80), want: by(c.here).keep()},
			probe{name: "policy Local, from a pod", from: c.pod, to: vip(25).on(80), want: two.keep()},
			probe{name: "policy Local, the ClusterIP", from: c.pod, to: clusterIP(2).on(80), want: two},
			probe{name: "internal policy Local, the ClusterIP", from: c.pod, to: clusterIP(3).on(80), want: by(c.here)},
			probe{name: "internal policy Local, from outside", from: c.External, to: vip(35).on(80), want: two},
			probe{name: "in a source range", from: c.External, to: vip(45).on(80), want: two},
			probe{name: "in no source range", from: c.Remote, to: vip(45).on(80), want: dropped},
			probe{name: "over UDP", from: c.External, proto: "udp", to: vip(15).on(80), want: by(c.there)},
		)
		for _, family := range []func(target) target{v4, v6} {
			pinned := c.sole(t, c.External, family(vip(60).on(80)))
			for _, to := range []target{clusterIP(6).on(80), vip(65).on(80), of(c.Node).on(30006)} {
				if who := c.sole(t, c.External, family(to)); who != pinned {
					t.Errorf("a client is answered by %s and at another address by %s", pinned, who)
				}
			}
		}

		c.endpoints(web, ready(c.there2)...)
		c.apply()
		c.expect(t,
			probe{name: "another endpoint, at the ClusterIP", from: c.pod, to: clusterIP(1).on(80), want: by(c.there2)},
			probe{name: "another endpoint, at the last", from: c.External, to: vip(15).on(80), want: by(c.there2)},
		)
		web.Spec.ExternalIPs = nil
		externalIPs(vip(15))(web)
		c.apply()
		c.expect(t,
			probe{name: "few addresses again", from: c.External, to: vip(15).on(80), want: by(c.there2)},
			probe{name: "few addresses again, the ClusterIP", from: c.pod, to: clusterIP(1).on(80), want: by(c.there2)},
		)
	})
}

// The gate AllowServiceExternalIPs turns them off.
func TestRow12NoExternalIPs(t *testing.T) {
	onEveryPlaneWith(t, setup{flags: []string{"--feature-gates", "AllowServiceExternalIPs=false"}}, func(t *testing.T, c *cluster) {
		c.elsewhere(vip(101))
		c.serve(service("web", clusterIP(1), everywhere(1)), c.here)
		c.apply()
		cluster, node, external, lb := c.frontends(1)
		c.expect(t,
			probe{name: "externalIPs are left alone", from: c.pod, to: external, want: by(c.External)},
			probe{name: "externalIPs are left alone, from the node", from: c.Node, to: external, want: by(c.External)},
			probe{name: "the ClusterIP is served", from: c.pod, to: cluster, want: by(c.here)},
			probe{name: "the NodePort is served", from: c.External, to: node, want: by(c.here)},
			probe{name: "the load balancer's address is served", from: c.External, to: lb, want: by(c.here)},
		)
	})
}

// A load balancer's address is served here unless its mode is Proxy: then traffic leaves for the load balancer.
func TestRow13LoadBalancerIngress(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		vipMode, proxyMode := v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy
		c.elsewhere(vip(3), vip(4))
		c.serve(service("unsaid", clusterIP(1), loadBalancer(nil, vip(1))), c.here)
		c.serve(service("vip", clusterIP(2), loadBalancer(&vipMode, vip(2))), c.here)
		c.serve(service("proxy", clusterIP(3), loadBalancer(&proxyMode, vip(3)), nodePort(30003)), c.here)
		mixed := c.serve(service("mixed", clusterIP(4), loadBalancer(&proxyMode, vip(4)), nodePort(30004)), c.here)
		loadBalancer(&vipMode, vip(5))(mixed)
		named := c.serve(service("named", clusterIP(6), loadBalancer(nil), nodePort(30006)), c.here)
		named.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{Hostname: "lb.example.org"}}
		pending := c.serve(service("pending", clusterIP(7), loadBalancer(nil), nodePort(30007)), c.here)
		c.apply()
		c.expect(t,
			probe{name: "no mode: from outside", from: c.Remote, to: vip(1).on(80), want: by(c.here)},
			probe{name: "no mode: from a pod", from: c.pod, to: vip(1).on(80), want: by(c.here)},
			probe{name: "no mode: from the node", from: c.Node, to: vip(1).on(80), want: by(c.here)},
			probe{name: "VIP: from outside", from: c.External, to: vip(2).on(80), want: by(c.here)},
			probe{name: "VIP: from a pod", from: c.pod, to: vip(2).on(80), want: by(c.here)},
			probe{name: "Proxy: from a pod", from: c.pod, to: vip(3).on(80), want: by(c.External)},
			probe{name: "Proxy: from the node", from: c.Node, to: vip(3).on(80), want: by(c.External)},
			probe{name: "Proxy: the node port works", from: c.External, to: of(c.Node).on(30003), want: by(c.here)},
			probe{name: "Proxy: the ClusterIP works", from: c.pod, to: clusterIP(3).on(80), want: by(c.here)},
			probe{name: "each address has its own mode: Proxy", from: c.pod, to: vip(4).on(80), want: by(c.External)},
			probe{name: "each address has its own mode: VIP", from: c.pod, to: vip(5).on(80), want: by(c.here)},
			probe{name: "a host name only: the node port works", from: c.External, to: of(c.Node).on(30006), want: by(c.here)},
			probe{name: "no address yet: the node port works", from: c.External, to: of(c.Node).on(30007), want: by(c.here)},
		)
		loadBalancer(nil, vip(7))(pending)
		c.apply()
		c.expect(t, probe{name: "an address that comes later", from: c.External, to: vip(7).on(80), want: by(c.here)})
	})
}

// loadBalancerSourceRanges: who may use the load balancer's addresses, and nothing else.
func TestRow14SourceRanges(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		outside, pods, node := []string{"192.168.0.0/24", "fd00:c0::/64"}, []string{" 10.0.0.0/16 ", "\tfd00:a::/31"}, []string{"172.16.0.2/32", "fd00:ac::2/128"}
		c.serve(service("outside", clusterIP(1), everywhere(1), sourceRanges(outside...)), c.here)
		c.serve(service("pods", clusterIP(2), everywhere(2), sourceRanges(pods...)), c.here)
		c.serve(service("all", clusterIP(3), everywhere(3), sourceRanges("203.0.113.0/24", "0.0.0.0/0", "2001:db8::/64", "::/0")), c.here)
		c.serve(service("all4", clusterIP(4), everywhere(4), sourceRanges("0.0.0.0/0", "2001:db8::/64")), c.here)
		c.serve(service("six", clusterIP(5), everywhere(5), sourceRanges("2001:db8::/64")), c.here)
		c.serve(service("node", clusterIP(6), everywhere(6), sourceRanges(node...)), c.here)
		c.serve(service("empty", clusterIP(7), everywhere(7), sourceRanges("203.0.113.0/24", "2001:db8::/64")))
		c.serve(service("local", clusterIP(8), everywhere(8), sourceRanges(outside...), externalLocal), c.here)
		c.apply()
		cluster, node1, external, lb := c.frontends(1)
		c.expect(t,
			probe{name: "who is in a range is served", from: c.External, to: lb, want: by(c.here)},
			probe{name: "another node is not", from: c.Remote, to: lb, want: dropped},
			probe{name: "pods are not", from: c.pod, to: lb, want: dropped},
			probe{name: "other nodes' pods are not", from: c.there2, to: lb, want: dropped},
			probe{name: "the node is not", from: c.Node, to: lb, want: dropped},
			probe{name: "they do not bind the ClusterIP", from: c.pod, to: cluster, want: by(c.here)},
			probe{name: "they do not bind the NodePort", from: c.Remote, to: node1, want: by(c.here)},
			probe{name: "they do not bind externalIPs", from: c.Remote, to: external, want: by(c.here)},
			probe{name: "pods in a range with blanks around are served", from: c.pod, to: vip(2).on(80), want: by(c.here)},
			probe{name: "while those outside are not", from: c.External, to: vip(2).on(80), want: dropped},
			probe{name: "a range of length 0 is none", from: c.Remote, to: vip(3).on(80), want: by(c.here)},
			probe{name: "but for its family only", from: c.Remote, to: v4(vip(4).on(80)), want: by(c.here)},
			probe{name: "but for its family only", from: c.Remote, to: v6(vip(4).on(80)), want: dropped},
			probe{name: "ranges of the other family are none", from: c.Remote, to: v4(vip(5).on(80)), want: by(c.here)},
			probe{name: "ranges of its own family bind", from: c.Remote, to: v6(vip(5).on(80)), want: dropped},
			probe{name: "the node in a range is served", from: c.Node, to: vip(6).on(80), want: by(c.here)},
			probe{name: "while others are not", from: c.Remote, to: vip(6).on(80), want: dropped},
			probe{name: "without endpoints everybody is refused", from: c.Remote, to: vip(7).on(80), want: refused},
			probe{name: "policy Local: who is in a range is served", from: c.External, to: vip(8).on(80), want: by(c.here).keep()},
			probe{name: "policy Local: another node is not", from: c.Remote, to: vip(8).on(80), want: dropped},
			probe{name: "policy Local: pods are not", from: c.pod, to: vip(8).on(80), want: dropped},
			probe{name: "policy Local: the node is not", from: c.Node, to: vip(8).on(80), want: dropped},
		)
	})
}

// Where the node itself holds a load balancer's address and may use it by its own address, it may by that one, too.
func TestRow14OwnVIP(t *testing.T) {
	before := func(c *cluster) {
		c.addExtraDevice()
		c.addNodeAddress(extraDevice, vip(1))
		c.addNodeAddress(extraDevice, vip(2))
	}
	onEveryPlaneWith(t, setup{before: before}, func(t *testing.T, c *cluster) {
		c.serve(service("mine", clusterIP(1), loadBalancer(nil, vip(1)), sourceRanges("172.16.0.0/24", "fd00:ac::/64")), c.here)
		c.serve(service("others", clusterIP(2), loadBalancer(nil, vip(2)), sourceRanges("203.0.113.0/24", "2001:db8::/64")), c.here)
		c.listen(c.Node, 80)
		c.apply()
		own := by(c.Node)
		c.expect(t,
			probe{name: "from the node", from: c.Node, to: vip(1).on(80), want: by(c.here), needs: ownAddresses, without: &own},
			probe{name: "unless the node is in no range", from: c.Node, to: vip(2).on(80), want: dropped, needs: ownAddresses, without: &own},
			probe{name: "from a pod", from: c.pod, to: vip(1).on(80), want: dropped},
			probe{name: "from outside", from: c.External, to: vip(1).on(80), want: dropped},
		)
	})
}
