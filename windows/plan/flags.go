package plan

import (
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// mappingFlags returns the flags of a port mapping.
func mappingFlags(t k8s.FrontendType, preserve bool) uint32 {
	switch t {
	case k8s.NodePort:
		return hns.MappingVIPExternalIP | hns.MappingLocalRoutedVIP
	case k8s.ExternalIP:
		return hns.MappingVIPExternalIP
	case k8s.LoadBalancer:
		if preserve {
			return hns.MappingVIPExternalIP | hns.MappingUseMux | hns.MappingPreserveDIP
		}
		return hns.MappingVIPExternalIP
	}
	return 0
}

// flags returns the flags of a load balancer. For ClusterIPs, direct server return is a setting of the node.
// For other frontends it comes with externalTrafficPolicy Local, because it keeps the client's address.
func (b *builder) flags(sp *k8s.ServicePort, f *k8s.Frontend, r k8s.Route, preserve bool) (flags uint32) {
	dsr := b.facts.EnableDSR
	if f.Type != k8s.ClusterIP {
		dsr = !r.Masquerade || preserve && f.Type == k8s.LoadBalancer
	}
	switch {
	case dsr && b.features.DSR:
		flags |= hns.LoadBalancerDSR
	case dsr && f.Type != k8s.ClusterIP:
		b.unsupported(sp.Name,
			"externalTrafficPolicy Local keeps traffic on this node, but not the client's address: %v",
			hns.Missing("DSR", "10.2", b.facts.Version))
	}
	if sp.Name.Family == k8s.IPv6 {
		flags |= hns.LoadBalancerIPv6
	}
	return flags
}

// distribution returns the DistributionType of a Service port.
func (b *builder) distribution(sp *k8s.ServicePort) uint32 {
	if sp.AffinitySeconds == 0 {
		return 0
	}
	if !b.features.SessionAffinity {
		b.unsupported(sp.Name, "session affinity is not kept: %v",
			hns.Missing("SessionAffinity", "12.0", b.facts.Version))
		return 0
	}
	if sp.AffinitySeconds != defaultAffinitySeconds {
		b.unsupported(sp.Name, "the session affinity timeout of %d s is not observed: HNS keeps affinity without "+
			"a limit of its own", sp.AffinitySeconds)
	}
	return hns.DistributionSourceIP
}

// preserve reports whether packets to a frontend are to arrive with the load balancer's address as
// destination; NodePorts of such a Service, which its health checks use, then lead to this node's endpoints
// only.
func (b *builder) preserve(sp *k8s.ServicePort, f *k8s.Frontend) bool {
	if f.Type != k8s.LoadBalancer && f.Type != k8s.NodePort || !sp.PreserveDestination {
		return false
	}
	if !b.features.DSR {
		b.unsupported(sp.Name, "preserve-destination is not observed: %v",
			hns.Missing("DSR", "10.2", b.facts.Version))
		return false
	}
	return true
}
