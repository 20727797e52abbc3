package serving

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// Canary is where a family's canaries go: a datagram of the node's own to a Service of nkp's own, whose
// endpoint is a raw socket of nkp's, which takes no port (docs/decisions/canaries.md). All addresses are
// loopback ones, so that a canary never leaves the node, whatever becomes of its translation, and needs
// neither a route nor an address of the node.
type Canary struct {
	Client             netip.Addr
	Frontend, Endpoint netip.AddrPort
}

// CanaryOf returns the canary of a family.
func CanaryOf(f k8s.Family) Canary {
	const frontend, endpoint = 28267, 28268 // IPv6 has one loopback address
	addrs := [...]string{"127.110.107.1", "127.110.107.2", "127.110.107.3"}
	if f == k8s.IPv6 {
		addrs = [...]string{"::1", "::1", "::1"}
	}
	return Canary{
		Client:   netip.MustParseAddr(addrs[2]),
		Frontend: netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), frontend),
		Endpoint: netip.AddrPortFrom(netip.MustParseAddr(addrs[1]), endpoint),
	}
}

// Service returns the canary's Service port. No Service of a cluster can have its namespace.
func (c Canary) Service() *k8s.ServicePort {
	return &k8s.ServicePort{
		Name: k8s.PortName{
			ServiceName: k8s.ServiceName{Namespace: "nkp-proxy.github.io", Name: "canary"},
			Protocol:    "UDP",
			Family:      k8s.FamilyOf(c.Client),
		},
		ClusterEndpoints: []k8s.Endpoint{{Addr: c.Endpoint, Local: true}},
		Serving:          []netip.AddrPort{c.Endpoint},
		Frontends: []k8s.Frontend{{
			Type: k8s.Canary, Address: c.Frontend.Addr(), Port: c.Frontend.Port(),
		}},
	}
}

// Ports returns the Service ports of a family that the rules serve, sorted by name: the model's, and the
// canary's.
func (c *Config) Ports(m *k8s.Model, f k8s.Family) (list []*k8s.ServicePort) {
	for _, n := range slices.SortedFunc(maps.Keys(m.Ports), k8s.PortName.Compare) {
		if n.Family == f {
			list = append(list, m.Ports[n])
		}
	}
	if sp := CanaryOf(f).Service(); c.Canary && m.Ports[sp.Name] == nil {
		list = append(list, sp)
	}
	return list
}
