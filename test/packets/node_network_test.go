//go:build linux

package packets

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// nodeNetwork is a network of a node that differs from the usual one. Whatever it is, Services are reached over both families and
// protocols, before and after a restart of nkp; trace says so, and status warns of nothing but what the row says.
type nodeNetwork struct {
	name    string
	nightly string // why the gate does not need the row; "": it runs there
	options testbed.Options
	prepare func(c *cluster)
	// from are the clients: the node and a host outside, unless the row says otherwise. The node, and pods, ask at ClusterIPs, all
	// others at NodePorts.
	from func(c *cluster) []*testbed.Host
	// end is the endpoint: a pod of the second node, unless the row says otherwise.
	end func(c *cluster) *testbed.Host
	// while changes the network while nkp runs, and then while it does not.
	while func(c *cluster, restarted bool)
	says  []string // each of status' warnings has one of these, and each is there
	// in is the port that trace has to be told of where a packet comes from outside; doubt is why it is not certain of delivery.
	in, doubt string
}

func TestNodeNetwork(t *testing.T) {
	for _, row := range nodeNetworks {
		t.Run(row.name, func(t *testing.T) {
			if row.nightly != "" {
				nightly.Only(t, row.nightly)
			}
			row.try(t)
		})
	}
}

func (row *nodeNetwork) try(t *testing.T) {
	c := newCluster(t, row.options, "--service-cidr", serviceCIDRs)
	end, from := c.remotes[0].Host, []*testbed.Host{c.Node, c.External}
	if row.prepare != nil {
		row.prepare(c)
	}
	if row.end != nil {
		end = row.end(c)
	}
	if row.from != nil {
		from = row.from(c)
	}
	w := reachEveryWay(end.IP(testbed.NodeIP4), end.IP(testbed.NodeIP6))
	c.begin(w.objects...)

	for _, restarted := range []bool{false, true} {
		if restarted {
			must(t, c.agent.Stop(syscall.SIGTERM))
		}
		if row.while != nil {
			row.while(c, restarted)
		}
		if restarted {
			c.run()
			c.settle()
		}
		for _, h := range from {
			list := w.outside
			if h == c.Node || h == end {
				list = w.own
			}
			c.answered(t, h, list, end.Name)
			if row.while == nil { // else trace finds connections that had no answer
				c.tracedTo(t, row, h, list, end)
			}
		}
		c.warnsOf(t, row.says)
	}
}

var nodeNetworks = []nodeNetwork{
	{name: "endpoints by a host route, with a router", prepare: hostRoutes, from: func(c *cluster) []*testbed.Host {
		return []*testbed.Host{c.Node, c.External, c.Remote}
	}},
	{name: "endpoints by a host route, without a default route", prepare: func(c *cluster) {
		hostRoutes(c)
		c.on(c.Node, noDefault)
	}, from: nodeAndLink},
	{name: "endpoints on the link, without a router", prepare: func(c *cluster) {
		c.onLink()
		c.on(c.Node, noDefault+"ip neigh flush dev BRIDGE")
		for _, serve := range []func(int) (*testbed.Server, error){c.Remote.ServeTCP, c.Remote.ServeUDP} {
			_, err := serve(8080)
			must(c.t, err)
		}
	}, end: func(c *cluster) *testbed.Host { return c.Remote }, from: onlyNode},
	{name: "a router of its own for IPv6", prepare: func(c *cluster) {
		// What comes to the other station's MAC is lost, as between two routers.
		c.on(c.Router, ownRouter6)
	}},
	{name: "a router whose MAC changes unannounced", prepare: func(*cluster) {}, while: func(c *cluster, restarted bool) {
		mac := "02:00:00:00:00:77"
		if restarted {
			mac = "02:00:00:00:00:78"
		}
		c.on(c.Router, `echo 0 >/proc/sys/net/ipv4/conf/DEVICE/arp_notify
			echo 0 >/proc/sys/net/ipv6/conf/DEVICE/ndisc_notify
			ip link set DEVICE address `+mac)
		// The kernel may have forgotten it.
		c.on(c.Node, `ip neigh change 172.16.0.1 dev BRIDGE nud stale || true
			ip neigh change fd00:ac::1 dev BRIDGE nud stale || true`)
	}},
	{name: "a NIC outside the bridge that gets other names", options: testbed.Options{NodeOutside: true}, prepare: func(c *cluster) {
		c.on(c.Node, "echo 1 >/proc/sys/net/ipv6/conf/eth0/keep_addr_on_down")
	}, while: func(c *cluster, restarted bool) {
		names := []string{"eth0", "lan0"}
		if restarted {
			names = []string{"lan0", "lan1"}
		}
		c.on(c.Node, strings.NewReplacer("OLD", names[0], "NEW", names[1]).Replace(`ip link set OLD down
			ip link set OLD name NEW
			ip link set NEW up
			ip route replace default via 172.16.0.1
			ip -6 route replace default via fd00:ac::1`))
	}},
	{name: "two IPv6 next hops of IPv4, one of them dead", prepare: func(c *cluster) {
		c.on(c.Router, ownRouter6+"echo 0 >/proc/sys/net/ipv6/conf/DEVICE/disable_ipv6\nip addr add fe80::1/64 dev DEVICE nodad\n"+
			"nft 'table netdev x { chain x { type filter hook ingress device six priority 0; meta protocol ip drop; }; }'")
		c.on(c.Node, `ip nexthop add id 7 via fe80::2 dev BRIDGE
			ip nexthop add id 8 via fe80::1 dev BRIDGE
			ip nexthop add id 9 group 7/8
			ip route del default
			ip route add default nhid 9`)
	}},
	{name: "routes with an MTU", from: onlyNode, prepare: func(c *cluster) {
		// 1460 or 1440 of the link; 1360 or 1340 of the routes
		c.on(c.Router, `nft 'table inet small { chain x { type filter hook forward priority 0;
			tcp flags & (syn|ack) == syn tcp option maxseg size > 1360 drop; }; }'`)
	}, while: func(c *cluster, restarted bool) {
		if restarted {
			c.on(c.Node, `ip route replace default via 172.16.0.1 dev BRIDGE
				ip route add 10.0.1.0/24 via 172.16.0.1 mtu 1400
				ip -6 route replace fd00:b::/64 via fd00:ac::1 mtu 1400`)
			return
		}
		c.on(c.Node, `ip route replace default via 172.16.0.1 dev BRIDGE mtu 1400
			ip -6 route replace default via fd00:ac::1 dev BRIDGE mtu 1400`)
	}},
	{name: "the node's addresses on another port of the bridge, in a VLAN", prepare: func(c *cluster) {
		c.vsctl("add-port " + c.Bridge + " mgmt0 -- set Interface mgmt0 type=internal -- set Port uplink tag=100 -- set Port mgmt0 tag=100")
		c.on(c.Node, `ip addr flush dev BRIDGE
			ip addr add 172.16.0.2/24 dev mgmt0
			ip addr add fd00:ac::2/64 dev mgmt0 nodad
			ip link set mgmt0 up
			ip route replace default via 172.16.0.1 dev mgmt0
			ip -6 route replace default via fd00:ac::1 dev mgmt0`)
	}},
	{name: "LOCAL in a VLAN, the uplink a trunk", prepare: func(c *cluster) {
		c.trunkUplink()
		c.vsctl("set Port " + c.Bridge + " tag=100")
	}},
	{name: "LOCAL in a VLAN, the uplink an access port", prepare: func(c *cluster) {
		c.vsctl("set Port uplink tag=100 -- set Port " + c.Bridge + " tag=100")
	}},
	{name: "the node's addresses on lo, others on the bridge", prepare: func(c *cluster) {
		c.on(c.Node, `ip addr del 172.16.0.2/24 dev BRIDGE
			ip addr del fd00:ac::2/64 dev BRIDGE
			ip addr add 172.16.0.9/24 dev BRIDGE
			ip addr add fd00:ac::9/64 dev BRIDGE nodad
			ip addr add 172.16.0.2/32 dev lo
			ip addr add fd00:ac::2/128 dev lo
			ip route replace default via 172.16.0.1 dev BRIDGE
			ip -6 route replace default via fd00:ac::1 dev BRIDGE`)
		c.on(c.Router, `ip route replace 172.16.0.2/32 via 172.16.0.9
			ip -6 route replace fd00:ac::2/128 via fd00:ac::9
			for p in 40.0.0.0/24 20.0.0.0/24; do ip route replace $p via 172.16.0.9; done
			for p in fd00:40::/112 fd00:20::/112; do ip -6 route replace $p via fd00:ac::9; done`)
	}},
	{name: "IPv6 on a NIC outside the bridge", options: testbed.Options{NodeOutside: true}, prepare: func(c *cluster) {
		moveFamily(c, "-4", "172.16.0.2", "172.16.0.1", "24", "40.0.0.0/24 20.0.0.0/24")
	}},
	{name: "IPv4 on a NIC outside the bridge", options: testbed.Options{NodeOutside: true}, prepare: func(c *cluster) {
		moveFamily(c, "-6", "fd00:ac::2", "fd00:ac::1", "64", "fd00:40::/112 fd00:20::/112")
	}},
	{name: "IPv6 moves to the bridge while nkp is away", options: testbed.Options{NodeOutside: true}, prepare: func(c *cluster) {
		moveFamily(c, "-4", "172.16.0.2", "172.16.0.1", "24", "40.0.0.0/24 20.0.0.0/24")
	}, while: func(c *cluster, restarted bool) {
		if restarted {
			moveFamily(c, "-6", "fd00:ac::2", "fd00:ac::1", "64", "fd00:40::/112 fd00:20::/112")
		}
	}},
	{name: "the node's addresses move to a NIC while nkp is away", options: testbed.Options{NodeOutside: true}, prepare: func(c *cluster) {
		moveFamily(c, "-4", "172.16.0.2", "172.16.0.1", "24", "40.0.0.0/24 20.0.0.0/24")
		moveFamily(c, "-6", "fd00:ac::2", "fd00:ac::1", "64", "fd00:40::/112 fd00:20::/112")
	}, while: func(c *cluster, restarted bool) {
		if restarted {
			moveBack(c, "-4", "172.16.0.2", "172.16.0.1", "24", "40.0.0.0/24 20.0.0.0/24")
			moveBack(c, "-6", "fd00:ac::2", "fd00:ac::1", "64", "fd00:40::/112 fd00:20::/112")
		}
	}},
	{name: "a pod that neither its slice nor the database names", prepare: func(c *cluster) {
		pods, err := c.AddPods(testbed.PodSpec{NoIDs: true})
		must(c.t, err)
		c.pods = append(c.pods, pods...)
	}, end: func(c *cluster) *testbed.Host { return c.pods[3].Host }, from: func(c *cluster) []*testbed.Host {
		return []*testbed.Host{c.Node, c.pods[3].Host}
	}, doubt: "packets go to it only where the bridge has learned it"},
	{name: "a dead port with a living pod's addresses", prepare: func(c *cluster) {
		pod := c.pods[0]
		c.on(c.Node, "ip link add aaa type veth peer name bbb") // its peer is down: no carrier
		c.vsctl("add-port " + c.Bridge + " aaa -- set Interface aaa external_ids:iface-id=old external_ids:attached-mac=02:00:00:00:0f:0f " +
			fmt.Sprintf("external_ids:ip_addresses=\"%s,%s\"", pod.IP4, pod.IP6))
	}, end: func(c *cluster) *testbed.Host { return c.pods[0].Host }, says: []string{"aaa"}, doubt: "aaa"},
	{name: "a dead second next hop, a nexthop object, a link-local router", nightly: noOther, prepare: func(c *cluster) {
		c.on(c.Router, "ip addr add fe80::1/64 dev DEVICE nodad")
		c.on(c.Node, `ip route replace default nexthop via 172.16.0.1 dev BRIDGE nexthop via 172.16.0.77 dev BRIDGE
			ip nexthop add id 8 via fe80::1 dev BRIDGE
			ip -6 route replace default nhid 8`)
	}},
	{name: "the default route in a table of its own", nightly: noOther, prepare: func(c *cluster) {
		c.on(c.Node, `ip route del default
			ip rule add pref 40000 from all lookup 100
			ip route add default via 172.16.0.1 dev BRIDGE table 100`)
	}, says: []string{"routing rules (ip rule)"}},
	{name: "the uplink has another number", prepare: func(c *cluster) {
		c.vsctl("set Interface uplink ofport_request=7")
	}, says: noUplink, in: "uplink", doubt: "arrive"},
	{name: "the uplink is a bond", prepare: func(c *cluster) {
		c.vsctl("del-port uplink -- add-port " + c.Bridge + " spare -- set Interface spare type=internal " +
			"-- del-port spare -- add-bond " + c.Bridge + " bond0 uplink spare -- set Interface spare type=internal " +
			"-- set Interface uplink ofport_request=7")
	}, says: noUplink, in: "uplink", doubt: "arrive"},
}

var noUplink = []string{"no uplink: bridge", "the uplink port is unknown (--uplink-port)"}

// ownRouter6 moves the router's IPv6 addresses of the node's link to a station of their own.
const ownRouter6 = `ip link add six link DEVICE address 02:00:00:00:00:06 type macvlan mode bridge
	ip addr del fd00:ac::1/64 dev DEVICE
	ip addr del fd00:a::1/64 dev DEVICE
	echo 1 >/proc/sys/net/ipv6/conf/DEVICE/disable_ipv6
	ip link set six up
	ip addr add fd00:ac::1/64 dev six nodad
	ip addr add fd00:a::1/64 dev six nodad
	ip -6 route replace fd00:40::/112 via fd00:ac::2 dev six
	ip -6 route replace fd00:20::/112 via fd00:ac::2 dev six
`

const noOther = "no fault was found in this network"

const noDefault = "ip route del default\nip -6 route del default\n"

func onlyNode(c *cluster) []*testbed.Host    { return []*testbed.Host{c.Node} }
func nodeAndLink(c *cluster) []*testbed.Host { return []*testbed.Host{c.Node, c.Remote} }

// hostRoutes has the second node on the link, and routes by it to its pods.
func hostRoutes(c *cluster) {
	c.onLink()
	c.on(c.Node, "ip route add 10.0.1.0/24 via 172.16.0.3\nip -6 route add fd00:b::/64 via fd00:ac::3")
}

// moveFamily moves the node's address of a family from its NIC to the bridge.
func moveFamily(c *cluster, flag, node, router, bits, ranges string) {
	moveTo(c, flag, node, router, bits, ranges, "eth0", "BRIDGE", "DEVICE", "uplink")
}

// moveBack does the reverse.
func moveBack(c *cluster, flag, node, router, bits, ranges string) {
	moveTo(c, flag, node, router, bits, ranges, "BRIDGE", "eth0", "uplink", "DEVICE")
}

// moveTo moves an address from one device of the node to another, and the router's with it.
func moveTo(c *cluster, flag, node, router, bits, ranges, from, to, routerFrom, routerTo string) {
	args := strings.NewReplacer("FAMILY", flag, "NODE", node, "ROUTER", router, "BITS", bits, "RANGES", ranges, "FROM", from, "TO", to)
	c.on(c.Node, args.Replace(`ip addr del NODE/BITS dev FROM
		echo 0 >/proc/sys/net/ipv6/conf/TO/disable_ipv6
		ip addr add NODE/BITS dev TO nodad
		ip link set TO up
		ip FAMILY route replace default via ROUTER dev TO`))
	args = strings.NewReplacer("FAMILY", flag, "NODE", node, "ROUTER", router, "BITS", bits, "RANGES", ranges, "FROM", routerFrom, "TO", routerTo)
	c.on(c.Router, args.Replace(`ip addr del ROUTER/BITS dev FROM
		ip addr add ROUTER/BITS dev TO nodad
		for p in RANGES; do ip FAMILY route replace $p via NODE dev TO; done`))
}

// tracedTo checks that trace has each of the frontends answered by a host.
func (c *cluster) tracedTo(t *testing.T, row *nodeNetwork, from *testbed.Host, list []string, end *testbed.Host) {
	t.Helper()
	for _, to := range list {
		proto, addr, _ := strings.Cut(to, " ")
		ip := netip.MustParseAddrPort(addr).Addr()
		want := []string{hostPort(end.IP(ip), 8080)}
		flags := []string{"--live"}
		if from == c.External && row.in != "" {
			flags = append(flags, "--in", row.in)
		}
		r, _ := c.trace(t, proto, from.IP(ip).String(), addr, flags...)
		sure := r.Live != nil && (row.doubt != "" || r.Live.Agrees) &&
			!slices.ContainsFunc(r.Live.Differences, func(d string) bool { return !strings.Contains(d, row.doubt) })
		if r.Verdict != "deliver" || !slices.Equal(r.Endpoints, want) || !sure {
			t.Errorf("%s -> %s: trace says %s to %v, installed %+v; want deliver to %v", from.Name, to, r.Verdict, r.Endpoints, r.Live, want)
		}
	}
}

// warnsOf waits until status has these warnings and no others.
func (c *cluster) warnsOf(t *testing.T, says []string) {
	t.Helper()
	c.awaitStatus(t, fmt.Sprintf("status warns of %q alone", says), func(s *api.Status) bool {
		left := slices.Clone(s.Warnings)
		for _, text := range says {
			n := len(left)
			left = slices.DeleteFunc(left, func(w string) bool { return strings.Contains(w, text) })
			if len(left) == n {
				return false
			}
		}
		return len(left) == 0
	})
}

// on runs commands on a host, one a line.
func (c *cluster) on(h *testbed.Host, commands string) {
	c.t.Helper()
	if out, err := c.Exec(h, "sh", "-ec", strings.NewReplacer("BRIDGE", c.Bridge, "DEVICE", c.RouterDevice(), "UPLINK", testbed.UplinkName).Replace(commands)); err != nil {
		c.t.Fatal(commands, out, err)
	}
}

func (c *cluster) vsctl(args string) {
	c.t.Helper()
	_, err := c.Vsctl(strings.Fields(args)...)
	must(c.t, err)
}

// onLink moves the second node into the node's subnet, behind a bridge of the kernel's that the uplink ends in. Its own way is on the
// link, too; the router has no routes to its pods any more.
func (c *cluster) onLink() {
	c.t.Helper()
	c.on(c.Router, `ip link set remote nomaster
		ip addr flush dev remote
		ip link add switch type bridge
		ip link set DEVICE down
		ip link set remote down
		ip link set DEVICE master switch
		ip link set remote master switch
		for a in 172.16.0.1/24 10.0.0.1/24 fd00:ac::1/64 fd00:a::1/64; do
			ip addr del $a dev DEVICE || true
			ip addr add $a dev switch nodad
		done
		ip link set switch address `+testbed.GatewayMAC+`
		ip link set DEVICE address 02:00:00:00:00:99
		ip link set switch up
		ip link set DEVICE up
		ip link set remote up
		ip route replace 192.168.0.0/24 dev external`)
	c.on(c.Remote, `ip addr del 172.16.1.3/24 dev eth0
		ip addr del fd00:ac:1::3/64 dev eth0
		ip addr add 172.16.0.3/24 dev eth0
		ip addr add fd00:ac::3/64 dev eth0 nodad
		ip route replace default via 172.16.0.1
		ip -6 route replace default via fd00:ac::1
		ip route replace 10.0.0.0/24 via 172.16.0.2
		ip -6 route replace fd00:a::/64 via fd00:ac::2`)
	c.Remote.IP4, c.Remote.IP6 = netip.MustParseAddr("172.16.0.3"), netip.MustParseAddr("fd00:ac::3")
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

// trunkUplink makes the uplink a trunk: another bridge takes the tag of VLAN 100, as a switch of the network does.
func (c *cluster) trunkUplink() {
	c.t.Helper()
	must(c.t, c.AddBridge("br-out"))
	c.vsctl("set-fail-mode br-out standalone -- del-port " + c.Bridge + " uplink -- add-port br-out uplink tag=100 " +
		"-- add-port br-out inner -- set Interface inner type=patch options:peer=outer " +
		"-- add-port " + c.Bridge + " outer -- set Interface outer type=patch options:peer=inner ofport_request=1")
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

// The kernel's setting that keeps Services from clients outside is named where the kernel forwards them, and nowhere else.
func TestForwardingIsOff(t *testing.T) {
	for name, outside := range map[string]bool{"beside the bridge": true, "on the bridge": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, testbed.Options{NodeOutside: outside}, "--service-cidr", serviceCIDRs)
			s := service("web", "40.0.0.1", exposed(30080))
			c.begin(s, slice(s, 8080, at(c.remotes[0].IP4)))
			c.answered(t, c.External, []string{"tcp 172.16.0.2:30080"}, c.remotes[0].Name)
			c.warnsOf(t, nil)
			must(t, c.Node.Sysctl("ipv4/conf/"+c.NodeDevice()+"/forwarding", "0"))
			must(t, c.Node.Sysctl("ipv6/conf/all/forwarding", "0"))
			if !outside {
				c.answered(t, c.External, []string{"tcp 172.16.0.2:30080"}, c.remotes[0].Name)
				c.warnsOf(t, nil)
				// What it does not know how to send, the bridge leaves to the kernel.
				c.on(c.Node, noDefault+`ip link add beside type veth peer name beyond
					ip link set beside up
					ip link set beyond up
					ip route add 10.0.1.0/24 dev beside`)
				c.warnsOf(t, []string{"the kernel reaches 1 endpoints by other interfaces", "net.ipv4.conf." + c.Bridge + ".forwarding is 0",
					"net.ipv6.conf.all.forwarding is 0"})
				must(t, c.Node.Sysctl("ipv4/conf/"+c.Bridge+"/forwarding", "1"))
				must(t, c.Node.Sysctl("ipv6/conf/all/forwarding", "1"))
				c.warnsOf(t, []string{"the kernel reaches 1 endpoints by other interfaces"})
				return
			}
			c.warnsOf(t, []string{"net.ipv4.conf.eth0.forwarding is 0", "net.ipv6.conf.all.forwarding is 0"})
			must(t, c.Node.Sysctl("ipv4/ip_forward", "0"))
			c.warnsOf(t, []string{"net.ipv4.ip_forward is 0", "net.ipv6.conf.all.forwarding is 0"})
		})
	}
}

// What the kernel sends nothing to gets nothing from the bridge, where the node or a client outside asks: it does not go by the default
// route. A narrower route over the bridge counts, and pods, which have their own routes, are not concerned.
func TestClosedRoutes(t *testing.T) {
	for _, kind := range []string{"blackhole", "unreachable", "prohibit"} {
		t.Run(kind, func(t *testing.T) {
			if kind != "blackhole" {
				nightly.Only(t, "the gate has one of the kinds")
			}
			c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
			end, pod := c.remotes[0], c.pods[1]
			w := reachEveryWay(end.IP4, end.IP6)
			c.begin(w.objects...)
			c.answered(t, c.Node, w.own, end.Name)
			c.flush()
			for _, restarted := range []bool{false, true} {
				if restarted {
					must(t, c.agent.Stop(syscall.SIGTERM))
				}
				c.on(c.Node, "ip route add "+kind+" 10.0.1.0/24\nip -6 route add "+kind+" fd00:b::/64")
				if restarted {
					c.run()
					c.settle()
				}
				c.warnsOf(t, []string{"the kernel sends nothing to 4 endpoints, such as 10.0.1.11"})
				for i, to := range w.own {
					proto, addr, _ := strings.Cut(to, " ")
					ip := netip.MustParseAddrPort(addr).Addr()
					c.unanswered(t, c.Node, proto, addr, c.direct(t, c.Node))
					proto, outside, _ := strings.Cut(w.outside[i], " ")
					c.unanswered(t, c.External, proto, outside, c.direct(t, c.Node))
					for _, q := range [][2]string{{c.Node.IP(ip).String(), addr}, {c.External.IP(ip).String(), outside}} {
						if r, status := c.trace(t, proto, q[0], q[1], "--live"); status != 1 || r.Live == nil || r.Live.Verdict == "deliver" {
							t.Errorf("trace from %s to %s: status %d, %+v", q[0], q[1], status, r.Live)
						}
					}
				}
				c.answered(t, pod.Host, w.own, end.Name)
				c.on(c.Node, "ip route add 10.0.1.11 via 172.16.0.1\nip -6 route add fd00:b::11 via fd00:ac::1")
				c.answered(t, c.Node, w.own, end.Name)
				c.answered(t, c.External, w.outside, end.Name)
				c.warnsOf(t, nil)
				c.on(c.Node, "ip route del 10.0.1.11\nip -6 route del fd00:b::11\nip route del "+kind+" 10.0.1.0/24\nip -6 route del "+kind+" fd00:b::/64")
				c.warnsOf(t, nil)
				c.answered(t, c.Node, w.own, end.Name)
				c.flush()
			}
		})
	}
}

// An address that moves to the node, as VRRP's do, serves NodePorts as the node's own while it is here, and not before or after; so it is
// after a restart of nkp.
func TestAddressThatMoves(t *testing.T) {
	for name, outside := range map[string]bool{"on the bridge": false, "beside the bridge": true} {
		t.Run(name, func(t *testing.T) {
			if outside {
				nightly.Only(t, "the gate has the bridge")
				needsIPTables(t)
			}
			c := newCluster(t, testbed.Options{NodeOutside: outside}, "--service-cidr", serviceCIDRs)
			end := c.remotes[0]
			w := reachEveryWay(end.IP4, end.IP6)
			var moved []string
			for _, to := range w.outside {
				moved = append(moved, strings.NewReplacer("172.16.0.2", "172.16.0.200", "fd00:ac::2", "fd00:ac::200").Replace(to))
			}
			c.begin(w.objects...)
			traced := func(here bool) {
				t.Helper()
				for _, to := range moved {
					proto, addr, _ := strings.Cut(to, " ")
					from := c.External.IP(netip.MustParseAddrPort(addr).Addr()).String()
					want := map[bool]string{true: "deliver", false: "untouched"}[here]
					c.eventually("trace says "+want, func() error {
						if r, status := c.trace(t, proto, from, addr, "--live"); r.Verdict != want || r.Live == nil || !r.Live.Agrees || status != 0 {
							return fmt.Errorf("status %d, %s, %+v", status, r.Verdict, r.Live)
						}
						return nil
					})
				}
				c.warnsOf(t, nil)
			}
			for _, restarted := range []bool{false, true} {
				traced(false)
				if restarted {
					must(t, c.agent.Stop(syscall.SIGTERM))
				}
				c.on(c.Node, "ip addr add 172.16.0.200/32 dev "+c.NodeDevice()+"\nip addr add fd00:ac::200/128 dev "+c.NodeDevice()+" nodad")
				if restarted {
					c.run()
					c.settle()
				}
				traced(true)
				c.answered(t, c.External, moved, end.Name)
				c.answered(t, c.External, w.outside, end.Name)
				c.on(c.Node, "ip addr del 172.16.0.200/32 dev "+c.NodeDevice()+"\nip addr del fd00:ac::200/128 dev "+c.NodeDevice())
				traced(false)
				c.answered(t, c.External, w.outside, end.Name)
			}
		})
	}
}
