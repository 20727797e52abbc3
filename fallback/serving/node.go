package serving

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// Node is what the rules of one family depend on, in addition to the settings and the Services.
type Node struct {
	Family k8s.Family
	Router k8s.Router
	Local  []netip.Addr   // the addresses of all of the node's interfaces, of both families
	Ranges []netip.Prefix // Service ranges of the family

	AnswerPing bool // Config.AnswerPing
}

// NewNode returns the node that a model describes. The model itself is not kept.
func NewNode(c Config, f k8s.Family, m *k8s.Model) Node {
	n := Node{
		Family: f, Local: m.Node.Local, AnswerPing: c.AnswerPing,
		Router: k8s.Router{
			Detector:      m.Detector,
			NodeIPs:       m.Node.IPs,
			MasqueradeAll: c.MasqueradeAll,
			Loopback:      c.LocalhostNodePorts && f == k8s.IPv4,
		},
	}
	if c.Scope == Own {
		n.Router.Own = append([]netip.Addr{}, m.Node.Local...)
		return n // no Service range contains an address of the node
	}
	for _, p := range m.ServiceCIDRs {
		if k8s.FamilyOf(p.Addr()) == f {
			n.Ranges = append(n.Ranges, p.Masked())
		}
	}
	return n
}

// RefusesOtherPorts reports whether packets to ports of a ClusterIP that it does not serve are refused: it is
// in a Service range, or none is known.
func (n *Node) RefusesOtherPorts(clusterIP netip.Addr) bool {
	return len(n.Ranges) == 0 || slices.ContainsFunc(n.Ranges, func(r netip.Prefix) bool {
		return r.Contains(clusterIP)
	})
}
