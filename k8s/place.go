package k8s

import (
	"net/netip"
	"slices"
)

// Place is the location of an address in the cluster, as far as the API objects show it.
type Place struct {
	Node   string // the node's name; "" if unknown
	IsNode bool   // it is an address of the Node itself, or of this node's interfaces
}

// PlaceOf finds an address among those of Nodes and endpoints, and in the pod ranges of Nodes. It scans every
// EndpointSlice, so it is for diagnosis only. An API source reports only this node's Node.
func (t *Tracker) PlaceOf(ip netip.Addr) Place {
	if slices.Contains(t.model.Node.Local, ip) {
		return Place{t.model.Node.Name, true}
	}
	inRange := ""
	for name, n := range t.nodes {
		if slices.Contains(n.IPs, ip) {
			return Place{name, true}
		}
		if slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			inRange = name
		}
	}
	for _, s := range t.services {
		for _, sl := range s.slices {
			for i := range sl.endpoints {
				if e := &sl.endpoints[i]; e.addr == ip && e.node != "" {
					return Place{Node: e.node}
				}
			}
		}
	}
	return Place{Node: inRange}
}
