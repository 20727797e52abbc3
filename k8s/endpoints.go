package k8s

import (
	"cmp"
	"net/netip"
	"slices"
)

// candidate is an endpoint of one Service port before selection; the selected ones are in force.
type candidate struct {
	*sliceEndpoint
	at     netip.AddrPort
	local  bool
	weight uint8
	slice  *slice
}

// servingTerminating reports whether the endpoint may be used when no endpoint is ready (KEP-1669).
func (c *candidate) servingTerminating() bool { return !c.ready && c.serving && c.terminating }

// candidates returns all endpoints of a Service port, sorted by address and port, each once: if several
// slices hold one, a non-terminating one is preferred, then a ready one, then the slice first by name.
func (s *service) candidates(p *portDef, node string) []candidate {
	name := p.name
	n := 0
	for _, sl := range s.slices {
		n += len(sl.endpoints)
	}
	all := make([]candidate, 0, n)

	for _, sl := range s.slices {
		if sl.family != name.Family {
			continue
		}

		wanted := slicePort{name: name.Port, protocol: name.Protocol}
		at, _ := slices.BinarySearchFunc(sl.ports, wanted, slicePort.compare)
		for _, sp := range sl.ports[at:] {
			if sp.compare(wanted) != 0 {
				break
			}
			for i := range sl.endpoints {
				e := &sl.endpoints[i]
				all = append(all, candidate{
					e, netip.AddrPortFrom(e.addr, sp.port), node != "" && e.node == node,
					p.weights.at(e.addr), sl,
				})
			}
		}
	}

	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(a.at.Compare(b.at), falseFirst(a.terminating, b.terminating),
			falseFirst(!a.ready, !b.ready))
	})
	return slices.CompactFunc(all, func(a, b candidate) bool { return a.at == b.at })
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// undrained returns the candidates whose weight is not 0.
func undrained(all []candidate) []candidate {
	drained := func(c candidate) bool { return c.weight == 0 }
	if !slices.ContainsFunc(all, drained) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), drained)
}

// selectEndpoints returns the endpoints in force: those for traffic with policy Cluster, and with Local.
func selectEndpoints(all []candidate, node, zone string) (cluster, local []Endpoint) {
	cluster = pick(all, topology(all, node, zone))
	if len(cluster) == 0 {
		cluster = pick(all, (*candidate).servingTerminating)
	}
	local = pick(all, func(c *candidate) bool { return c.local && c.ready })
	if len(local) == 0 {
		local = pick(all, func(c *candidate) bool { return c.local && c.servingTerminating() })
	}
	return cluster, local
}

// hintKind is the kind of topology hints that choose among ready endpoints.
type hintKind uint8

const (
	noHint hintKind = iota
	nodeHint
	zoneHint
)

// activeHints returns the kind of hints that apply on this node. Hints for nodes (or zones) apply only if
// every ready endpoint has them and at least one endpoint's hints name this node (or its zone).
func activeHints(all []candidate, node, zone string) hintKind {
	allNodes, anyNode, allZones, anyZone := true, false, true, false
	for i := range all {
		c := &all[i]
		if !c.ready {
			continue
		}
		h := c.topologyHints()
		allNodes = allNodes && len(h.forNodes) > 0
		anyNode = anyNode || slices.Contains(h.forNodes, node)
		allZones = allZones && len(h.forZones) > 0
		anyZone = anyZone || slices.Contains(h.forZones, zone)
	}
	switch {
	case allNodes && anyNode:
		return nodeHint
	case allZones && anyZone:
		return zoneHint
	}
	return noHint
}

// topology returns the filter that topology hints imply on this node.
func topology(all []candidate, node, zone string) func(*candidate) bool {
	switch activeHints(all, node, zone) {
	case nodeHint:
		return func(c *candidate) bool { return c.ready && slices.Contains(c.topologyHints().forNodes, node) }
	case zoneHint:
		return func(c *candidate) bool { return c.ready && slices.Contains(c.topologyHints().forZones, zone) }
	}
	return func(c *candidate) bool { return c.ready }
}

// serving returns the endpoints that serve, whether in force or not.
func serving(all []candidate) []netip.AddrPort {
	var list []netip.AddrPort
	for i := range all {
		if c := &all[i]; c.serving || c.ready {
			list = append(list, c.at)
		}
	}
	return list
}

func pick(all []candidate, want func(*candidate) bool) []Endpoint {
	n := 0
	for i := range all {
		if want(&all[i]) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	picked := make([]Endpoint, 0, n)
	for i := range all {
		if c := &all[i]; want(c) {
			picked = append(picked,
				Endpoint{Addr: c.at, Local: c.local, Unplaced: c.node == "", MoreWeight: c.weight - 1})
		}
	}
	return picked
}
