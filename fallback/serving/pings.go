package serving

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// PingRate is how many pings of Services' addresses the node answers in a second, in each family.
const PingRate = 1000

// PingTarget returns the node's address that answers pings of Services' addresses; not valid: none are
// answered.
func (n *Node) PingTarget() (a netip.Addr) {
	if n.AnswerPing && n.Router.Own == nil {
		a = n.Family.First(n.Router.NodeIPs)
	}
	return a
}

// Pings returns which clients get an answer to pings of a frontend's address: everyone in from (nil: at all),
// or only pods and this node (inside). Addresses of the node answer by themselves.
func (n *Node) Pings(sp *k8s.ServicePort, f *k8s.Frontend) (everyone, inside bool, from []netip.Prefix) {
	if !n.PingTarget().IsValid() || slices.Contains(n.Local, f.Address) {
		return false, false, nil
	}
	kinds, from := n.Router.Pings(sp, f)
	everyone = slices.Contains(kinds, k8s.Outside)
	return everyone, !everyone && slices.Contains(kinds, k8s.ThisNode), from
}
