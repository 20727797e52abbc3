package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// Frontend identifies a load balancer: HNS has at most one for each.
type Frontend struct {
	VIP      netip.Addr // the zero Addr: every address of the host (NodePort)
	Protocol uint32     // IANA number
	Port     uint16
	Family   k8s.Family
}

// String returns "10.99.234.145:80/TCP"; of a NodePort "*:30080/TCP/IPv4".
func (f Frontend) String() string {
	if !f.VIP.IsValid() {
		return fmt.Sprintf("*:%d/%s/%s", f.Port, hns.ProtocolName(f.Protocol), f.Family)
	}
	return netip.AddrPortFrom(f.VIP, f.Port).String() + "/" + hns.ProtocolName(f.Protocol)
}

// Compare orders by VIP, port, protocol, family.
func (f Frontend) Compare(o Frontend) int {
	return cmp.Or(f.VIP.Compare(o.VIP), cmp.Compare(f.Port, o.Port), cmp.Compare(f.Protocol, o.Protocol),
		cmp.Compare(f.Family, o.Family))
}

// FrontendsOf returns the frontends that a load balancer holds: none if it has no port mapping.
func FrontendsOf(l *hns.LoadBalancer) []Frontend {
	var fs []Frontend
	for _, m := range l.PortMappings {
		f := Frontend{Protocol: m.Protocol, Port: m.ExternalPort, Family: k8s.IPv4}
		if len(l.FrontendVIPs) == 0 {
			if l.Flags&hns.LoadBalancerIPv6 != 0 {
				f.Family = k8s.IPv6
			}
			fs = append(fs, f)
		}
		for _, vip := range l.FrontendVIPs {
			a, err := netip.ParseAddr(vip)
			if err != nil {
				continue
			}
			f.VIP, f.Family = a, k8s.FamilyOf(a)
			fs = append(fs, f)
		}
	}
	return fs
}

// Purpose says why an endpoint is wanted.
type Purpose string

// Why endpoints are wanted.
const (
	ForBackend   Purpose = "backend"     // stands for a pod elsewhere, or an address outside
	ForVIP       Purpose = "service VIP" // makes a Service address known to an overlay network
	ForSourceVIP Purpose = "source VIP"  // holds the source VIP on an overlay network
)

// Endpoint is an endpoint that HNS should have, unless it has another of the same address already.
type Endpoint struct {
	Addr    netip.Addr
	Purpose Purpose
	Body    hns.Endpoint // without ID, and without network where that is not known
}

// LoadBalancer is a load balancer that HNS should have.
type LoadBalancer struct {
	Frontend Frontend
	Service  k8s.PortName
	// Kind is the kind of frontend, or "HealthCheck".
	Kind string
	// Backends are the addresses of the endpoints, in order; Local those of them that the CNI plugin makes on
	// this host.
	Backends []netip.Addr
	Local    map[netip.Addr]bool
	// Body lacks ID and HostComputeEndpoints, because HNS assigns the ids of endpoints.
	Body hns.LoadBalancer
}

// Unsupported is a setting of a Service that this HNS, or any HNS, does not support. The Service is served
// without it.
type Unsupported struct {
	Service k8s.ServiceName
	Reason  string
}

// Compare orders by Service, then by reason.
func (u Unsupported) Compare(o Unsupported) int {
	return cmp.Or(u.Service.Compare(o.Service), cmp.Compare(u.Reason, o.Reason))
}

// Text returns the JSON form.
func (u Unsupported) Text() UnsupportedText { return UnsupportedText{u.Service.String(), u.Reason} }

// Wanted holds all objects that HNS should have for the Services of a model.
type Wanted struct {
	Endpoints     map[netip.Addr]*Endpoint
	LoadBalancers map[Frontend]*LoadBalancer
	Unsupported   []Unsupported // sorted, without duplicates
}

// SortedLoadBalancers returns the load balancers in a fixed order.
func (w *Wanted) SortedLoadBalancers() []*LoadBalancer {
	return slices.SortedFunc(maps.Values(w.LoadBalancers), func(a, b *LoadBalancer) int {
		return cmp.Or(a.Service.Compare(b.Service), a.Frontend.Compare(b.Frontend))
	})
}

// SortedEndpoints returns the endpoints in a fixed order: those that others need come first.
func (w *Wanted) SortedEndpoints() []*Endpoint {
	rank := map[Purpose]int{ForSourceVIP: 0, ForBackend: 1, ForVIP: 2}
	return slices.SortedFunc(maps.Values(w.Endpoints), func(a, b *Endpoint) int {
		return cmp.Or(cmp.Compare(rank[a.Purpose], rank[b.Purpose]), a.Addr.Compare(b.Addr))
	})
}

// Text is the JSON form of a plan, as nkp plan -o hcn prints it. Where HNS has not yet given an endpoint its
// id, HostComputeEndpoints holds the endpoint's address.
type Text struct {
	Network       string             `json:"network,omitempty"`
	NetworkType   string             `json:"networkType,omitempty"`
	Endpoints     []hns.Endpoint     `json:"endpoints"`
	LoadBalancers []hns.LoadBalancer `json:"loadBalancers"`
	Unsupported   []UnsupportedText  `json:"unsupported"`
}

// UnsupportedText is the JSON form of Unsupported.
type UnsupportedText struct {
	Service string `json:"service"`
	Reason  string `json:"reason"`
}

// JSON returns the plan as JSON. Endpoints have no ids before HNS has them: load balancers refer to them by
// address.
func (w *Wanted) JSON(facts *Facts) ([]byte, error) {
	t := Text{Network: facts.Network.Name, NetworkType: facts.Network.Type,
		Endpoints: []hns.Endpoint{}, LoadBalancers: []hns.LoadBalancer{}, Unsupported: []UnsupportedText{}}
	for _, e := range w.SortedEndpoints() {
		t.Endpoints = append(t.Endpoints, e.Body)
	}
	for _, l := range w.SortedLoadBalancers() {
		body := *l.Body.Clone()
		for _, a := range l.Backends {
			body.HostComputeEndpoints = append(body.HostComputeEndpoints, a.String())
		}
		t.LoadBalancers = append(t.LoadBalancers, body)
	}
	for _, u := range w.Unsupported {
		t.Unsupported = append(t.Unsupported, u.Text())
	}
	text, err := json.MarshalIndent(t, "", "  ")
	return append(text, '\n'), err
}
