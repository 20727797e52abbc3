package trace

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// explainConsistent explains the endpoint that the client's port selects.
func (e *explanation) explainConsistent(port *k8s.ServicePort) {
	c := port.Consistent
	e.Verdict = Deliver
	e.Chosen = func(client uint16) netip.AddrPort {
		ep := c.Choose(client)
		if !ep.Local {
			return netip.AddrPortFrom(ep.Addr.Addr(), c.Relay)
		}
		return ep.Addr
	}

	e.step("consistent choice (annotation %s): the client's port selects one of %d endpoints, "+
		"the same on every node", k8s.AnnotationConsistent, len(c.Endpoints))
	e.step("the endpoint sees %s as its client, and answers past this node unless it runs here",
		e.q.From.Addr())

	if e.q.From.Port() == 0 {
		for _, ep := range c.Endpoints {
			e.Endpoints = append(e.Endpoints, ep.Addr.String())
		}
		slices.Sort(e.Endpoints)
		e.step("delivered to one of the %d: with a client port (--from IP:PORT) the answer names it",
			len(e.Endpoints))
		return
	}

	ep := c.Choose(e.q.From.Port())
	e.Endpoints = []string{ep.Addr.String()}
	if ep.Local {
		e.step("client port %d leads to %s on this node", e.q.From.Port(), ep.Addr)
	} else {
		e.Relayed = true
		e.step("client port %d leads to %s: sent on to its node, at port %d, which translates packet and "+
			"answer", e.q.From.Port(), ep.Addr, c.Relay)
	}

	e.portOrigin(port.Name, e.Tracker.EndpointStates(port.Name))
}

// relayed explains a packet that another node sent on to an endpoint here, and reports whether it is one.
func (e *explanation) relayed() bool {
	if e.Source != k8s.Outside {
		return false
	}
	for name, p := range e.Model.Ports {
		c := p.Consistent
		if c == nil || c.Relay != e.q.To.Port() || name.Protocol != e.q.Protocol || name.Family != e.family {
			continue
		}
		for _, ep := range c.Endpoints {
			if !ep.Local || ep.Addr.Addr() != e.q.To.Addr() {
				continue
			}
			e.Port, e.Service, e.Verdict = name, name.String(), Deliver
			e.Chosen = func(uint16) netip.AddrPort { return ep.Addr }
			e.Endpoints = []string{ep.Addr.String()}
			e.step("to %s/%s: the port at which other nodes send packets of Service %s on to this endpoint "+
				"(annotation %s)", e.q.To, e.q.Protocol, portText(name), k8s.AnnotationConsistent)
			e.step("delivered to %s as if it had come to %s: the answer has that source", ep.Addr, c.Address)
			return true
		}
	}
	return false
}
