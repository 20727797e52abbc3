package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// explainNoFrontend explains a packet that matches no frontend: refused or dropped at Service addresses, else
// left alone. It names near misses.
func (e *explanation) explainNoFrontend() {
	to, at := e.q.To.Addr(), fmt.Sprintf("to %s/%s", e.q.To, e.q.Protocol)
	e.nearMisses()

	if owner, ports := e.servedPorts(to, true); owner != "" {
		e.step("%s: the cluster IP of Service %s, which serves %s and no other port", at, owner, ports)
		e.targetPort(owner)
		if e.Permissive {
			e.step("left alone: this data plane cannot refuse packets")
			return
		}
		e.Verdict = Reject
		e.step("refused (TCP RST or ICMP port unreachable)")
		return
	}

	for _, r := range e.Model.ServiceCIDRs {
		if r.Contains(to) && !e.toNode() && !e.Permissive {
			e.Verdict = Drop
			e.step("%s: in the Service range %s, but no Service has this cluster IP", at, r)
			e.step("dropped: traffic for Services that do not exist must reach no one else")
			return
		}
	}

	if owner, ports := e.servedPorts(to, false); owner != "" {
		e.step("%s: an address of Service %s, which serves %s and no other port", at, owner, ports)
		e.targetPort(owner)
	} else {
		e.step("%s: %s", at, e.describeAddress())
	}
	e.step("left alone: it goes on as any other packet, without nkp")
}

// nearMisses adds steps about near misses: addresses that look like a matching frontend but are not served.
func (e *explanation) nearMisses() {
	for _, u := range e.Tracker.NotServed(e.q.To, e.q.Protocol, e.toNode()) {
		e.step("Service %s has %s as %s, but %s", portText(u.Service), e.q.To, u.Type, u.Why)
	}
	for _, r := range e.shadowed() {
		e.step("Service %s wants %s as %s, but %s has it", portText(r.name), e.q.To, r.f.Type, r.f.ShadowedBy)
	}
	for _, t := range e.nodePorts() {
		e.step("%s", t)
	}
}

// nodePorts returns why a NodePort of that number is not served at the destination.
func (e *explanation) nodePorts() (list []string) {
	place := e.Tracker.PlaceOf(e.q.To.Addr())
	loopback := e.q.To.Addr().IsLoopback()
	if !place.IsNode && !loopback {
		return nil
	}

	at := map[string][]string{} // Service port -> addresses
	for name, p := range e.Model.Ports {
		for i := range p.Frontends {
			f := &p.Frontends[i]
			serves := f.Type == k8s.NodePort && f.Port == e.q.To.Port() && f.ShadowedBy == ""
			if serves && name.Protocol == e.q.Protocol && name.Family == e.family {
				a := ""
				if f.Address.IsValid() {
					a = f.Address.String()
				}
				at[portText(name)] = append(at[portText(name)], a)
			}
		}
	}

	for name, addresses := range at {
		switch {
		case loopback:
			list = append(list, fmt.Sprintf("NodePort %d of Service %s is not served at loopback addresses%s",
				e.q.To.Port(), name, e.whyNoLoopback()))
		case place.Node != e.Model.Node.Name:
			list = append(list, fmt.Sprintf("NodePort %d of Service %s: node %s itself serves it at %s",
				e.q.To.Port(), name, place.Node, e.q.To.Addr()))
		default:
			list = append(list, fmt.Sprintf(
				"NodePort %d of Service %s is served only at %s (--nodeport-addresses), not at %s",
				e.q.To.Port(), name, strings.Join(addresses, ", "), e.q.To.Addr()))
		}
	}

	slices.Sort(list)
	return list
}

func (e *explanation) whyNoLoopback() string {
	switch {
	case e.family == k8s.IPv6:
		return " of IPv6, but for TCP from the node itself, where --nodeport-addresses names ::1"
	case !e.LocalhostNodePorts:
		return " (--iptables-localhost-nodeports is off)"
	case e.Source != k8s.ThisNode:
		return " for anyone but the node itself"
	}
	return " (--nodeport-addresses)"
}

// servedPorts returns a Service that has an address, and the ports that it serves there; owner is "" if none
// has it.
func (e *explanation) servedPorts(ip netip.Addr, clusterIP bool) (owner, ports string) {
	byOwner := map[string][]string{}
	for name, p := range e.Model.Ports {
		for i := range p.Frontends {
			f := &p.Frontends[i]
			otherType := f.Type == k8s.NodePort || (f.Type == k8s.ClusterIP) != clusterIP
			if otherType || f.Address != ip || f.ShadowedBy != "" {
				continue
			}
			text := fmt.Sprintf("%d/%s", f.Port, name.Protocol)
			if name.Port != "" {
				text += " (" + name.Port + ")"
			}
			byOwner[name.ServiceName.String()] = append(byOwner[name.ServiceName.String()], text)
		}
	}
	for o, list := range byOwner {
		if owner == "" || o < owner {
			slices.Sort(list)
			owner, ports = o, strings.Join(slices.Compact(list), ", ")
		}
	}
	return owner, ports
}

// targetPort points out that the port is that of the endpoints, which clients do not use.
func (e *explanation) targetPort(owner string) {
	isTarget := func(ep k8s.Endpoint) bool { return ep.Addr.Port() == e.q.To.Port() }
	for name, p := range e.Model.Ports {
		if name.ServiceName.String() == owner && name.Family == e.family && name.Protocol == e.q.Protocol &&
			slices.ContainsFunc(p.ClusterEndpoints, isTarget) {
			e.step("%d is the port of its endpoints (targetPort): clients use the port of the Service",
				e.q.To.Port())
			return
		}
	}
}

// endpointOf returns the first Service port by name that has an endpoint in force at an address.
func (e *explanation) endpointOf(at netip.AddrPort) (first k8s.PortName, ok bool) {
	isAt := func(ep k8s.Endpoint) bool { return ep.Addr == at }
	for name, p := range e.Model.Ports {
		if name.Protocol == e.q.Protocol && slices.ContainsFunc(p.ClusterEndpoints, isAt) &&
			(!ok || name.Compare(first) < 0) {
			first, ok = name, true
		}
	}
	return first, ok
}

// describeAddress returns a description of a destination that is no Service's address.
func (e *explanation) describeAddress() string {
	to := e.q.To
	if name, ok := e.endpointOf(to); ok {
		return "an endpoint of Service " + portText(name) + ", addressed directly: no Service is on the way"
	}
	if name, ok := e.Tracker.SkippedAt(to.Addr()); ok {
		return "the cluster IP of Service " + name.String() +
			", which --skip-services leaves to another program of the node"
	}
	place := e.Tracker.PlaceOf(to.Addr())
	hasAddress := func(p netip.Prefix) bool { return p.Contains(to.Addr()) }
	switch {
	case place.IsNode && place.Node == e.Model.Node.Name || to.Addr().IsLoopback():
		for name, h := range e.Model.HealthChecks {
			if h.Port == to.Port() && e.q.Protocol == "TCP" {
				return "the health check node port of Service " + name.String() + ", which nkp answers itself"
			}
		}
		return "an address of this node; no Service has this NodePort at it"
	case place.IsNode:
		return "an address of node " + place.Node + ", not of this node"
	case slices.ContainsFunc(e.Model.Detector.CIDRs, hasAddress), place.Node != "":
		return "a pod's address; no Service has it"
	}
	return "no Service has this address"
}
