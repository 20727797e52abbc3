//go:build linux

package packets

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// An input for the node's network: commands before nkp starts, on the node, the router and the second node.
type command struct {
	on   *testbed.Host
	argv string
}

func (c *cluster) exec(commands ...command) {
	c.t.Helper()
	for _, cmd := range commands {
		if out, err := c.Exec(cmd.on, strings.Fields(cmd.argv)...); err != nil {
			c.t.Fatal(cmd.argv, out, err)
		}
	}
}

// onLink moves the second node into the node's subnet, behind a bridge of the kernel's that the uplink ends in. Its own way is on the
// link, too; the router has no routes to its pods any more.
func (c *cluster) onLink() {
	c.t.Helper()
	device := c.RouterDevice()
	c.exec(
		command{c.Router, "ip link set remote nomaster"},
		command{c.Router, "ip addr flush dev remote"},
		command{c.Router, "ip link add switch type bridge"},
		command{c.Router, "ip link set " + device + " down"},
		command{c.Router, "ip link set remote down"},
		command{c.Router, "ip link set " + device + " master switch"},
		command{c.Router, "ip link set remote master switch"},
	)
	for _, a := range []string{"172.16.0.1/24", "10.0.0.1/24", "fd00:ac::1/64", "fd00:a::1/64"} {
		_, _ = c.Exec(c.Router, "ip", "addr", "del", a, "dev", device)
		c.exec(command{c.Router, "ip addr add " + a + " dev switch nodad"})
	}
	c.exec(
		command{c.Router, "ip link set switch address " + testbed.GatewayMAC},
		command{c.Router, "ip link set " + device + " address 02:00:00:00:00:99"},
		command{c.Router, "ip link set switch up"},
		command{c.Router, "ip link set " + device + " up"},
		command{c.Router, "ip link set remote up"},
		command{c.Remote, "ip addr del 172.16.1.3/24 dev eth0"},
		command{c.Remote, "ip addr del fd00:ac:1::3/64 dev eth0"},
		command{c.Remote, "ip addr add 172.16.0.3/24 dev eth0"},
		command{c.Remote, "ip addr add fd00:ac::3/64 dev eth0 nodad"},
		command{c.Remote, "ip route replace default via 172.16.0.1"},
		command{c.Remote, "ip -6 route replace default via fd00:ac::1"},
		command{c.Remote, "ip route replace 10.0.0.0/24 via 172.16.0.2"},
		command{c.Remote, "ip -6 route replace fd00:a::/64 via fd00:ac::2"},
		command{c.Router, "ip route replace 192.168.0.0/24 dev external"},
	)
}

// everyWay are Services of both families and protocols, and what reaches them: from the node, and at a NodePort from outside.
type everyWay struct {
	objects []any
	own     []string // proto and address, from the node
	outside []string
}

func reachEveryWay(end4, end6 netip.Addr) (w everyWay) {
	n := 0
	for _, proto := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		for i, end := range []netip.Addr{end4, end6} {
			n++
			vip, node := fmt.Sprintf("40.0.0.%d", n), testbed.NodeIP4
			if i == 1 {
				vip, node = fmt.Sprintf("fd00:40::%d", n), testbed.NodeIP6
			}
			port := uint16(30080 + n)
			s := service(nth("web", n), vip, exposed(int32(port)), protocol(proto))
			w.objects = append(w.objects, s, slice(s, 8080, at(end)))
			name := strings.ToLower(string(proto))
			w.own = append(w.own, name+" "+hostPort(netip.MustParseAddr(vip), 80))
			w.outside = append(w.outside, name+" "+hostPort(node, port))
		}
	}
	return w
}

// answered waits until each of the frontends is answered by a pod.
func (c *cluster) answered(t *testing.T, from *testbed.Host, list []string, pod string) {
	t.Helper()
	for _, to := range list {
		proto, addr, _ := strings.Cut(to, " ")
		wait.NoError(t, fmt.Sprintf("%s -> %s: %s answers", from.Name, to, pod), func() error {
			ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second) // else one SYN's repetitions would take all of the wait
			defer cancel()
			a, err := from.Ask(ctx, proto, addr)
			if err == nil && a.Pod != pod {
				err = fmt.Errorf("%s answers", a.Pod)
			}
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, c.explain(proto, addr))
			}
			return err
		})
	}
}

// restart stops nkp and starts it again.
func (c *cluster) restart(t *testing.T) {
	t.Helper()
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.run()
	c.settle()
}

// The node's routes to the endpoints are host routes by another node, and there is a router, or none, or none that is the default. The
// node and clients at its NodePorts reach endpoints there.
func TestHostRoutesToEndpoints(t *testing.T) {
	for name, drop := range map[string]bool{"with a router": false, "without a default route": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
			c.onLink()
			c.exec(
				command{c.Node, "ip route add 10.0.1.0/24 via 172.16.0.3"},
				command{c.Node, "ip -6 route add fd00:b::/64 via fd00:ac::3"},
			)
			from := []*testbed.Host{c.Node}
			if drop {
				c.exec(command{c.Node, "ip route del default"}, command{c.Node, "ip -6 route del default"})
			} else {
				from = append(from, c.External)
			}
			end := c.remotes[0]
			w := reachEveryWay(end.IP4, end.IP6)
			c.begin(w.objects...)
			for _, ip := range []netip.Addr{end.IP4, end.IP6} {
				c.ask(t, c.Node, "tcp", hostPort(ip, 8080), end.Name) // directly
			}
			for range 2 {
				for _, h := range from {
					if h == c.Node {
						c.answered(t, h, w.own, end.Name)
						continue
					}
					c.answered(t, h, w.outside, end.Name)
				}
				c.answered(t, c.Remote, w.outside, end.Name) // a client on the link
				c.restart(t)
			}
		})
	}
}

// An endpoint is a station on the node's link, and there is no router: a process in the host's network of another node.
func TestEndpointsOnTheLink(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	c.onLink()
	c.exec(command{c.Node, "ip route del default"}, command{c.Node, "ip -6 route del default"}, command{c.Node, "ip neigh flush dev " + c.Bridge})
	for _, serve := range []func(int) (*testbed.Server, error){c.Remote.ServeTCP, c.Remote.ServeUDP} {
		_, err := serve(8080)
		must(t, err)
	}
	w := reachEveryWay(netip.MustParseAddr("172.16.0.3"), netip.MustParseAddr("fd00:ac::3"))
	c.begin(w.objects...)
	for range 2 {
		c.answered(t, c.Node, w.own, c.Remote.Name)
		c.restart(t)
	}
}

// The routers of the two families are different stations.
func TestARouterPerFamily(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	device := c.RouterDevice()
	c.exec(
		command{c.Router, "ip link add six link " + device + " type macvlan mode bridge"},
		command{c.Router, "ip link set six address 02:00:00:00:00:06"},
		command{c.Router, "ip addr del fd00:ac::1/64 dev " + device},
		command{c.Router, "ip link set six up"},
		command{c.Router, "ip addr add fd00:ac::1/64 dev six nodad"},
		// What comes to the other station's MAC is lost, as between two routers.
		command{c.Router, "ip6tables-nft -t raw -A PREROUTING -i " + device + " -d fd00:b::/64 -j DROP"},
		command{c.Router, "ip6tables-nft -t raw -A PREROUTING -i " + device + " -d fd00:c0::/64 -j DROP"},
	)
	for _, p := range []string{"fd00:40::/112", "fd00:20::/112"} {
		c.exec(command{c.Router, "ip -6 route replace " + p + " via fd00:ac::2 dev six"})
	}
	end := c.remotes[0]
	w := reachEveryWay(end.IP4, end.IP6)
	c.begin(w.objects...)
	for range 2 {
		c.answered(t, c.Node, w.own, end.Name)
		c.answered(t, c.External, w.outside, end.Name)
		c.restart(t)
	}
}

// The router's MAC changes, and nothing announces it: the kernel finds out by asking a router that does not answer any more.
func TestRouterChangesItsMAC(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	end := c.remotes[0]
	w := reachEveryWay(end.IP4, end.IP6)
	c.begin(w.objects...)
	c.answered(t, c.Node, w.own, end.Name)
	change := func(mac string) {
		t.Helper()
		device := c.RouterDevice()
		c.exec(
			command{c.Router, "sysctl -qw net.ipv4.conf." + device + ".arp_notify=0"},
			command{c.Router, "sysctl -qw net.ipv6.conf." + device + ".ndisc_notify=0"},
			command{c.Router, "ip link set " + device + " address " + mac},
		)
	}
	stale := func() {
		for ip, family := range map[string]string{"172.16.0.1": "-4", "fd00:ac::1": "-6"} {
			_, _ = c.Exec(c.Node, "ip", family, "neigh", "change", ip, "dev", c.Bridge, "nud", "stale") // may have been forgotten
		}
	}
	change("02:00:00:00:00:77")
	stale()
	c.answered(t, c.Node, w.own, end.Name)
	c.answered(t, c.External, w.outside, end.Name)
	must(t, c.agent.Stop(syscall.SIGTERM))
	change("02:00:00:00:00:78")
	stale()
	c.run()
	c.answered(t, c.Node, w.own, end.Name)
	c.answered(t, c.External, w.outside, end.Name)
}

// Where the kernel gives all ports to the node's own connections, nkp keeps those with which it masquerades from it, so that no two
// connections to an endpoint have the same port. Ports that are reserved already are used as they are. A cleanup takes the others back.
func TestMasqueradePortsAreReserved(t *testing.T) {
	const sysctl = "/proc/sys/net/ipv4/ip_local_reserved_ports"
	for _, tc := range []struct {
		reserved, want string
		lo, hi         uint16
	}{
		{"8080,30000-32767", "1024-32767", 1024, 29999},
		{"10000-19999", "10000-19999", 10000, 19999},
	} {
		t.Run(tc.reserved, func(t *testing.T) {
			c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
			must(t, c.Node.Sysctl("ipv4/ip_local_port_range", "1024 65535"))
			must(t, c.Node.Sysctl("ipv4/ip_local_reserved_ports", tc.reserved))
			reserved := func(want string) {
				t.Helper()
				out, err := c.Exec(c.Node, "cat", sysctl)
				if err != nil || strings.TrimSpace(out) != want {
					t.Errorf("reserved ports are %q, %v; want %q", out, err, want)
				}
			}
			end := c.remotes[0]
			w := reachEveryWay(end.IP4, end.IP6)
			c.begin(w.objects...)
			for range 2 {
				for range 50 {
					for i, ip := range []netip.Addr{end.IP4, end.IP6} {
						if port := c.ask(t, c.Node, "tcp", hostPort(ip, 8080), end.Name).Client.Port(); port >= tc.lo && port <= tc.hi {
							t.Fatalf("the node's own connection comes from port %d", port)
						}
						_, to, _ := strings.Cut(w.outside[i], " ")
						if port := c.ask(t, c.External, "tcp", to, end.Name).Client.Port(); port < tc.lo || port > tc.hi {
							t.Fatalf("a masqueraded connection comes from port %d", port)
						}
					}
				}
				reserved(tc.want)
				c.restart(t)
			}
			must(t, c.agent.Stop(syscall.SIGTERM))
			c.cleanup(t)
			reserved(tc.reserved)
		})
	}
}

// A pod reaches itself through a Service though neither its slice names a node nor the database the pod.
func TestHairpinOfAnUnknownPod(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	pods, err := c.AddPods(testbed.PodSpec{NoIDs: true})
	must(t, err)
	pod := pods[0]
	c.pods = append(c.pods, pod)
	w := reachEveryWay(pod.IP4, pod.IP6)
	for _, o := range w.objects {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			s.Endpoints[0].NodeName = nil
		}
	}
	c.begin(w.objects...)
	for range 2 {
		c.answered(t, pod.Host, w.own, pod.Name)
		c.answered(t, c.Node, w.own, pod.Name)
		c.restart(t)
	}
}

// The node is in a VLAN: LOCAL is an access port, and the uplink carries its tag, or is an access port of the same VLAN.
func TestNodeInAVLAN(t *testing.T) {
	for name, access := range map[string]bool{"the uplink is a trunk": false, "the uplink is an access port": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
			end := c.remotes[0]
			if access {
				_, err := c.Vsctl("set", "Port", testbed.UplinkName, "tag=100")
				must(t, err)
			} else {
				// Another bridge takes the tag, as a switch of the network does.
				must(t, c.AddBridge("br-out"))
				_, err := c.Vsctl("set-fail-mode", "br-out", "standalone", "--", "del-port", c.Bridge, testbed.UplinkName, "--", "add-port", "br-out", testbed.UplinkName, "tag=100",
					"--", "add-port", "br-out", "inner", "--", "set", "Interface", "inner", "type=patch", "options:peer=outer",
					"--", "add-port", c.Bridge, "outer", "--", "set", "Interface", "outer", "type=patch", "options:peer=inner", "ofport_request=1")
				must(t, err)
			}
			_, err := c.Vsctl("set", "Port", c.Bridge, "tag=100")
			must(t, err)
			w := reachEveryWay(end.IP4, end.IP6)
			c.begin(w.objects...)
			for range 2 {
				c.ask(t, c.Node, "tcp", hostPort(end.IP4, 8080), end.Name) // directly
				c.answered(t, c.Node, w.own, end.Name)
				c.answered(t, c.External, w.outside, end.Name)
				c.restart(t)
			}
		})
	}
}

// Nobody on the link answers for a load balancer's address or an external IP there: the node reaches them all the same, from the first
// change on, and its routes go with them.
func TestExternalAddressesOnTheLink(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	end := c.remotes[0]
	four, six := service("four", "40.0.0.1", loadBalancer("172.16.0.200")), service("six", "fd00:40::1")
	six.Spec.ExternalIPs = []string{"fd00:ac::200"}
	udp := service("udp", "40.0.0.2", loadBalancer("172.16.0.201"), protocol(v1.ProtocolUDP))
	c.begin()
	c.put(four, slice(four, 8080, at(end.IP4)), six, slice(six, 8080, at(end.IP6)), udp, slice(udp, 8080, at(end.IP4)))
	c.settle()
	for range 2 {
		c.answered(t, c.Node, []string{"tcp 172.16.0.200:80", "tcp [fd00:ac::200]:80", "udp 172.16.0.201:80"}, end.Name)
		c.restart(t)
	}
	c.remove(four)
	c.eventually("the route goes", func() error {
		out, err := c.Exec(c.Node, "ip", "route", "show", "172.16.0.200")
		if err == nil && out != "" {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}

// The uplink has another number than nkp expects, or is a bond: the node, and clients outside, are served all the same, and status says
// what is lacking.
func TestUnknownUplink(t *testing.T) {
	for name, vsctl := range map[string][]string{
		"another number": {"set", "Interface", testbed.UplinkName, "ofport_request=7"},
		"a bond": {"del-port", testbed.UplinkName, "--", "add-port", "br-int", "spare", "--", "set", "Interface", "spare", "type=internal",
			"--", "del-port", "spare", "--", "add-bond", "br-int", "bond0", testbed.UplinkName, "spare", "--", "set", "Interface", "spare", "type=internal",
			"--", "set", "Interface", testbed.UplinkName, "ofport_request=7"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
			_, err := c.Vsctl(vsctl...)
			must(t, err)
			end := c.remotes[0]
			w := reachEveryWay(end.IP4, end.IP6)
			c.begin(w.objects...)
			for range 2 {
				c.answered(t, c.Node, w.own, end.Name)
				c.answered(t, c.External, w.outside, end.Name)
				c.statusSays("the uplink port is unknown (--uplink-port)")
				c.restart(t)
			}
		})
	}
}

// The node's addresses are on lo, and another one of each family on the bridge, by which the router reaches them.
func TestNodeAddressesOnLoopback(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	c.exec(
		command{c.Node, "ip addr del 172.16.0.2/24 dev " + c.Bridge},
		command{c.Node, "ip -6 addr del fd00:ac::2/64 dev " + c.Bridge},
		command{c.Node, "ip addr add 172.16.0.9/24 dev " + c.Bridge},
		command{c.Node, "ip -6 addr add fd00:ac::9/64 dev " + c.Bridge + " nodad"},
		command{c.Node, "ip addr add 172.16.0.2/32 dev lo"},
		command{c.Node, "ip -6 addr add fd00:ac::2/128 dev lo"},
		command{c.Node, "ip route replace default via 172.16.0.1 dev " + c.Bridge},
		command{c.Node, "ip -6 route replace default via fd00:ac::1 dev " + c.Bridge},
		command{c.Router, "ip route replace 172.16.0.2/32 via 172.16.0.9"},
		command{c.Router, "ip -6 route replace fd00:ac::2/128 via fd00:ac::9"},
	)
	for _, p := range testbed.ServiceRanges {
		via := "172.16.0.9"
		if p.Addr().Is6() {
			via = "fd00:ac::9"
		}
		c.exec(command{c.Router, fmt.Sprintf("ip route replace %s via %s", p, via)})
	}
	end := c.remotes[0]
	w := reachEveryWay(end.IP4, end.IP6)
	c.begin(w.objects...)
	for range 2 {
		c.answered(t, c.Node, w.own, end.Name)
		c.answered(t, c.External, w.outside, end.Name)
		c.restart(t)
	}
}
