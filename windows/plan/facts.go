package plan

import (
	"net/netip"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// Facts are the input of a plan in addition to the model. On a Windows node they are read from HNS, elsewhere
// the caller sets them.
type Facts struct {
	Network hns.Network
	Version hns.Version

	// SourceVIP is the source address of connections whose replies must return through this node. Overlay
	// networks need it; on others the zero Addr lets HNS choose.
	SourceVIP netip.Addr
	// NodeIP is this node's IPv4 address, the provider address of its own Service addresses on an overlay
	// network.
	NodeIP netip.Addr
	// HostMAC is the MAC address of the interface that has NodeIP; overlay networks only.
	HostMAC string

	// EnableDSR enables Direct Server Return for the load balancers of ClusterIPs (--enable-dsr).
	EnableDSR bool
	// HealthEndpoint is the address of the endpoint that health checks of load balancers are forwarded to;
	// the zero Addr: they are not forwarded (--forward-healthcheck-vip, --root-hnsendpoint-name).
	HealthEndpoint netip.Addr
	// HealthzPort is where the health checks of Services without a port of their own are forwarded to; 0:
	// nowhere.
	HealthzPort uint16
}

// features returns what this HNS can do.
func (f *Facts) features() hns.Features { return hns.FeaturesOf(f.Version) }

// serves returns why a family is not served at all; "": it is.
func (f *Facts) serves(family k8s.Family) (reason string) {
	switch {
	case family == k8s.IPv4:
		return ""
	case f.Network.Overlay():
		return "IPv6 is not served: overlay networks on Windows have IPv4 only"
	case !f.features().IPv6DualStack:
		return "IPv6 is not served: " + hns.Missing("IPv6DualStack", "11.10", f.Version).Error()
	}
	return ""
}

// sourceVIP returns the source VIP of a load balancer with these endpoints. On an overlay network,
//
//	(a) if an endpoint's address is not the cluster's, or
//	(b) is another node's own address: this node's address, since such an endpoint cannot answer into the
//	    overlay;
//	(c) else (pods here and elsewhere, this node's own address): the configured one.
//
// On other networks it is the configured one; none lets HNS choose. IPv6 has none.
func (f *Facts) sourceVIP(endpoints []k8s.Endpoint) netip.Addr {
	if !f.Network.Overlay() {
		if endpoints[0].Addr.Addr().Is6() {
			return netip.Addr{}
		}
		return f.SourceVIP
	}
	for _, e := range endpoints {
		a := e.Addr.Addr()
		if e.Local || a == f.NodeIP || a.Is6() {
			continue
		}
		if node := f.Network.Provider(a); !node.IsValid() || node == a {
			return f.NodeIP
		}
	}
	return f.SourceVIP
}
