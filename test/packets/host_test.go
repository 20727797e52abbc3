//go:build linux

package packets

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

const serviceCIDRs = "40.0.0.0/24,fd00:40::/112"

// exposed makes a Service a NodePort.
func exposed(port int32) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, port }
}

// The node lives on the bridge, and its own processes reach Services there: the routes to the Service range are nkp's, so
// that the default route need not lead to the bridge. They are mended when lost and gone after a cleanup.
func TestHostTraffic(t *testing.T) {
	four, six := service("four", "40.0.0.1"), service("six", "fd00:40::1")
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC, "--service-cidr", serviceCIDRs)
	for _, family := range []string{"-4", "-6"} {
		if out, err := c.Exec(c.Node, "ip", family, "route", "del", "default"); err != nil {
			t.Fatal(out, err)
		}
	}
	// What the node must reach by itself without a default route: the other pods' answers come to it all the same.
	must(t, c.Node.AddRoute(testbed.RemotePodCIDR4, testbed.RouterIP4, c.Bridge))
	must(t, c.Node.AddRoute(testbed.RemotePodCIDR6, testbed.RouterIP6, c.Bridge))
	c.begin(four, six)
	for _, end := range []*testbed.Pod{c.pods[1], c.remotes[0]} {
		c.put(slice(four, 8080, at(end.IP4)), slice(six, 8080, at(end.IP6)))
		c.inForce(t)
		for _, vip := range []string{"40.0.0.1:80", "[fd00:40::1]:80"} {
			a := c.ask(t, c.Node, "tcp", vip, end.Name)
			if a.Client.Addr() != c.Node.IP(netip.MustParseAddrPort(vip).Addr()) {
				t.Errorf("%s: the endpoint saw %v, want the node", vip, a.Client)
			}
		}
	}
	refused(t, c, c.Node, "40.0.0.1:81")                                                                                 // a port that the Service does not have
	c.unanswered(t, c.Node, "tcp", "40.0.0.99:80", func() { c.ask(t, c.Node, "tcp", "40.0.0.1:80", c.remotes[0].Name) }) // no Service's

	if out, err := c.Exec(c.Node, "ip", "route", "del", "40.0.0.0/24"); err != nil {
		t.Fatal(out, err)
	}
	c.put(slice(four, 8080, at(c.pods[1].IP4)))
	c.awaitAnswer(t, c.Node, "40.0.0.1:80", c.pods[1].Name) // the lost route comes back
	must(c.t, c.agent.Stop(15))
	c.ask(t, c.Node, "tcp", "40.0.0.1:80", c.pods[1].Name) // without an agent as well
	c.cleanup(t)
	for _, what := range [][]string{{"ip", "route", "show", "proto", "110"}, {"ip", "-6", "route", "show", "proto", "110"}, {"ip", "neigh", "show", "nud", "permanent"}} {
		out, err := c.Exec(c.Node, what...)
		if err != nil || strings.Contains(out, "40") || strings.Contains(out, "169.254") {
			t.Errorf("%s after cleanup: %s %v", strings.Join(what, " "), out, err)
		}
	}
}

// A node where IPv6 is off has routes for IPv4 alone, and nothing to warn about.
func TestNodeWithoutIPv6(t *testing.T) {
	nightly.Only(t, "TestHostTraffic has a node with both families")
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC, "--service-cidr", serviceCIDRs)
	must(t, c.Node.Sysctl("ipv6/conf/all/disable_ipv6", "1"))
	node := harness.Node()
	node.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: testbed.NodeIP4.String()}}
	c.objects["node"] = node
	four := service("four", "40.0.0.1")
	c.begin(four, slice(four, 8080, at(c.pods[0].IP4)))
	c.ask(t, c.Node, "tcp", "40.0.0.1:80", c.pods[0].Name)
	c.awaitRoute("-4", "40.0.0.0/24")
	if log := c.agent.Log.String(); strings.Contains(log, "level=WARN") {
		t.Errorf("nkp warns: %s", log)
	}
}

// A node whose address is on a NIC beside the bridge: its address cannot stand for anyone on the bridge, since answers to
// it would come in elsewhere. Pods reach Services, the node's NodePorts among them, with their own addresses, and
// themselves by the hairpin address.
func TestNodeBesideTheBridge(t *testing.T) {
	four, six := service("four", "40.0.0.1", exposed(30080)), service("six", "fd00:40::1", exposed(30081))
	c := newCluster(t, testbed.Options{NodeOutside: true}, "--service-cidr", serviceCIDRs, "--host-traffic", "off")
	c.begin(four, six)
	client := c.pods[0]
	for _, end := range []*testbed.Pod{c.pods[1], c.remotes[0], client} {
		c.put(slice(four, 8080, at(end.IP4)), slice(six, 8080, at(end.IP6)))
		c.inForce(t)
		for _, to := range []string{"40.0.0.1:80", hostPort(testbed.NodeIP4, 30080), "[fd00:40::1]:80", hostPort(testbed.NodeIP6, 30081)} {
			a := c.ask(t, client.Host, "tcp", to, end.Name)
			want := client.IP(netip.MustParseAddrPort(to).Addr())
			if end == client {
				want = netip.MustParseAddr("169.254.110.107")
				if a.Client.Addr().Is6() {
					want = netip.MustParseAddr("fd6e:6b70:6e6b::1")
				}
			}
			if a.Client.Addr() != want {
				t.Errorf("%s -> %s: %s saw %v, want %v", client.Name, to, end.Name, a.Client, want)
			}
		}
	}
}

// On a node where nkp never ran, diff misses what the bridge should hold, and what nftables should hold beside it for what
// the node sends to its own addresses, or iptables where that drops what only it can accept.
func TestDiffBeforeTheFirstRun(t *testing.T) {
	nightly.Only(t, "every test compares by nkp diff")
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	c.put(service("web", "40.0.0.1", exposed(30080)))
	for policy, want := range map[string]string{"ACCEPT": "IPv4 nftables + table nkp", "DROP": "IPv4 nat + -N KUBE-NODEPORTS"} {
		_, err := c.Node.Exec(c.ctx, "iptables-nft", "-P", "INPUT", policy)
		must(t, err)
		out, errOut, status := c.nkp(append([]string{"diff", "--socket", c.socket()}, c.common()...)...)
		if status != 1 || !strings.Contains(out, "+ cookie=") || !strings.Contains(out, want) {
			t.Errorf("with policy %s of INPUT, diff ends with %d:\n%s%s", policy, status, out, errOut)
		}
	}
}

// refused expects that a connection is refused.
func refused(t *testing.T, c *cluster, from *testbed.Host, to string) {
	t.Helper()
	if _, err := from.Ask(c.ctx, "tcp", to); !errors.Is(err, testbed.ErrRefused) {
		t.Errorf("%s -> %s: %v; want a refusal", from.Name, to, err)
	}
}

// What the node sends to itself is masqueraded by its kernel, what comes from outside by the switch: both as the node, and
// never from the same port, or one would get the other's answers; there are ports for many.
func TestMasqueradePortsAreApart(t *testing.T) {
	nightly.Only(t, "thousands of connections")
	s := service("web", "40.0.0.1", exposed(30080))
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	c.begin(s)
	c.put(slice(s, 8080, at(c.pods[1].IP4)))
	c.settle()
	to := hostPort(testbed.NodeIP4, 30080)
	const outside, own = 6000, 300
	for _, part := range []struct {
		from *testbed.Host
		n    int
	}{{c.External, outside}, {c.Node, own}} {
		answers, errs := part.from.Many(c.ctx, part.n, 8, to)
		if answers[c.pods[1].Name] != part.n || len(errs) > 0 {
			t.Errorf("%s: %d of %d connections were answered; %d failed, first %v", part.from.Name, answers[c.pods[1].Name], part.n, len(errs), errs[:min(1, len(errs))])
		}
	}
}

// fromManyPorts sends a datagram from each of n ports. After some of them it waits for an answer to control, which comes after them, so
// that the switch keeps pace.
func fromManyPorts(t *testing.T, from *testbed.Host, to *net.UDPAddr, first, n int, control func()) {
	t.Helper()
	const batch = 64
	for i := 0; i < n; i += batch {
		must(t, from.Do(func() error {
			for port := first + i; port < first+min(i+batch, n); port++ {
				out, err := net.DialUDP("udp4", &net.UDPAddr{Port: port}, to)
				if err != nil {
					return err
				}
				_, err = out.Write([]byte("one"))
				if out.Close(); err != nil {
					return err
				}
			}
			return nil
		}))
		control()
	}
}

// A host that is an endpoint, and calls a NodePort from that same port, meets its own Service's masqueraded connections: if
// one of them had the NodePort for its source, the host's packets to the NodePort would be taken for that one's answers. So
// none has, though all ports are in use, nor with the kernel datapath, which lets a connection keep its port if it can.
func TestMasqueradeAvoidsNodePorts(t *testing.T) {
	nightly.Only(t, "tens of thousands of datagrams")
	const nodePort, port = 30080, 5000
	in := service("in", "40.0.0.1", exposed(nodePort), protocol(v1.ProtocolUDP))
	out := service("out", "40.0.0.2", protocol(v1.ProtocolUDP))
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	c.begin(in, slice(in, 8080, at(c.remotes[0].IP4)), out, slice(out, port, at(testbed.ExternalIP4)))
	var host *net.UDPConn
	must(t, c.External.Do(func() (err error) {
		host, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port})
		return err
	}))
	defer host.Close()
	must(t, host.SetReadBuffer(8<<20))
	must(t, host.SetReadDeadline(time.Now().Add(10*wait.Limit))) // all datagrams take a while
	type tally struct{ seen, bad int }
	// ask calls the NodePort, and returns what came until its answer did.
	ask := func() <-chan tally {
		t.Helper()
		counted := make(chan tally, 1)
		go func() { // ends with the answer, or the socket's deadline
			defer close(counted)
			var n tally
			for b := make([]byte, 100); ; {
				size, from, err := host.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				if who, _, _ := strings.Cut(string(b[:size]), " "); who == c.remotes[0].Name && from.Port() == nodePort {
					counted <- n
					return
				}
				if n.seen++; from.Addr().Unmap() != testbed.NodeIP4 || from.Port() >= 30_000 && from.Port() < 32_768 {
					n.bad++
				}
			}
		}()
		return counted
	}
	call := func() {
		t.Helper()
		_, err := host.WriteToUDPAddrPort([]byte("?"), netip.AddrPortFrom(testbed.NodeIP4, nodePort))
		must(t, err)
	}
	counted := ask()
	call()
	if got := wait.Receive(t, "the NodePort's answer before", counted); got != (tally{}) {
		t.Errorf("before: %+v", got)
	}
	to := &net.UDPAddr{IP: net.IPv4(40, 0, 0, 2), Port: 80}
	first, n := 20_000, 36_000
	if onKernelDatapath() {
		first, n = 30_000, 300
	}
	counted = ask()
	fromManyPorts(t, c.Remote, to, first, n, c.direct(t, c.Remote))
	call()
	if got := wait.Receive(t, "the NodePort's answer after", counted); got.seen < min(n, 20_000) || got.bad > 0 {
		t.Errorf("%d datagrams came, %d of them from a NodePort or not masqueraded", got.seen, got.bad)
	}
}

// If no port is left to masquerade a connection with, its packets go nowhere: as they are, their answers would come from an
// address that the client does not know. So do those of the node, which have the right address already: their port may be that
// of another connection.
func TestNoPortLeft(t *testing.T) {
	nightly.Only(t, "tens of thousands of datagrams")
	if onKernelDatapath() {
		t.Skip("the kernel's tracker drops such packets itself")
	}
	outside, inside := service("outside", "40.0.0.1", exposed(30053), protocol(v1.ProtocolUDP)), service("inside", "40.0.0.2", protocol(v1.ProtocolUDP))
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC, "--service-cidr", serviceCIDRs)
	// nkp expects that translations which change nothing do not crash this release, and so translates the node's own connections,
	// too. A crash would take far longer than this test.
	_, err := c.Vsctl("set", "Open_vSwitch", ".", "ovs_version=3.3.0")
	must(t, err)
	c.begin(outside, slice(outside, 5353, at(c.pods[0].IP4)), inside, slice(inside, 5353, at(c.pods[1].IP4)))
	for _, tc := range []struct {
		from     *testbed.Host
		to       netip.AddrPort
		endpoint *testbed.Pod
	}{
		{c.External, netip.AddrPortFrom(testbed.NodeIP4, 30053), c.pods[0]},
		{c.Node, netip.MustParseAddrPort("40.0.0.2:80"), c.pods[1]},
	} {
		var in *net.UDPConn
		must(t, tc.endpoint.Do(func() (err error) {
			in, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 5353})
			return err
		}))
		defer in.Close()
		must(t, in.SetReadBuffer(8<<20))
		must(t, in.SetReadDeadline(time.Now().Add(10*wait.Limit))) // all datagrams take a while
		from := make(chan map[netip.Addr]int, 1)
		go func() { // ends with the last datagram, or the socket's deadline
			defer close(from)
			seen, b := map[netip.Addr]int{}, make([]byte, 16)
			for {
				n, a, err := in.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				if string(b[:n]) == "last" {
					from <- seen
					return
				}
				seen[a.Addr().Unmap()]++
			}
		}()
		const ports, most = 36_000, pipeline.MasqueradePortMax - pipeline.MasqueradePortMin + 1
		fromManyPorts(t, tc.from, net.UDPAddrFromAddrPort(tc.to), 20_000, ports, c.direct(t, tc.from))
		last, err := tc.from.DialUDP(c.ctx, hostPort(tc.endpoint.IP4, 5353), testbed.DialOptions{})
		must(t, err)
		defer last.Close()
		_, err = last.Write([]byte("last"))
		must(t, err)
		seen := wait.Receive(t, "the last datagram", from)
		if n := seen[testbed.NodeIP4]; n < most*3/4 || n > most { // ovs-vswitchd does not try every port for each
			t.Errorf("%s -> %v: %d of %d datagrams came masqueraded, want at most %d, and not many fewer", tc.from.Name, tc.to, n, ports, most)
		}
		delete(seen, testbed.NodeIP4)
		if len(seen) > 0 {
			t.Errorf("%s -> %v: datagrams came as they were: %v", tc.from.Name, tc.to, seen)
		}
	}
}

// The node itself is the pods' gateway: their gateway's addresses are on the bridge's LOCAL port, and the kernel routes between pods and
// the uplink.
func TestNodeIsTheGateway(t *testing.T) {
	nightly.Only(t, "TestHostTraffic has a node that is not the gateway")
	four := service("four", "40.0.0.1", exposed(30080))
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	for _, cmd := range []struct {
		on   *testbed.Host
		argv string
	}{
		{c.Router, "ip addr del 10.0.0.1/24 dev " + c.RouterDevice()},
		{c.Router, "ip route add 10.0.0.0/24 via 172.16.0.2"},
		{c.Node, "ip addr add 10.0.0.1/24 dev " + c.Bridge},
		{c.Node, "sysctl -qw net.ipv4.ip_forward=1"},
	} {
		if out, err := c.Exec(cmd.on, strings.Fields(cmd.argv)...); err != nil {
			t.Fatal(cmd.argv, out, err)
		}
	}
	c.begin(four)
	for _, end := range []*testbed.Pod{c.pods[1], c.remotes[0], c.pods[0]} {
		c.put(slice(four, 8080, at(end.IP4)))
		c.inForce(t)
		for _, from := range []*testbed.Host{c.pods[0].Host, c.Node} {
			c.ask(t, from, "tcp", "40.0.0.1:80", end.Name)
			c.ask(t, from, "tcp", hostPort(testbed.NodeIP4, 30080), end.Name)
		}
		c.ask(t, c.External, "tcp", hostPort(testbed.NodeIP4, 30080), end.Name)
	}
}

// Where iptables is not installed, nftables serves what the node sends to its own addresses. What serves stays while
// nothing else can, and once iptables is installed and asked for, a restart changes over. No connection is lost, at
// 127.0.0.1 too.
func TestHostTrafficWithoutIPTables(t *testing.T) {
	nightly.Only(t, "TestHostTrafficByNFTables changes over between the two")
	s := service("web", "40.0.0.1", exposed(30001))
	c := newCluster(t, testbed.Options{})
	c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
	c.servePods(t)
	runWithoutIPTables := func(flags ...string) {
		c.launchBy(slices.Concat(
			[]string{"unshare", "-m", "sh", "-c", `for p in iptables-nft iptables-legacy; do
				mount --bind /dev/null "$(readlink -f "$(command -v $p)")"
			done; exec "$@"`, "sh"},
			[]string{c.bin, "run", "--socket", c.socket(), "--log-level", "debug", "--ovs-wait", "10s"}, flags, c.common())...)
	}
	runWithoutIPTables()
	c.statusSays("mode", "ovs: ", "tables ip nkp and ip6 nkp, serves what the node sends to its own addresses", "all is programmed")
	to := "172.16.0.2:30001"
	held, err := c.Node.Hold(c.ctx, to, testbed.DialOptions{})
	must(t, err)
	defer held.Close()
	must(t, c.differs())
	answered := c.keepAsking(t, "127.0.0.1:30001")
	must(t, c.agent.Stop(syscall.SIGTERM))

	runWithoutIPTables("--host-traffic", "iptables")
	c.statusSays("is not handled: ", "may serve old endpoints")
	must(t, c.agent.Stop(syscall.SIGTERM))

	c.runWith("--host-traffic", "iptables")
	c.statusSays("mode", "ovs: ", "iptables", "serves traffic from the node and from outside", "all is programmed")
	c.awaitRules(t, "nftables' tables go", "nkp")
	for range 50 {
		c.ask(t, c.Node, "tcp", "127.0.0.1:30001", c.remotes[0].Name)
	}
	answered()
	must(t, held.Check())
	must(t, c.agent.Stop(syscall.SIGTERM))
	if out := c.cleanup(t); !strings.Contains(out, "from iptables") {
		t.Errorf("cleanup says %s", out)
	}
}

// awaitRules waits until the node's rules, of nftables and iptables over it, have none of the texts.
func (c *cluster) awaitRules(t *testing.T, what string, texts ...string) {
	t.Helper()
	c.eventually(what, func() error {
		rules, err := c.Node.Exec(c.ctx, "nft", "list", "ruleset")
		if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(rules, text) }) {
			return errors.New(rules)
		}
		return err
	})
}

// A TCP connection from the node directly to a pod works from a port that is a NodePort: the pod's answers are not taken for connections to it.
// The kernel masquerades with such ports too.
func TestNodePortAsSourcePort(t *testing.T) {
	for where, outside := range map[string]bool{"node on the bridge": false, "node elsewhere": true} {
		t.Run(where, func(t *testing.T) {
			if outside {
				nightly.Only(t, "the gate has the node on the bridge")
			}
			four, six := service("four", "40.0.0.1", exposed(30080)), service("six", "fd00:40::1", exposed(30081))
			c := newCluster(t, testbed.Options{NodeOutside: outside})
			c.begin(four, slice(four, 8080, at(c.remotes[0].IP4)), six, slice(six, 8080, at(c.remotes[0].IP6)))
			for nodePort, pod := range map[int]netip.Addr{30080: c.pods[0].IP4, 30081: c.pods[0].IP6} {
				to, from := hostPort(pod, 8080), testbed.DialOptions{LocalPort: nodePort}
				held, err := c.Node.Hold(c.ctx, to, from)
				must(t, err)
				for range 3 {
					if err := held.Check(); err != nil {
						t.Fatalf("%s from port %d: %v", to, nodePort, err)
					}
				}
			}
		})
	}
}

// A node whose address is on a NIC beside the bridge: iptables, or nftables, serves what the bridge never sees. The
// node's processes reach ClusterIPs and NodePorts, clients outside NodePorts and load balancer addresses, and the
// pods' own traffic is served on the bridge alone. A restart changes over from iptables to nftables: no connection
// fails, a held one stays, and nothing is left of iptables. A cleanup removes the tables.
func TestHostTrafficByNFTables(t *testing.T) {
	four := service("four", "40.0.0.1", exposed(30080), loadBalancer("20.0.0.1"))
	six := service("six", "fd00:40::1", exposed(30081), loadBalancer("fd00:20::1"))
	c := newCluster(t, testbed.Options{NodeOutside: true}, "--service-cidr", serviceCIDRs)
	end := c.remotes[0]
	c.put(four, slice(four, 8080, at(end.IP4)), six, slice(six, 8080, at(end.IP6)))
	c.runWith("--host-traffic", "iptables")
	c.settle()
	c.servePods(t)
	outside := []string{"172.16.0.2:30080", "[fd00:ac::2]:30081", "20.0.0.1:80", "[fd00:20::1]:80"}
	own := append([]string{"40.0.0.1:80", "[fd00:40::1]:80", "127.0.0.1:30080"}, outside...)
	serves := func() {
		t.Helper()
		for from, list := range map[*testbed.Host][]string{c.Node: own, c.External: outside} {
			for _, to := range list {
				a := c.ask(t, from, "tcp", to, end.Name)
				if want := c.Node.IP(a.Client.Addr()); a.Client.Addr() != want {
					t.Errorf("%s -> %s: the endpoint saw %v, want the node's address %v", from.Name, to, a.Client, want)
				}
			}
		}
		if a := c.ask(t, c.pods[0].Host, "tcp", outside[0], end.Name); a.Client.Addr() != c.pods[0].IP4 {
			t.Errorf("a pod's connection to a NodePort was served beside the bridge: the endpoint saw %v", a.Client)
		}
	}
	serves()
	const atLocalhost = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total"
	before, err := c.scrape()
	must(t, err)
	for range 3 {
		c.ask(t, c.Node, "tcp", "127.0.0.1:30080", end.Name)
		c.ask(t, c.Node, "tcp", outside[0], end.Name)
	}
	c.scrapeUntil(map[string]float64{atLocalhost: before.values[atLocalhost] + 3})

	held, err := c.Node.Hold(c.ctx, "40.0.0.1:80", testbed.DialOptions{})
	must(t, err)
	defer held.Close()
	heldOutside, err := c.External.Hold(c.ctx, outside[0], testbed.DialOptions{})
	must(t, err)
	defer heldOutside.Close()
	answered := c.keepAsking(t, "40.0.0.1:80")
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.run()
	c.statusSays("host traffic     nftables", "tables ip nkp and ip6 nkp, serves traffic from the node and from outside", "all is programmed")
	c.settle()
	c.awaitRules(t, "iptables' chains go", "KUBE-SERVICES")
	must(t, held.Check())
	must(t, heldOutside.Check())
	serves()
	answered()
	must(t, c.agent.Stop(syscall.SIGTERM))
	out := c.cleanup(t)
	if !strings.Contains(out, "removed 2 tables from nftables") || !strings.Contains(out, "from "+c.Bridge) {
		t.Errorf("cleanup says %s", out)
	}
	c.awaitRules(t, "after cleanup", "nkp")
	on, err := c.Node.Exec(c.ctx, "cat", "/proc/sys/net/ipv4/conf/all/route_localnet")
	if err != nil || strings.TrimSpace(on) != "0" {
		t.Errorf("after cleanup: route_localnet is %s, %v", on, err)
	}
}

// What kube-proxy has left beside a bridge stays, and status says so. With --host-traffic nftables it is removed once nkp serves.
func TestHostTrafficByNFTablesTakesOver(t *testing.T) {
	nightly.Only(t, "the tests of test/fallback take over from kube-proxy")
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{NodeOutside: true})
	c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
	for _, left := range []struct{ by, says string }{
		{"nft add table ip kube-proxy", "nftables has kube-proxy's tables; --host-traffic nftables"},
		{"iptables-nft -t nat -N KUBE-SERVICES; iptables-nft -t nat -A OUTPUT -j KUBE-SERVICES; " +
			"iptables-nft -t nat -A KUBE-SERVICES -d 40.0.0.1 -p tcp -j DNAT --to-destination 10.0.1.12:8080",
			"iptables already has Service chains"},
	} {
		_, err := c.Exec(c.Node, "sh", "-ec", left.by)
		must(t, err)
		before, err := c.Node.Exec(c.ctx, "nft", "list", "ruleset")
		must(t, err)
		c.run()
		c.statusSays("is not handled: " + left.says)
		must(t, c.agent.Stop(syscall.SIGTERM))
		if after, err := c.Node.Exec(c.ctx, "nft", "list", "ruleset"); err != nil || after != before {
			t.Errorf("%s: the rules were changed: %v\n%s\nbefore:\n%s", left.by, err, after, before)
		}
	}
	c.runWith("--host-traffic", "nftables")
	c.statusSays("tables ip nkp and ip6 nkp, serves traffic from the node and from outside", "all is programmed")
	c.awaitRules(t, "kube-proxy's rules go", "KUBE-SERVICES", "kube-proxy")
}
