package hns

import (
	"cmp"
	"fmt"
	"slices"
)

// Flags of a load balancer.
const (
	// LoadBalancerDSR is direct server return: answers do not pass the load balancer, and the client's
	// address stays.
	LoadBalancerDSR  uint32 = 1
	LoadBalancerIPv6 uint32 = 2
)

// Flags of a port mapping.
const (
	MappingLocalRoutedVIP uint32 = 2 // the host itself reaches the frontend
	MappingUseMux         uint32 = 4
	MappingPreserveDIP    uint32 = 8 // pods see the frontend's address as destination
	MappingVIPExternalIP  uint32 = 16
)

// DistributionSourceIP is the DistributionType that sends a client address always to the same endpoint. The
// zero value distributes by connection.
const DistributionSourceIP uint32 = 2

// StateHealthy is the State of a load balancer that HNS has programmed (the first API calls them policy
// lists). 4 is degraded: it may not forward. Microsoft's scripts have such objects deleted and created again
// (microsoft/wcnscripts #21).
const StateHealthy = 2

// PortMapping is the port of a frontend and the one it leads to.
type PortMapping struct {
	Protocol         uint32 `json:",omitempty"` // IANA number: TCP 6, UDP 17, SCTP 132
	InternalPort     uint16 `json:",omitempty"`
	ExternalPort     uint16 `json:",omitempty"`
	DistributionType uint32 `json:",omitempty"`
	Flags            uint32 `json:",omitempty"`
}

// LoadBalancer distributes connections to its frontend addresses among endpoints. Without FrontendVIPs it
// serves its external port on every address of the host.
type LoadBalancer struct {
	ID                   string        `json:"ID,omitempty"`
	HostComputeEndpoints []string      `json:",omitempty"` // ids
	SourceVIP            string        `json:",omitempty"`
	FrontendVIPs         []string      `json:",omitempty"`
	PortMappings         []PortMapping `json:",omitempty"`
	SchemaVersion        SchemaVersion
	Flags                uint32 `json:",omitempty"`
}

// SameLoadBalancer reports whether two load balancers are equivalent. It ignores the id, the schema and the
// order of endpoints.
func SameLoadBalancer(a, b *LoadBalancer) bool {
	return a.SourceVIP == b.SourceVIP && a.Flags == b.Flags && slices.Equal(a.FrontendVIPs, b.FrontendVIPs) &&
		slices.Equal(a.PortMappings, b.PortMappings) && SameBackends(a, b)
}

// SameBackends reports whether two load balancers lead to the same endpoints.
func SameBackends(a, b *LoadBalancer) bool {
	return slices.Equal(idSet(a.HostComputeEndpoints), idSet(b.HostComputeEndpoints))
}

// Digest returns a short form of what SameLoadBalancer compares: two load balancers with equal digests are
// equivalent. State files hold digests, so another form makes nkp write every altered object once.
func (l *LoadBalancer) Digest() string {
	return digest(fmt.Sprintf("%q %d %q %v %q",
		l.SourceVIP, l.Flags, l.FrontendVIPs, l.PortMappings, idSet(l.HostComputeEndpoints)))
}

func idSet(ids []string) []string {
	set := make([]string, len(ids))
	for i, id := range ids {
		set[i] = CanonicalID(id)
	}
	slices.Sort(set)
	return slices.Compact(set)
}

// References reports whether the load balancer sends to an endpoint.
func (l *LoadBalancer) References(endpoint string) bool {
	return slices.ContainsFunc(l.HostComputeEndpoints, func(id string) bool { return SameID(id, endpoint) })
}

// Clone returns a copy that shares nothing.
func (l *LoadBalancer) Clone() *LoadBalancer {
	c := *l
	c.HostComputeEndpoints = slices.Clone(l.HostComputeEndpoints)
	c.FrontendVIPs = slices.Clone(l.FrontendVIPs)
	c.PortMappings = slices.Clone(l.PortMappings)
	return &c
}

// protocols are the protocols of Services by IANA number, as Kubernetes spells them.
var protocols = map[uint32]string{6: "TCP", 17: "UDP", 132: "SCTP"}

// ProtocolName returns the name of an IANA protocol number; "?": unknown.
func ProtocolName(number uint32) string { return cmp.Or(protocols[number], "?") }

// ProtocolNumber returns the IANA number of a protocol; 0: unknown.
func ProtocolNumber(name string) uint32 {
	for number, known := range protocols {
		if name == known {
			return number
		}
	}
	return 0
}
