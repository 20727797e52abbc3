package k8s

import (
	"net/netip"
	"slices"
	"strings"
)

// EndpointState describes one endpoint in a Service port's EndpointSlices: whether it is in force and, if
// not, why.
type EndpointState struct {
	Addr netip.AddrPort
	// Node is where the endpoint runs and Zone that node's zone; "" if unknown.
	Node, Zone string
	// Pod is namespace/name of the endpoint's pod; "" if the slice names none.
	Pod string
	// Slice is the name of the EndpointSlice with this endpoint; the first by name if several have it in the
	// same condition.
	Slice                              string
	Local, Ready, Serving, Terminating bool
	Weight                             int // share of new connections relative to the others'; 0: none
	// InCluster and InLocal report whether it is in force for traffic with policy Cluster and Local.
	InCluster, InLocal bool
	// Why and WhyLocal are the reasons why it is not in force under policy Cluster and Local; "" if it is.
	Why, WhyLocal string
}

// EndpointStates returns all endpoints of a Service port, sorted by address and port, each once; nil if there
// is no such port. Nothing is stored for it: each call computes the list from the slices, at the cost of one
// Service.
func (t *Tracker) EndpointStates(name PortName) []EndpointState {
	s := t.services[name.ServiceName]
	port := t.model.Ports[name]
	if s == nil || port == nil {
		return nil
	}

	node := &t.model.Node
	i := slices.IndexFunc(s.ports, func(p portDef) bool { return p.name == name })
	if i < 0 {
		return nil // deleted since the last Flush
	}

	all := s.candidates(&s.ports[i], node.Name)
	hints := activeHints(undrained(all), node.Name, node.Zone)
	cluster, local := selectEndpoints(undrained(all), node.Name, node.Zone)

	states := make([]EndpointState, 0, len(all))
	for i := range all {
		c := &all[i]
		e := EndpointState{
			Addr:        c.at,
			Node:        c.node,
			Slice:       c.slice.name,
			Local:       c.local,
			Ready:       c.ready,
			Serving:     c.serving,
			Terminating: c.terminating,
			Weight:      int(c.weight),
			InCluster:   holds(cluster, c.at),
			InLocal:     holds(local, c.at),
		}

		if n := t.nodes[c.node]; n != nil {
			e.Zone = n.Zone
		}
		if c.pod != "" {
			e.Pod = name.Namespace + "/" + c.pod
		}
		if !e.InCluster {
			e.Why = c.whyNot(hints)
		}
		if !e.InLocal {
			e.WhyLocal = c.whyNotLocal()
		}
		states = append(states, e)
	}
	return states
}

func holds(list []Endpoint, at netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(list, at, func(e Endpoint, at netip.AddrPort) int {
		return e.Addr.Compare(at)
	})
	return found
}

// whyNot returns why the endpoint is not in force under policy Cluster. It must not be in force.
func (c *candidate) whyNot(hints hintKind) string {
	switch {
	case c.weight == 0:
		return drainedText
	case c.ready && hints == nodeHint:
		return "for " + counted("node", c.topologyHints().forNodes) + " (traffic distribution)"
	case c.ready && hints == zoneHint:
		return "for " + counted("zone", c.topologyHints().forZones) + " (topology hints)"
	}
	return c.notReady()
}

// whyNotLocal returns why the endpoint is not in force under policy Local. It must not be in force.
func (c *candidate) whyNotLocal() string {
	switch {
	case c.local && c.weight == 0:
		return drainedText
	case c.local:
		return c.notReady()
	case c.node == "":
		return "on no known node"
	}
	return "on " + c.node
}

const drainedText = "weight 0 (annotation " + AnnotationWeights + ")"

// notReady returns why an endpoint that is not ready is not in force.
func (c *candidate) notReady() string {
	switch {
	case c.servingTerminating():
		return "terminating, and others are ready"
	case c.terminating && !c.serving:
		return "terminating, no longer serving"
	}
	return "not ready"
}

// counted returns "zone b" or "zones b, c".
func counted(what string, names []string) string {
	if len(names) != 1 {
		what += "s"
	}
	return what + " " + strings.Join(names, ", ")
}

// TargetPort returns the numeric targetPort of a Service port; 0 if it is a name or not set, or if the
// Service has no selector, because targetPort then has no effect. No proxy uses it: it shows which port the
// EndpointSlices were meant to have.
func (t *Tracker) TargetPort(name PortName) uint16 {
	s := t.services[name.ServiceName]
	if s == nil || s.def == nil {
		return 0
	}
	for i := range s.def.ports {
		if p := &s.def.ports[i]; p.name == name {
			return p.target
		}
	}
	return 0
}

// SliceState summarizes the EndpointSlices of a Service in one family, to explain a Service port without any
// endpoint.
type SliceState struct {
	Slices, Endpoints int
	Ports             []string // name/protocol of the slices' ports, sorted, each once
}

// SliceState summarizes the EndpointSlices that a Service port's endpoints come from.
func (t *Tracker) SliceState(name PortName) (sum SliceState) {
	s := t.services[name.ServiceName]
	if s == nil {
		return sum
	}
	for _, sl := range s.slices {
		if sl.family != name.Family {
			continue
		}
		sum.Slices++
		sum.Endpoints += len(sl.endpoints)
		for _, p := range sl.ports {
			sum.Ports = append(sum.Ports, p.name+"/"+string(p.protocol))
		}
	}
	slices.Sort(sum.Ports)
	sum.Ports = slices.Compact(sum.Ports)
	return sum
}
