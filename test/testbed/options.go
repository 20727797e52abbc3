//go:build linux

package testbed

import (
	"net/netip"
	"os"
)

// Addresses that every bed has, but see [Addressing]. They do not collide between beds: each bed has
// namespaces of its own.
var (
	NodeIP4     = netip.MustParseAddr("172.16.0.2")
	NodeIP6     = netip.MustParseAddr("fd00:ac::2")
	RouterIP4   = netip.MustParseAddr("172.16.0.1")
	RouterIP6   = netip.MustParseAddr("fd00:ac::1")
	RemoteIP4   = netip.MustParseAddr("172.16.1.3")
	RemoteIP6   = netip.MustParseAddr("fd00:ac:1::3")
	ExternalIP4 = netip.MustParseAddr("192.168.0.2")
	ExternalIP6 = netip.MustParseAddr("fd00:c0::2")

	GatewayIP4 = netip.MustParseAddr("10.0.0.1") // the local pods' gateway
	GatewayIP6 = netip.MustParseAddr("fd00:a::1")

	PodCIDR4       = netip.MustParsePrefix("10.0.0.0/24")
	PodCIDR6       = netip.MustParsePrefix("fd00:a::/64")
	RemotePodCIDR4 = netip.MustParsePrefix("10.0.1.0/24")
	RemotePodCIDR6 = netip.MustParsePrefix("fd00:b::/64")

	// ServiceRanges are the prefixes that the router sends to the node: first
	// the ClusterIPs, then the load balancers' addresses.
	ServiceRanges = []netip.Prefix{
		netip.MustParsePrefix("40.0.0.0/24"),
		netip.MustParsePrefix("fd00:40::/112"),
		netip.MustParsePrefix("20.0.0.0/24"),
		netip.MustParsePrefix("fd00:20::/112"),
	}
)

// More fixed facts of the topology.
const (
	GatewayMAC = "02:00:00:00:00:01" // the router, seen from the bridge
	NodeMAC    = "02:00:00:00:00:02" // the bridge's LOCAL port
	UplinkPort = 1                   // OpenFlow port number of the uplink
	UplinkName = "uplink"            // its Interface in the switch's database
	FirstPod   = 11                  // number of the first pod
)

// Options say what differs from the usual bed. The zero value is usable.
type Options struct {
	// Plane is what carries the node's packets: OVS or Linux.
	Plane Plane
	// PodBridge hangs the pods on a bridge of the kernel's, named Bridge, instead of
	// giving each a routed link of its own. Linux plane only.
	PodBridge bool
	// Bridge is the integration bridge's name; "" means br-int.
	Bridge string
	// Protocols are the OpenFlow versions of the bridge. None leaves the column
	// empty, which stands for all versions the switch has.
	Protocols []string
	// Standalone lets the bridge switch like a plain learning switch while no
	// controller is there. Otherwise its fail mode is secure, and without flows
	// it drops everything.
	Standalone bool
	// NodeOutside puts the node's addresses on a NIC outside the bridge, NodeNIC;
	// the bridge's LOCAL port then has none, and the uplink carries only pods.
	NodeOutside bool
	// NoServiceRoutes keeps the router from sending ServiceRanges to the node.
	NoServiceRoutes bool
	// MTU of all links in bytes; 0 means 1500.
	MTU int
	// IPv4 replaces the usual IPv4 addresses; the zero value keeps them.
	IPv4 Addressing
	// Datapath is the bridges' datapath_type: "netdev" (userspace), or "system",
	// the kernel's. "" means what the environment variable NKP_TESTBED_DATAPATH
	// says, without it netdev.
	Datapath string
	// Dir is where the bed makes its directory; "" means os.TempDir(). It must be short:
	// the paths of the switch's sockets have a limit of 107 bytes.
	Dir string
}

// Addressing is a bed's IPv4 addressing, for manifests that come with addresses
// of their own. The node and the second node are in one /24, the router is its
// .1. Pod N is the Nth address of a /24, whose .1 is the pods' gateway.
type Addressing struct {
	Node, Remote     netip.Addr
	Pods, RemotePods netip.Prefix
}

// hostsIPv4 are the addresses that an Addressing stands for.
type hostsIPv4 struct {
	node, router, remote, remoteGateway netip.Addr
	gateway, remotePodGateway           netip.Addr
	remoteBits                          int // length of the second node's subnet
	pods, remotePods                    netip.Prefix
}

func (a Addressing) hosts() hostsIPv4 {
	if a == (Addressing{}) {
		return hostsIPv4{
			node: NodeIP4, router: RouterIP4, remote: RemoteIP4, remoteGateway: netip.MustParseAddr("172.16.1.1"),
			gateway: GatewayIP4, remotePodGateway: nth(RemotePodCIDR4, 1),
			remoteBits: 24, pods: PodCIDR4, remotePods: RemotePodCIDR4,
		}
	}
	router := nth(netip.PrefixFrom(a.Node, 24), 1)
	return hostsIPv4{
		node: a.Node, router: router, remote: a.Remote, remoteGateway: router,
		gateway: nth(a.Pods, 1), remotePodGateway: nth(a.RemotePods, 1),
		remoteBits: 32, pods: a.Pods, remotePods: a.RemotePods,
	}
}

// nth is address number n of an IPv4 /24.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().As4()
	b[3] = byte(n)
	return netip.AddrFrom4(b)
}

// The kinds of datapath.
const (
	UserDatapath   = "netdev"
	KernelDatapath = "system"
)

// DefaultDatapath is the datapath of beds whose options name none.
func DefaultDatapath() string {
	if d := os.Getenv("NKP_TESTBED_DATAPATH"); d != "" {
		return d
	}
	return UserDatapath
}

// Offload reports whether beds on the kernel datapath have Open vSwitch hand its cached flows to the kernel's tc, as for a
// NIC that takes them, but without one: NKP_TESTBED_OFFLOAD is set.
func Offload() bool { return os.Getenv("NKP_TESTBED_OFFLOAD") != "" }

// NodeNIC is the node's network card outside the bridge, where it has one: with
// Options.NodeOutside and on the Linux plane.
const NodeNIC = "eth0"
