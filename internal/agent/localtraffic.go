package agent

import (
	"maps"
	"slices"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/k8s"
)

// localTraffic is the plane of iptables or nftables for what the node sends to itself (serving.Own). It
// passes on only Services that may be reached at an address of the node, because the others, usually most of
// them, would take memory for nothing.
type localTraffic struct {
	*fallback.Plane
	known map[k8s.PortName]bool // handed on; nil before the first Update
}

// Update is part of follower.
func (o *localTraffic) Update(m *k8s.Model, c k8s.Changes) {
	own, changes := *m, c
	own.Ports, changes.Ports = nil, map[k8s.PortName]*k8s.ServicePort{}

	if o.known == nil {
		o.known = map[k8s.PortName]bool{}
		own.Ports = maps.Clone(m.Ports)
		maps.DeleteFunc(own.Ports, func(_ k8s.PortName, sp *k8s.ServicePort) bool {
			return !hasNodeAddress(sp)
		})
		for n := range own.Ports {
			o.known[n] = true
		}
	}

	for n, sp := range c.Ports {
		switch {
		case sp != nil && hasNodeAddress(sp):
			changes.Ports[n] = sp
			o.known[n] = true
		case o.known[n]:
			changes.Ports[n] = nil
			delete(o.known, n)
		}
	}

	if own.Ports != nil || len(changes.Ports) > 0 || len(c.HealthChecks) > 0 || c.Node {
		o.Plane.Update(&own, changes)
	}
}

// hasNodeAddress reports whether a Service port may be reached at an address of the node.
func hasNodeAddress(sp *k8s.ServicePort) bool {
	return slices.ContainsFunc(sp.Frontends, func(f k8s.Frontend) bool { return f.Type != k8s.ClusterIP })
}
