package hns

import "github.com/Microsoft/hcsshim/hcn"

func fromHCNEndpoint(h *hcn.HostComputeEndpoint) *Endpoint {
	e := &Endpoint{
		ID:                 CanonicalID(h.Id),
		Name:               h.Name,
		HostComputeNetwork: CanonicalID(h.HostComputeNetwork),
		MacAddress:         h.MacAddress,
		Flags:              uint32(h.Flags),
		SchemaVersion:      SchemaVersion(h.SchemaVersion),
	}
	for _, p := range h.Policies {
		e.Policies = append(e.Policies, Policy{string(p.Type), p.Settings})
	}
	for _, c := range h.IpConfigurations {
		e.IpConfigurations = append(e.IpConfigurations, IPConfig(c))
	}
	return e
}

func toHCNEndpoint(e *Endpoint) *hcn.HostComputeEndpoint {
	h := &hcn.HostComputeEndpoint{
		Id:                 e.ID,
		Name:               e.Name,
		HostComputeNetwork: e.HostComputeNetwork,
		MacAddress:         e.MacAddress,
		Flags:              hcn.EndpointFlags(e.Flags),
		SchemaVersion:      hcn.SchemaVersion(e.SchemaVersion),
	}
	for _, p := range e.Policies {
		h.Policies = append(h.Policies, hcn.EndpointPolicy{Type: hcn.EndpointPolicyType(p.Type), Settings: p.Settings})
	}
	for _, c := range e.IpConfigurations {
		h.IpConfigurations = append(h.IpConfigurations, hcn.IpConfig(c))
	}
	return h
}

func fromHCNLoadBalancer(h *hcn.HostComputeLoadBalancer) *LoadBalancer {
	l := &LoadBalancer{
		ID:            CanonicalID(h.Id),
		SourceVIP:     h.SourceVIP,
		FrontendVIPs:  h.FrontendVIPs,
		SchemaVersion: SchemaVersion(h.SchemaVersion),
		Flags:         uint32(h.Flags),
	}
	for _, id := range h.HostComputeEndpoints {
		l.HostComputeEndpoints = append(l.HostComputeEndpoints, CanonicalID(id))
	}
	for _, m := range h.PortMappings {
		l.PortMappings = append(l.PortMappings, PortMapping{m.Protocol, m.InternalPort, m.ExternalPort, uint32(m.DistributionType), uint32(m.Flags)})
	}
	return l
}

func toHCNLoadBalancer(l *LoadBalancer) *hcn.HostComputeLoadBalancer {
	h := &hcn.HostComputeLoadBalancer{
		Id:                   l.ID,
		HostComputeEndpoints: l.HostComputeEndpoints,
		SourceVIP:            l.SourceVIP,
		FrontendVIPs:         l.FrontendVIPs,
		SchemaVersion:        hcn.SchemaVersion(l.SchemaVersion),
		Flags:                hcn.LoadBalancerFlags(l.Flags),
	}
	for _, m := range l.PortMappings {
		h.PortMappings = append(h.PortMappings, hcn.LoadBalancerPortMapping{
			Protocol: m.Protocol, InternalPort: m.InternalPort, ExternalPort: m.ExternalPort,
			DistributionType: hcn.LoadBalancerDistribution(m.DistributionType), Flags: hcn.LoadBalancerPortMappingFlags(m.Flags),
		})
	}
	return h
}
