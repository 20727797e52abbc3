package pipeline

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Pod is a pod on the bridge: where packets for its address go.
type Pod struct {
	IP     netip.Addr
	OFPort uint32
	MAC    flow.MAC
}

// Route is the next hop of a Service packet that leaves the node, as the node's kernel has it.
type Route struct {
	Dst netip.Prefix
	MAC flow.MAC // zero: not known; the kernel gets the packet
	// Closed is set if the kernel sends nothing there (blackhole, unreachable, prohibit). It gets what comes
	// from others, and what the node sends is dropped.
	Closed bool
}

// Config is the pipeline's input besides the Services. The zero value of a field means unknown; flows that
// need it are left out, and Compiler.Missing reports it.
type Config struct {
	Layout Layout
	// NodeIPs are this node's addresses in its Node object. The first of each family is the address that
	// masqueraded traffic carries.
	NodeIPs []netip.Addr
	// LocalIPs are all addresses of the node, NodeIPs among them: NodePorts are served at each.
	LocalIPs []netip.Addr
	// NodeElsewhere are the families of which the node's addresses are not on this bridge. Replies sent to
	// them do not come back here, so nothing can be masqueraded as the node.
	NodeElsewhere []k8s.Family
	// OtherPorts are those of LocalIPs that are on ports of this bridge other than LOCAL. What the uplink
	// brings for them is left to the kernel, which serves it.
	OtherPorts []netip.Addr
	// HairpinIPs, at most one of each family, are addresses that exist only on this bridge. They replace the
	// source address of a client that is its own endpoint where the node's address cannot: of the node
	// itself, and of pods of a family in NodeElsewhere.
	HairpinIPs []netip.Addr
	// NodeMAC is the MAC of the bridge's LOCAL port, if the node's addresses live there.
	NodeMAC flow.MAC
	// GatewayMAC is the MAC of the router behind the uplink: the next hop of what no Route of its family
	// covers, too.
	GatewayMAC flow.MAC
	// Routes are the node's routes over the bridge that lead elsewhere than to GatewayMAC, at most one to a
	// prefix.
	Routes []Route
	// NodeVLAN says that the bridge puts what LOCAL sends into a VLAN, or takes tags from what the uplink
	// does.
	NodeVLAN bool
	// NoRouter says that the node has no default route over the bridge.
	NoRouter bool
	// Uplink is the OpenFlow port that leads out of the node.
	Uplink uint32
	// Detector recognizes pods. Without one no client counts as a pod, and ClusterIP traffic is not
	// masqueraded (kube-proxy's behaviour without a local detector). If it names a bridge, this one is
	// assumed to be meant.
	Detector k8s.Detector
	// PodPorts are the OpenFlow ports whose interfaces begin with Detector.InterfacePrefix.
	PodPorts []uint32
	// ServiceCIDRs are the Service ranges: packets to an address in one that no Service has are dropped.
	ServiceCIDRs []netip.Prefix
	// MasqueradeAll masquerades all ClusterIP traffic.
	MasqueradeAll bool
	// MasqueradeMin and MasqueradeMax are the source ports of masqueraded connections; 0: MasqueradePortMin
	// and MasqueradePortMax.
	MasqueradeMin, MasqueradeMax uint16
	// LocalDelivery sends Service packets straight to pods on this bridge, past the gateway.
	LocalDelivery bool
	// AffinityLimit is how many clients of each Service port session affinity pins; 0: DefaultAffinityLimit.
	AffinityLimit uint32
	// Counters counts connections, packets and bytes of every Service port, by three flows each.
	Counters bool
	// Fragments serves UDP packets in fragments, on the userspace datapath: the kernel's reassembles them
	// (fragments.go).
	Fragments bool
	// Canary adds the Service of the canaries (canary.go).
	Canary bool
	// AnswerPing answers pings of Services' addresses (pings.go). It needs meters.
	AnswerPing bool
	// NoGuards leaves out the guards of direct connections (README.md, "Port-reuse guards").
	NoGuards bool
	// NoNullNAT leaves out every translation that changes neither address nor port, for switches that can
	// crash on one (ovsdb.NullNAT; README.md, "Translations that change nothing"). Guards are such
	// translations.
	NoNullNAT bool
	// Others is what the flows of others in table 0 do. Where there are any, nkp adds none that forwards what
	// they leave.
	Others flow.Others
	// Pods are the pods on this bridge.
	Pods []Pod
	// VLANPorts are the OpenFlow ports whose packets the bridge puts into a VLAN, or takes tags of: access
	// ports and trunks.
	VLANPorts []uint32
	// Senders are the OpenFlow ports of pods, sorted: each has a share of RejectRate of its own.
	Senders []uint32
	// NoMeter leaves out the meters on rejects, for switches without meters; OneMeter those of Senders, for
	// switches with few.
	NoMeter, OneMeter bool
	// RejectRate bounds the packets per second that are sent to the controller to be refused, and the pings
	// that are answered.
	RejectRate uint32
}

// DefaultRejectRate is the default of Config.RejectRate, in packets per second.
const DefaultRejectRate = 1000

// withDefaults returns the configuration with defaults for the fields that must not be zero.
func (c Config) withDefaults() Config {
	if c.RejectRate == 0 {
		c.RejectRate = DefaultRejectRate
	}
	if c.AffinityLimit == 0 {
		c.AffinityLimit = DefaultAffinityLimit
	}
	if c.MasqueradeMax == 0 {
		c.MasqueradeMin, c.MasqueradeMax = MasqueradePortMin, MasqueradePortMax
	}
	return c
}

// sameForServices reports whether Services compile to the same flows under both configurations.
func (c *Config) sameForServices(o *Config) bool {
	pods, before := c.router().Detector, o.router().Detector
	return c.Layout == o.Layout && slices.Equal(c.NodeIPs, o.NodeIPs) &&
		slices.Equal(c.LocalIPs, o.LocalIPs) && slices.Equal(c.NodeElsewhere, o.NodeElsewhere) &&
		slices.Equal(c.HairpinIPs, o.HairpinIPs) &&
		slices.Equal(c.ServiceCIDRs, o.ServiceCIDRs) &&
		c.Counters == o.Counters && c.AnswerPing == o.AnswerPing &&
		c.AffinityLimit == o.AffinityLimit &&
		c.MasqueradeMin == o.MasqueradeMin &&
		c.MasqueradeMax == o.MasqueradeMax &&
		c.NoGuards == o.NoGuards &&
		c.Fragments == o.Fragments &&
		c.NoNullNAT == o.NoNullNAT &&
		(c.Uplink == 0) == (o.Uplink == 0) &&
		pods.Has(k8s.IPv4) == before.Has(k8s.IPv4) &&
		pods.Has(k8s.IPv6) == before.Has(k8s.IPv6)
}

// OthersDecide reports whether flows of others in table 0 decide where packets go. Service packets go on to
// them then, too.
func (c *Config) OthersDecide() bool { return c.Others == flow.OthersDecide && c.Layout.passes() }

// Elsewhere reports whether the node's addresses of a family are not on this bridge.
func (c *Config) Elsewhere(f k8s.Family) bool { return slices.Contains(c.NodeElsewhere, f) }

// masqueradeIP returns the source address of masqueraded traffic of a family.
func (c *Config) masqueradeIP(f k8s.Family) (ip netip.Addr, ok bool) {
	if !c.Elsewhere(f) {
		ip = f.First(c.NodeIPs)
	}
	return ip, ip.IsValid()
}

// podHairpinIP returns the address that replaces the source address of a pod that is its own endpoint.
func (c *Config) podHairpinIP(f k8s.Family) (netip.Addr, bool) {
	if ip, ok := c.masqueradeIP(f); ok {
		return ip, true
	}
	ip := f.First(c.HairpinIPs)
	return ip, ip.IsValid()
}

// router returns what decides the routes to frontends on this bridge. No packet to a loopback address comes
// here.
func (c *Config) router() k8s.Router {
	r := k8s.Router{Detector: c.Detector, NodeIPs: c.NodeIPs, MasqueradeAll: c.MasqueradeAll}
	if c.Detector.Bridge != "" && c.Uplink == 0 {
		r.Detector = k8s.Detector{} // every port but the uplink leads to a pod, and the uplink is unknown
	}
	return r
}
