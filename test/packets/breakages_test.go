//go:build linux

package packets

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// breakage is a row of the runbook's table: what is broken around default/web at 40.0.0.1:80, which a pod or the node asks, and whose
// endpoint is the pod with the port pod-11.
type breakage struct {
	name string
	// does breaks it. again: nkp mends it by itself after some seconds, so that it is done before each look.
	does  func(c *scene, t *testing.T)
	again bool
	// works: the connection is answered nevertheless, as are others' before it.
	works bool
	// either: whether it is answered depends on ARP entries of the pods.
	either bool
	from   func(c *cluster) *testbed.Host // nil: aPod
	// gone: nobody can be asked by the socket.
	gone    bool
	options testbed.Options
	flags   []string // of the agent
	gate    bool     // it is tried in the gate, too
	// before, if set, comes before the bed is built.
	before func(t *testing.T, o *testbed.Options)
	kind   string // IPv6, UDP or NodePort: what the Service is instead of a cluster IP of IPv4 with a TCP port
	// What a command must say, as a regular expression; "" where it has nothing to say. One names the cause, unless unnamed has the reason why
	// none can.
	status, services, trace, probe, diff string
	pods                                 string // as the others; the runbook's table leaves it out
	unnamed                              string
}

// scene is a cluster with default/web as a breakage's kind has it: where clients ask, and how.
type scene struct {
	*cluster
	kind, to, proto string
}

// six reports whether the Service has IPv6 addresses.
func (c *scene) six() bool { return c.kind == "IPv6" }

// at returns the address of a pod in the Service's family.
func (c *scene) at(p *testbed.Pod) netip.Addr {
	if c.six() {
		return p.IP6
	}
	return p.IP4
}

// ip runs ip(8) for the Service's family.
func (c *scene) ip(t *testing.T, h *testbed.Host, args ...string) {
	t.Helper()
	argv := []string{"ip", "-4"}
	if c.six() {
		argv[1] = "-6"
	}
	_, err := c.Exec(h, append(argv, args...)...)
	must(t, err)
}

// node is the node, as a client.
func node(c *cluster) *testbed.Host { return c.Node }

// in returns a breakage that runs a command in a host's network namespace.
func in(host func(c *cluster) *testbed.Host, argv ...string) func(*scene, *testing.T) {
	return func(c *scene, t *testing.T) {
		_, err := host(c.cluster).Exec(c.ctx, argv...)
		must(t, err)
	}
}

func endpoint(c *cluster) *testbed.Host { return c.pods[0].Host }

// vsctl returns a breakage of Open vSwitch's database; ofctl and appctl return others.
func vsctl(args ...string) func(*scene, *testing.T) {
	return func(c *scene, t *testing.T) { _, err := c.Vsctl(args...); must(t, err) }
}

func ofctl(args ...string) func(*scene, *testing.T) {
	return func(c *scene, t *testing.T) { _, err := c.Ofctl(args...); must(t, err) }
}

// kept is what the probe says of a pod that got the packet and did not answer.
const kept = `port pod-1\d sent it to the pod, and conntrack took none of the packets that came back by the port \(\d+\) for an answer: the pod has no route to 10\.0\.0\.12, ` +
	`or drops the packet \(rp_filter, a filter of its own\), or its server's accept queue is full`

const unanswered = `endpoint 10\.0\.0\.11:8080: TCP connections in the conntrack table at .*: \d+ answered, [1-9]\d* without answer`

const silent = `not known: whether 10\.0\.0\.1\d:8080 answers: UDP connections in the conntrack table at .*: ([2-9]|\d\d+) without an answer`

// moved gives the endpoint's address to another pod.
func moved(c *scene, t *testing.T) {
	at := netip.PrefixFrom(c.at(c.pods[0]), map[bool]int{false: 24, true: 64}[c.six()]).String()
	c.ip(t, c.pods[0].Host, "addr", "del", at, "dev", "eth0")
	add := []string{"addr", "add", at, "dev", "eth0"}
	if c.six() {
		add = append(add, "nodad")
	}
	c.ip(t, c.pods[2].Host, add...)
}

// onLoopback makes a pod the only endpoint whose server listens at loopback, if it is a TCP one.
func onLoopback(c *scene, t *testing.T) {
	p := c.idlePod(t)
	if c.proto == "tcp" {
		l, err := p.Listen(map[bool]string{false: "127.0.0.1:8080", true: "[::1]:8080"}[c.six()])
		must(t, err)
		t.Cleanup(func() { l.Close() })
	}
	c.serveWebAt(t, p)
}

const (
	mended = "nkp reads flows and groups back when it starts, and mends them"

	leavesElsewhere = `the packet may not arrive: it leaves by the datapath's port \d+, not by that of the ` +
		`endpoint, OpenFlow port 11: by another owner's flow: cookie=0x77,table=0,priority=1`
	notSent = `last seen leaving by port 13 to MAC 02:00:00:00:00:11; port pod-11 has sent no packet: .*, ` +
		`or a flow of others sends it elsewhere`
)

// lessNeighbours adds another owner's flow to table 0, below nkp's, and has the pods forget what they know of
// their neighbours.
func lessNeighbours(flow string) func(c *scene, t *testing.T) {
	return func(c *scene, t *testing.T) {
		ofctl("add-flow", "br-int", "cookie=0x77,priority=1,"+flow)(c, t)
		c.uncached(t)
		for _, p := range c.pods {
			c.ip(t, p.Host, "neigh", "flush", "all")
		}
	}
}

// twoEndpoints gives the Service a second endpoint.
func twoEndpoints(c *scene) {
	c.put(slice(c.web(), 8080, at(c.at(c.pods[0])), at(c.at(c.pods[2]))))
	c.settle()
}

// lessOneBucket takes the second endpoint's bucket from the Service's group.
func lessOneBucket(c *scene, t *testing.T) {
	out, err := c.Ofctl("dump-groups", c.Bridge)
	must(t, err)
	for line := range strings.Lines(out) {
		at := strings.LastIndex(line, ",bucket=")
		if at > 0 && strings.Contains(line[at:], c.at(c.pods[2]).String()) {
			_, err = c.Ofctl("mod-group", c.Bridge, strings.TrimSpace(line[:at]))
			must(t, err)
			return
		}
	}
	t.Fatalf("no group has the endpoint last:\n%s", out)
}

// whileAway returns breakages that happen while nkp does not run.
func whileAway(all ...func(c *scene, t *testing.T)) func(*scene, *testing.T) {
	return func(c *scene, t *testing.T) {
		must(t, c.agent.Stop(syscall.SIGTERM))
		for _, does := range all {
			does(c, t)
		}
		c.run()
		c.settle()
	}
}

// nodeMoves moves the node's addresses from the bridge to another device.
func nodeMoves(c *scene, t *testing.T) {
	c.on(c.Node, `ip link add beside type veth peer name beyond
		ip link set beside up
		ip link set beyond up
		ip addr del 172.16.0.2/24 dev BRIDGE
		ip addr del fd00:ac::2/64 dev BRIDGE
		ip addr add 172.16.0.2/24 dev beside
		ip addr add fd00:ac::2/64 dev beside nodad`)
}

// renamedUplink gives the uplink's device another name.
func renamedUplink(c *scene, t *testing.T) {
	c.on(c.Node, "ip link set uplink down\nip link set uplink name renamed0\nip link set renamed0 up")
}

// outside is the client outside of the cluster.
func outside(c *cluster) *testbed.Host { return c.External }

var breakages = []breakage{
	{name: "VLAN tag on the endpoint's port", gate: true, does: vsctl("set", "Port", "pod-11", "tag=7"),
		pods:   `pod-11 .* 7 +up +limited\n +PROBLEM: Port has tag 7`,
		status: `pod-11: Port has tag 7`, services: `Port has tag 7`, trace: `not known to arrive: .*Port has tag 7`},
	{name: "mirror to the endpoint's port", either: true, does: vsctl("--", "--id=@p", "get", "Port", "pod-11", "--", "--id=@m", "create", "Mirror", "name=m0",
		"select-all=true", "output-port=@p", "--", "set", "Bridge", "br-int", "mirrors=@m"),
		status: `Mirror\.output_port of m0`, services: `Mirror\.output_port of m0`, trace: `not known to arrive: .*Mirror\.output_port of m0`},
	{name: "policing of the endpoint's port", does: vsctl("set", "Interface", "pod-11", "ingress_policing_rate=1", "ingress_policing_burst=1"),
		status: `ingress_policing_rate is 1 kbit`, services: `ingress_policing_rate is 1 kbit`, trace: `not known to arrive: .*ingress_policing_rate`, works: true},
	{name: "QoS on the endpoint's port", does: vsctl("--", "--id=@q", "create", "QoS", "type=linux-noop", "--", "set", "Port", "pod-11", "qos=@q"), works: true,
		status: `pod-11: Port\.qos is `, services: `Port\.qos is `, trace: `not known to arrive: .*Port\.qos is `},
	{name: "wrong ip_addresses", does: func(c *scene, t *testing.T) { c.claims(t, 0, c.at(c.pods[2]).Next().Next().Next()) },
		services: `no port of bridge br-int has the address of the local endpoint 10\.0\.0\.11:8080`, trace: `no port of bridge br-int has the address`, works: true},
	{name: "the same ip_addresses at two ports", does: func(c *scene, t *testing.T) { c.claims(t, 2, c.at(c.pods[0])) },
		status: `ip_addresses of pod-13 has 10\.0\.0\.11, too`, services: `ip_addresses of pod-13 has`, trace: `not known to arrive: .*pod-13 has 10\.0\.0\.11, too`, works: true},
	{name: "swapped ip_addresses", does: func(c *scene, t *testing.T) {
		c.claims(t, 0, c.at(c.pods[2]))
		c.claims(t, 2, c.at(c.pods[0]))
	}, trace: unanswered, services: unanswered, probe: `of port pod-13: external_ids:ip_addresses has 10\.0\.0\.11, but the kernel has found it at 02:00:00:00:00:11, the MAC of port pod-11`},
	{name: "wrong MAC in the database", does: vsctl("set", "Interface", "pod-11", `external_ids:attached-mac="02:00:00:00:99:99"`),
		pods:   `pod-11 .* 02:00:00:00:99:99 .*limited\n +PROBLEM: .*has learned 02:00:00:00:00:11`,
		status: `has learned 02:00:00:00:00:11 there`, services: `has learned 02:00:00:00:00:11`, trace: `not known to arrive: .*has learned 02:00:00:00:00:11`},
	{name: "no route in the pod", gate: true, does: func(c *scene, t *testing.T) { c.ip(t, c.pods[0].Host, "route", "flush", "table", "main") },
		services: unanswered, trace: `not known to arrive: ` + unanswered, probe: kept},
	{name: "no route in the node", from: node, does: func(c *scene, t *testing.T) { c.ip(t, c.Node, "route", "replace", "blackhole", c.address()) },
		trace: `not known to arrive: the node has no route to 40\.0\.0\.1 `},
	{name: "a route of the node past the bridge", from: node, does: func(c *scene, t *testing.T) {
		in(node, "ip", "link", "add", "beside", "type", "veth", "peer", "name", "beyond")(c, t)
		in(node, "ip", "link", "set", "beside", "up")(c, t)
		c.ip(t, c.Node, "route", "replace", c.address(), "dev", "beside")
	}, trace: `not known to arrive: the node sends packets to 40\.0\.0\.1 by beside, not by bridge br-int`},
	{name: "rp_filter in the pod", does: func(c *scene, t *testing.T) {
		in(endpoint, "ip", "link", "add", "beside", "type", "veth", "peer", "name", "beyond")(c, t)
		in(endpoint, "ip", "link", "set", "beside", "up")(c, t)
		in(endpoint, "ip", "route", "add", "10.0.0.12/32", "dev", "beside")(c, t)
		in(endpoint, "sysctl", "-qw", "net.ipv4.conf.eth0.rp_filter=1")(c, t)
	}, services: unanswered, trace: `not known to arrive: ` + unanswered, probe: kept},
	{name: "MTU of the endpoint's port", does: in(node, "ip", "link", "set", "pod-11", "mtu", "600"), works: true,
		status: `pod-11: Interface\.mtu is 600, most pods' ports 1500`, services: `Interface\.mtu is 600`, trace: `not known to arrive: .*Interface\.mtu is 600`},
	{name: "deleted group", again: true, does: func(c *scene, t *testing.T) {
		c.put(slice(c.web(), 8080, at(c.at(c.pods[0])), at(c.at(c.pods[2]))))
		c.settle()
		ofctl("del-groups", "br-int")(c, t)
	}, status: `repaired [1-9]`, works: true},
	{name: "deleted bucket of a group", again: true, does: func(c *scene, t *testing.T) { twoEndpoints(c); lessOneBucket(c, t) }, status: `repaired [1-9]`, works: true},
	{name: "deleted bucket of a group while nkp is away", does: func(c *scene, t *testing.T) { twoEndpoints(c); whileAway(lessOneBucket)(c, t) }, works: true, unnamed: mended},
	{name: "the node's address moves to another device", from: node, does: nodeMoves, either: true, status: `the node's address has moved`, trace: `what is installed does not agree: masquerade: false on the switch`},
	{name: "deleted bucket of a group", kind: "IPv6", again: true, does: func(c *scene, t *testing.T) { twoEndpoints(c); lessOneBucket(c, t) }, status: `repaired [1-9]`, works: true},
	{name: "deleted groups while nkp is away", kind: "IPv6", does: whileAway(ofctl("del-groups", "br-int")), works: true, unnamed: mended},
	{name: "the node's address moves to another device", kind: "IPv6", from: node, does: nodeMoves, either: true, status: `the node's address has moved`, trace: `what is installed does not agree: masquerade: false on the switch`},
	{name: "the node's address moves to another device", kind: "UDP", from: node, does: nodeMoves, either: true, status: `the node's address has moved`, trace: `what is installed does not agree: masquerade: false on the switch`},
	{name: "renamed uplink", kind: "NodePort", from: outside, does: renamedUplink, works: true, status: `port uplink: .* the node has no device of that name any more`},
	{name: "renamed uplink while nkp is away", kind: "NodePort", from: outside, does: whileAway(renamedUplink), works: true, status: `port uplink: .* the node has no device of that name any more`},
	{name: "another owner's drop while nkp is away", kind: "IPv6", does: whileAway(ofctl("add-flow", "br-int", "cookie=0x77,table=30,priority=65000,ipv6,actions=drop")),
		status: `flows of other owners in nkp's tables: 1`, trace: `by another owner's flow: cookie=0x77`, diff: `^! another owner's flow`},
	{name: "another owner's drop while nkp is away", does: whileAway(ofctl("add-flow", "br-int", "cookie=0x77,table=30,priority=65000,ip,actions=drop")),
		status: `flows of other owners in nkp's tables: 1`, trace: `by another owner's flow: cookie=0x77`, diff: `^! another owner's flow`},
	{name: "deleted meter", again: true, does: ofctl("del-meters", "br-int"), status: `repaired [1-9]`, works: true},
	{name: "a table's flows deleted", again: true, does: ofctl("del-flows", "br-int", "table=30"), trace: `does not agree: `, status: `repaired [1-9]`, diff: `(?m)^\+ `, works: true},
	{name: "another owner's drop", does: ofctl("add-flow", "br-int", "cookie=0x77,table=30,priority=65000,ip,actions=drop"),
		status: `flows of other owners in nkp's tables: 1`, trace: `by another owner's flow: cookie=0x77`, diff: `^! another owner's flow`},
	{name: "another owner's drop of what the uplink brings", gate: true,
		options: testbed.Options{Standalone: true}, does: lessNeighbours("in_port=1,actions=drop"),
		trace: `not known to arrive: ARP between 10\.0\.0\.12 and its next hop behind the uplink fails, ` +
			`because the answer to it is taken by another owner's flow: cookie=0x77,table=0,priority=1`},
	{name: "another owner's drop of what the uplink brings", kind: "IPv6",
		options: testbed.Options{Standalone: true}, does: lessNeighbours("in_port=1,actions=drop"),
		trace: `not known to arrive: neighbour discovery between 10\.0\.0\.12 and its next hop behind ` +
			`the uplink fails, because the answer to it is taken by another owner's flow: cookie=0x77`},
	{name: "another owner's drop of ARP requests",
		options: testbed.Options{Standalone: true}, does: lessNeighbours("arp,arp_op=1,actions=drop"),
		trace: `ARP between 10\.0\.0\.12 and .* because its request is taken`},
	{name: "another owner's flow that sends ARP answers to another pod",
		options: testbed.Options{Standalone: true}, does: lessNeighbours("arp,arp_op=2,actions=output:13"),
		trace: `ARP between 10\.0\.0\.12 and .* because the answer to it is taken`},
	{name: "another owner's flow that sends packets to another pod", gate: true,
		options: testbed.Options{Standalone: true},
		does:    ofctl("add-flow", "br-int", "cookie=0x77,priority=1,ip,nw_dst=10.0.0.11,actions=output:13"),
		trace:   leavesElsewhere, probe: notSent},
	{name: "another owner's flow that sends packets to another pod", kind: "IPv6",
		options: testbed.Options{Standalone: true},
		does: ofctl("add-flow", "br-int",
			"cookie=0x77,priority=1,ipv6,ipv6_dst=fd00:a::11,actions=output:13"),
		trace: leavesElsewhere, probe: notSent},
	{name: "fail_mode secure", does: vsctl("set-fail-mode", "br-int", "secure"), works: true, unnamed: "it does no harm: nkp has a flow of its own for what is not for a Service"},
	{name: "an unreachable controller, fail_mode standalone", options: testbed.Options{Standalone: true}, does: vsctl("set-controller", "br-int", "tcp:127.0.0.1:1", "--",
		"set", "Controller", "br-int", "inactivity_probe=0"), status: `no controller serves it`, trace: `no controller serves it`, diff: `no controller serves it`},
	{name: "OpenFlow 1.0 only", does: vsctl("set", "Bridge", "br-int", "protocols=OpenFlow10"), works: true, status: `OpenFlow15`, trace: `does not agree: `},
	{name: "STP", does: vsctl("set", "Bridge", "br-int", "stp_enable=true"), status: `stp_state is (listening|learning)`, services: `stp_state`, trace: `not known to arrive: .*stp_state`},
	{name: "no-forward", gate: true, does: ofctl("mod-port", "br-int", "11", "no-forward"), status: `pod-11: its OpenFlow configuration is no-forward`, services: `configuration is no-forward`,
		trace: `ovs-vswitchd says "OFPPC_NO_FWD set, skipping output"`},
	{name: "no-receive", does: ofctl("mod-port", "br-int", "11", "no-receive"), pods: `pod-11 .*limited\n +PROBLEM: .*no-receive`, status: `pod-11: its OpenFlow configuration is no-receive`, services: `configuration is no-receive`, trace: `not known to arrive: .*no-receive`},
	{name: "no-receive at the client", does: ofctl("mod-port", "br-int", "12", "no-receive"), status: `pod-12: its OpenFlow configuration is no-receive`, trace: `not known to arrive: .*client 10\.0\.0\.12: .*no-receive`},
	{name: "flow table limit", does: func(c *scene, t *testing.T) {
		vsctl("--", "--id=@t", "create", "Flow_Table", "flow_limit=1", "overflow_policy=refuse", "--", "set", "Bridge", "br-int", "flow_tables:1=@t")(c, t)
		web := service("more", "40.0.0.7")
		c.put(web, slice(web, 8080, at(c.pods[0].IP4)))
	}, status: `REFUSED|TABLE_FULL|table_full|refuses`, works: true},
	{name: "timeouts of nkp's conntrack zones", does: vsctl("--", "--id=@d", "create", "Datapath", "datapath_version=0", "--", "set", "Open_vSwitch", ".", "datapaths:netdev=@d",
		"--", "add-zone-tp", "netdev", "zone=1001", "tcp_established=1"), works: true,
		status: `conntrack zone 1001: CT_Timeout_Policy.timeouts:tcp_established is 1 s`},
	{name: "an endpoint without a pod", gate: true, does: func(c *scene, t *testing.T) {
		c.put(slice(c.web(), 8080, at(c.at(c.pods[0]).Next().Next().Next().Next())))
		c.settle()
	}, services: `no port of bridge br-int has the address of the local endpoint 10\.0\.0\.15:8080`, trace: `not known to arrive: no port of bridge br-int has the address`},
	{name: "a server on loopback only", gate: true, does: onLoopback, services: `, [1-9]\d* refused`, trace: `not known to arrive: .*, [1-9]\d* refused`, probe: `refused by 10\.0\.0\.14:8080 after .*: nothing listens at that address and port`},
	{name: "a full accept queue", does: func(c *scene, t *testing.T) {
		p := c.idlePod(t)
		must(t, p.Do(func() error { return fullQueue(t, p.IP4.As4()) }))
		c.serveWebAt(t, p)
	}, services: `[1-9]\d* without answer`, trace: `not known to arrive: .*[1-9]\d* without answer`, probe: kept},
	{name: "the Service's old cluster IP", does: func(c *scene, t *testing.T) {
		c.remove(c.web())
		web := service("web", "40.0.0.9")
		c.put(web)
		c.settle()
	}, trace: `40\.0\.0\.1:80`},
	{name: "checksum offload in the pod", does: in(endpoint, "ethtool", "-K", "eth0", "tx", "on"), services: unanswered, trace: `not known to arrive: ` + unanswered, probe: `because of a wrong checksum: [1-9]\d* \(coverage/read-counter conntrack_l4csum_err\)`},
	{name: "the endpoint's address moved to another port", does: moved, services: unanswered, trace: `not known to arrive: ` + unanswered, probe: `of port pod-11: external_ids:ip_addresses has 10\.0\.0\.11, but the kernel has found it at 02:00:00:00:00:13, the MAC of port pod-13`},
	{name: "a drop in the node's nftables", gate: true, from: node, does: func(c *scene, t *testing.T) {
		in(node, "nft", "add table inet fw; add chain inet fw out { type filter hook output priority 0; }; add rule inet fw out "+c.address("daddr")+" drop")(c, t)
	},
		trace: `before the packet leaves the node: table inet fw, chain out drops it`},
	{name: "a drop of answers in the node's nftables", from: node, does: func(c *scene, t *testing.T) {
		in(node, "nft", "add table inet fw; add chain inet fw in { type filter hook input priority 0; }; add rule inet fw in "+c.address("saddr")+" drop")(c, t)
	},
		trace: `of the answer: table inet fw, chain in drops it`},
	{name: "a stopped agent", works: true, gone: true, does: func(c *scene, t *testing.T) {
		must(t, c.agent.Freeze())
		t.Cleanup(func() { _ = c.agent.Thaw() })
	}, status: `has not answered for 5s`, services: `has not answered for`, trace: `has not answered for`, diff: `has not answered for`},
	{name: "a removed socket", works: true, gone: true, does: func(c *scene, t *testing.T) { must(t, os.Remove(c.socket())) }, status: `no such file or directory`, trace: `no such file or directory`},
	{name: "link of the endpoint down", does: in(endpoint, "ip", "link", "set", "eth0", "down"), status: `pod-11: .*down`, services: `nothing reaches`,
		trace: `not known to arrive: nothing reaches the local endpoint`},
	{name: "device of the endpoint's port off", does: in(node, "ip", "link", "set", "pod-11", "down"), status: `admin_state is down`, services: `admin_state is down`,
		trace: `not known to arrive: nothing reaches the local endpoint`},
	{name: "port of the endpoint deleted", does: vsctl("del-port", "br-int", "pod-11"), services: `no port of bridge`, trace: `not known to arrive: no port of bridge`},
	{name: "a drop in the node's nftables, family netdev", from: node, does: in(node, "nft", "add table netdev fw; add chain netdev fw e { type filter hook egress device br-int priority 0; }; "+
		"add rule netdev fw e ip daddr 40.0.0.1 drop"), trace: `not known to arrive: table netdev fw, chain e sees the packets of device br-int`, probe: `lost before an endpoint was chosen`},
	{name: "full disk", works: true, does: func(c *scene, t *testing.T) {
		_, _ = c.Exec(c.Node, "dd", "if=/dev/zero", "of="+filepath.Join(c.RunDir, "full"), "bs=64k") // until there is no room
	}, before: func(t *testing.T, o *testbed.Options) {
		dir, err := os.MkdirTemp("", "nkpdisk")
		must(t, err)
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"))
		t.Cleanup(func() { _, _ = unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir) })
		o.Dir = dir
	}, unnamed: "nkp writes nothing to it, and Services go on"},
	{name: "no route in the pod", kind: "NodePort", does: func(c *scene, t *testing.T) { c.ip(t, c.pods[0].Host, "route", "flush", "table", "main") },
		services: unanswered, trace: `not known to arrive: ` + unanswered, probe: kept},
	{name: "the endpoint's address moved to another port", kind: "UDP", does: moved, trace: silent,
		probe: `no answer proves nothing; but of port pod-11: external_ids:ip_addresses has 10\.0\.0\.11, but the kernel has found it at 02:00:00:00:00:13`},
	{name: "the endpoint's address moved to another port", kind: "IPv6", does: moved, services: unanswered, trace: `not known to arrive: ` + unanswered,
		probe: `of port pod-11: external_ids:ip_addresses has 10\.0\.0\.11, but the kernel has found it at 02:00:00:00:00:13`},
	{name: "no route in the pod", kind: "UDP", does: func(c *scene, t *testing.T) { c.ip(t, c.pods[0].Host, "route", "flush", "table", "main") },
		trace: silent},
	{name: "a server on loopback only", kind: "UDP", does: onLoopback, trace: silent, probe: `refused by 10\.0\.0\.14:8080 after .*: nothing listens at that address and port`},
	{name: "a server on loopback only", kind: "IPv6", does: onLoopback, services: `, [1-9]\d* refused`, trace: `not known to arrive: .*, [1-9]\d* refused`,
		probe: `refused by .*: nothing listens at that address and port`},
	{name: "a drop in the node's nftables", kind: "IPv6", from: node, does: func(c *scene, t *testing.T) {
		in(node, "nft", "add table inet fw; add chain inet fw out { type filter hook output priority 0; }; add rule inet fw out "+c.address("daddr")+" drop")(c, t)
	}, trace: `before the packet leaves the node: table inet fw, chain out drops it`},
	{name: "conntrack zone full", does: func(c *scene, t *testing.T) {
		c.limitConntrack(t, "dpctl/ct-set-limits", "zone=1001,limit=1")
		c.keepOpen(t, c.pods[2].Host, "40.0.0.1:80")
	}, status: `zone 1001 1 of 1 entries: full`, trace: `zone 1001 1 of 1 entries: full`},
}

// claims writes the only address of a pod's port into the database.
func (c *scene) claims(t *testing.T, pod int, ip netip.Addr) {
	t.Helper()
	_, err := c.Vsctl("set", "Interface", c.pods[pod].Name, fmt.Sprintf("external_ids:ip_addresses=%q", ip))
	must(t, err)
}

// address returns the Service's address; with an nft field, the expression that matches it there.
func (c *scene) address(field ...string) string {
	at := netip.MustParseAddrPort(c.to).Addr().String()
	if len(field) == 0 {
		return at
	}
	return map[bool]string{false: "ip ", true: "ip6 "}[c.six()] + field[0] + " " + at
}

// web returns the Service default/web.
func (c *cluster) web() *v1.Service { return c.objects[harness.Key(service("web", ""))].(*v1.Service) }

// serveWebAt makes a pod the only endpoint of default/web.
func (c *scene) serveWebAt(t *testing.T, p *testbed.Pod) {
	t.Helper()
	c.put(slice(c.web(), 8080, at(c.at(p))))
	c.settle()
}

// fullQueue listens at an address, port 8080, and fills the queue of connections that wait to be accepted.
func fullQueue(t *testing.T, ip [4]byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.Cleanup(func() { unix.Close(fd) })
	at := &unix.SockaddrInet4{Port: 8080, Addr: ip}
	if err := unix.Bind(fd, at); err != nil {
		return err
	}
	if err := unix.Listen(fd, 0); err != nil {
		return err
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("%v:8080", net.IP(ip[:]))) // a backlog of 0 takes one
	if err == nil {
		t.Cleanup(func() { conn.Close() })
	}
	return err
}

// The runbook's table: for each breakage, what the commands say is not false, and one of them names the cause. NKP_WRITE_RUNBOOK=1 writes the
// table, which needs the night's rows.
func TestBreakages(t *testing.T) {
	if onKernelDatapath() {
		t.Skip("the rows are of the userspace datapath")
	}
	named, all := 0, 0
	var rows []string
	for _, b := range breakages {
		t.Run(b.title(), func(t *testing.T) {
			if !b.gate {
				nightly.Only(t, "the gate has some of the rows")
			}
			rows = append(rows, b.try(t))
			t.Log(rows[len(rows)-1])
		})
		if all++; b.unnamed == "" {
			named++
		}
	}
	if named*10 < all*9 {
		t.Errorf("the cause of %d of %d breakages is named; want nine of ten", named, all)
	}
	writeRunbook(t, rows)
}

// try makes a row, and returns it as the runbook has it.
func (b *breakage) try(t *testing.T) string {
	options := b.options
	if b.before != nil {
		b.before(t, &options)
	}
	c := &scene{newCluster(t, options, "--gateway-mac", testbed.GatewayMAC), b.kind, "40.0.0.1:80", "tcp"}
	c.servePods(t)
	ip, change := "40.0.0.1", []func(*v1.Service){func(s *v1.Service) { s.Spec.Selector = map[string]string{"app": "web"} }}
	switch b.kind {
	case "IPv6":
		ip, c.to = "fd00:40::1", "[fd00:40::1]:80"
	case "UDP":
		change, c.proto = append(change, protocol(v1.ProtocolUDP)), "udp"
	case "NodePort":
		change, c.to = append(change, exposed(30080)), hostPort(testbed.NodeIP4, 30080)
	}
	web := service("web", ip, change...)
	c.put(web, slice(web, 8080, at(c.at(c.pods[0]))))
	c.runWith(b.flags...)
	c.settle()
	from := aPod(c.cluster)
	if b.from != nil {
		from = b.from(c.cluster)
	}
	like := netip.MustParseAddrPort(c.to).Addr()
	c.ask(t, from, c.proto, c.to, c.pods[0].Name)
	c.flush()
	b.does(c, t)

	client := from.IP(like).String()
	cells := []string{b.title()}
	for _, q := range []struct {
		want string
		args []string
	}{
		{b.status, []string{"status"}},
		{b.services, []string{"services", "default/web", "-o", "wide"}},
		{b.trace, []string{"trace", "--live", "--from", client, "--to", c.to, "--protocol", c.proto}},
		{b.probe, []string{"trace", "--probe", "--from", client, "--to", c.to, "--protocol", c.proto}},
		{b.diff, []string{"diff"}},
		{b.pods, []string{"pods"}},
	} {
		if q.args[0] == "pods" && q.want == "" {
			continue
		}
		want, out, status := regexp.MustCompile(b.inFamily(q.want)), "", 0
		err := wait.Until(t.Context(), func() error {
			if b.again {
				b.does(c, t)
			}
			if b.from == nil { // the kernel may refuse the node's own
				c.sends(t, from, c.proto, c.to)
			}
			stdout, stderr, s := c.nkp(append(q.args, "--socket", c.socket())...)
			if out, status = stdout+stderr, s; !want.MatchString(out) {
				return fmt.Errorf("it does not say %q", q.want)
			}
			return nil
		})
		t.Logf("nkp %s ends with %d\n%s", strings.Join(q.args, " "), status, out)
		if err != nil {
			t.Errorf("nkp %s: %v", strings.Join(q.args, " "), err)
		}
		if q.args[1%len(q.args)] == "--live" && !b.works && !b.gone && b.kind != "UDP" && (strings.Contains(out, "what is installed agrees") && strings.Contains(out, "verdict: deliver") || status == 0 && b.trace != "" && strings.Contains(b.trace, "not known")) {
			t.Errorf("trace says that all is well, status %d:\n%s", status, out)
		}
		if b.works && strings.Contains(out, "nothing reaches") {
			t.Errorf("nkp %s says that nothing reaches an endpoint that answers:\n%s", q.args[0], out)
		}
		if q.args[0] != "pods" {
			cells = append(cells, b.cell(q.args[1%len(q.args)], b.inFamily(q.want), out))
		}
	}
	if !b.again && !b.either {
		b.judge(t, c, from)
	}
	if b.unnamed != "" {
		cells[0] += " (" + b.unnamed + ")"
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// title is the row's name in the runbook.
func (b *breakage) title() string {
	if b.kind == "" {
		return b.name
	}
	return b.name + " (" + b.kind + ")"
}

// inFamily returns what a command must say with the pods' addresses in the Service's family.
func (b *breakage) inFamily(want string) string {
	if b.kind != "IPv6" {
		return want
	}
	want = regexp.MustCompile(`10\\\.0\\\.0\\\.(\d+):8080`).ReplaceAllString(want, `\[fd00:a::$1\]:8080`)
	want = regexp.MustCompile(`10\\\.0\\\.0\\\.(\d+)`).ReplaceAllString(want, `fd00:a::$1`)
	return strings.ReplaceAll(want, `40\.0\.0\.1`, `fd00:40::1`)
}

// judge asks by a packet whether the connection works as the row says.
func (b *breakage) judge(t *testing.T, c *scene, from *testbed.Host) {
	o := testbed.AskOptions{}
	if !b.works { // silence is what comes before so many answers to the same host's questions elsewhere
		o.Until = func(context.Context) error {
			for range 20 {
				if _, err := c.Ofctl("dump-ports", c.Bridge); err != nil {
					return nil
				}
			}
			return nil
		}
	}
	if _, err := from.AskWith(c.ctx, c.proto, c.to, o); (err == nil) != b.works {
		t.Errorf("%s -> %s: %v; the row says that it works: %t", from.Name, c.to, err, b.works)
	}
}

// What differs from run to run, and how the runbook has it.
var variable = []struct {
	is *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`\d\d\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "2026-03-01T11:59:20Z"},
	{regexp.MustCompile(`at \d\d:\d\d:\d\dZ`), "at 11:59:20Z"},
	{regexp.MustCompile(`\d+ answered, \d+ without answer, \d+ refused`), "0 answered, … without answer or refused"},
	{regexp.MustCompile(`\d+ without an answer, \d+ answered or`), "… without an answer, … answered or"},
	{regexp.MustCompile(`cookie=0x6e6b70[0-9a-f]+`), "cookie=0x6e6b70…"},
	{regexp.MustCompile(`/tmp/\S+/`), "/run/"},
	{regexp.MustCompile(`after \d+\.\d ms`), "after 0.3 ms"},
	{regexp.MustCompile(`(came back by the port) \(\d+\)|(wrong checksum): \d+`), "$1$2"},
}

// cell returns the line in which a command says what it must, cut to what a table can have.
func (b *breakage) cell(option, want, out string) string {
	line := ""
	if want == "" {
		if want = map[string]string{"--live": `(?m)^verdict: `, "--probe": `(?m)^(answered by|refused|no answer|sent to|nkp: )`}[option]; want == "" || b.gone {
			return ""
		}
	}
	if at := regexp.MustCompile(want).FindStringIndex(out); at != nil {
		start := strings.LastIndexByte(out[:at[0]], '\n') + 1
		line, _, _ = strings.Cut(out[start:], "\n")
	}
	for _, v := range variable {
		line = v.is.ReplaceAllString(line, v.as)
	}
	line = strings.Join(strings.Fields(strings.TrimSpace(line)), " ")
	limit := 180
	if option == "--probe" {
		limit = 300 // it begins with what happened
	}
	if r := []rune(line); len(r) > limit {
		line = string(r[:limit]) + "…"
	}
	return "`" + strings.ReplaceAll(line, "|", "/") + "`"
}

const (
	runbook    = "../../docs/runbook.md"
	tableBegin = "<!-- breakages: written by TestBreakages -->\n"
	tableEnd   = "<!-- end of breakages -->\n"
)

// writeRunbook writes the table if it is asked to. Otherwise it sees that the table has all rows.
func writeRunbook(t *testing.T, rows []string) {
	text, err := os.ReadFile(runbook)
	must(t, err)
	before, rest, _ := strings.Cut(string(text), tableBegin)
	table, after, found := strings.Cut(rest, tableEnd)
	if !found {
		t.Fatalf("%s has no table of breakages", runbook)
	}
	if os.Getenv("NKP_WRITE_RUNBOOK") != "" && len(rows) == len(breakages) && !t.Failed() {
		head := "| What is broken | status | services | trace --live | trace --probe | diff |\n|---|---|---|---|---|---|\n"
		must(t, os.WriteFile(runbook, []byte(before+tableBegin+head+strings.Join(rows, "\n")+"\n"+tableEnd+after), 0o644))
		return
	}
	for _, b := range breakages {
		if !strings.Contains(table, "| "+b.title()+" ") {
			t.Errorf("%s has no row %q: write it with NKP_NIGHTLY=1 NKP_WRITE_RUNBOOK=1", runbook, b.name)
		}
	}
}
