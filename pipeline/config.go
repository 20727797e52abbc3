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

// Config is what the pipeline needs to know besides the Services. The zero value of a field means
// unknown; flows that need it are left out, and Compiler.Missing tells.
type Config struct {
	Layout Layout
	// NodeIPs are this node's addresses: where NodePorts are served. The first of each family is the
	// address that masqueraded traffic carries.
	NodeIPs []netip.Addr
	// NodeMAC is the MAC of the bridge's LOCAL port, if the node's addresses live there.
	NodeMAC flow.MAC
	// GatewayMAC is the MAC of the router behind the uplink.
	GatewayMAC flow.MAC
	// Uplink is the OpenFlow port that leads out of the node.
	Uplink uint32
	// ClusterCIDRs tell pods from everyone else (detect-local-mode ClusterCIDR). Without them nobody counts as
	// a pod, and ClusterIP traffic is not masqueraded (kube-proxy's behaviour without a local detector).
	ClusterCIDRs []netip.Prefix
	// ServiceCIDRs are the Service ranges: an address in one that no Service has is dropped.
	ServiceCIDRs []netip.Prefix
	// MasqueradeAll masquerades all ClusterIP traffic.
	MasqueradeAll bool
	// LocalDelivery sends Service packets straight to pods on this bridge, past the gateway.
	LocalDelivery bool
	// Pods are the pods on this bridge.
	Pods []Pod
	// NoMeter leaves out the meter on rejects, for switches without meters.
	NoMeter bool
	// RejectRate bounds the packets per second that are sent to the controller to be refused.
	RejectRate uint32
}

// DefaultRejectRate is the packets per second that may ask the controller for a rejection.
const DefaultRejectRate = 1000

// sameForServices tells whether Services compile to the same flows under both configurations.
func (c *Config) sameForServices(o *Config) bool {
	return c.Layout == o.Layout && slices.Equal(c.NodeIPs, o.NodeIPs) &&
		slices.Equal(c.ClusterCIDRs, o.ClusterCIDRs) && (c.Uplink == 0) == (o.Uplink == 0)
}

func (c *Config) nodeIP(f k8s.Family) (netip.Addr, bool) {
	i := slices.IndexFunc(c.NodeIPs, func(a netip.Addr) bool { return k8s.FamilyOf(a) == f })
	if i < 0 {
		return netip.Addr{}, false
	}
	return c.NodeIPs[i], true
}

func (c *Config) detector(f k8s.Family) bool {
	return slices.ContainsFunc(c.ClusterCIDRs, func(p netip.Prefix) bool { return k8s.FamilyOf(p.Addr()) == f })
}
