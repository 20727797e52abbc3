package trace

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// candidates decides where the packet goes.
func (e *explanation) candidates(port *k8s.ServicePort, f *k8s.Frontend) {
	endpoints := port.Endpoints(e.Route.Set)
	states := e.Tracker.EndpointStates(port.Name)
	if e.Route.Empty != "" {
		e.listEndpoints(states, 0)
		switch {
		case e.Permissive:
			e.step("neither refused nor dropped: there is no load balancer without endpoints, "+
				"and the packet goes on as any other: %s", WhyEmpty(e.Tracker, port.Name, states))
		case e.Route.Empty == k8s.Drop:
			e.Verdict = Drop
			e.step("dropped: the policy is Local and no endpoint in force is on this node, but %s on others",
				plural(len(port.ClusterEndpoints), "is", "are"))
		default:
			e.Verdict = Reject
			e.step("refused (TCP RST or ICMP port unreachable): %s", WhyEmpty(e.Tracker, port.Name, states))
		}
		return
	}

	if !e.allowed(port, f) {
		e.Verdict = Drop
		return
	}

	if e.Route.Consistent {
		e.explainConsistent(port)
		return
	}

	weights := e.weights(port)
	e.listEndpoints(states, weights)
	for _, ep := range endpoints {
		e.Endpoints = append(e.Endpoints, ep.Addr.String())
	}
	slices.Sort(e.Endpoints)

	client := e.q.From.Addr()
	nodeBeside := slices.Contains(e.NodeBeside, k8s.FamilyOf(client))
	e.Verdict = Deliver
	switch {
	case e.Route.Masquerade && nodeBeside && e.PodHere(&e.Model.Node):
		e.step("not masqueraded, unlike on other nodes: this node's address is not on the bridge")
	case e.Route.Masquerade:
		e.Masquerade = Always
	}
	isClient := func(ep k8s.Endpoint) bool { return ep.Addr.Addr() == client }
	if e.Masquerade != Always && slices.ContainsFunc(endpoints, isClient) {
		e.Masquerade = Hairpin
	}

	if port.AffinitySeconds > 0 {
		e.step("sessionAffinity ClientIP: this client keeps the endpoint that it was given within the last "+
			"%d s", port.AffinitySeconds)
	}
	e.step("%s", e.masqueradeText(f))

	switch {
	case len(e.Endpoints) == 1:
		e.step("delivered to %s", e.Endpoints[0])
	case port.AffinitySeconds > 0:
		e.step("delivered to one of the %d, at random unless the client has one", len(e.Endpoints))
	case weights > 0:
		e.step("delivered to one of the %d, by weight", len(e.Endpoints))
	default:
		e.step("delivered to one of the %d, at random", len(e.Endpoints))
	}
	e.portOrigin(port.Name, states)
}

// weights returns the sum of the endpoints' weights if these decide which of them gets a new connection, else
// 0.
func (e *explanation) weights(port *k8s.ServicePort) (sum int) {
	endpoints := port.Endpoints(e.Route.Set)
	differ := false
	for _, ep := range endpoints {
		sum += ep.Weight()
		differ = differ || ep.Weight() != endpoints[0].Weight()
	}
	if !differ || port.AffinitySeconds > 0 || e.Permissive {
		return 0
	}
	return sum
}

// portOrigin explains where the endpoints' port comes from: a wrong one is the most frequent reason why a
// delivered connection fails.
func (e *explanation) portOrigin(name k8s.PortName, states []k8s.EndpointState) {
	states = slices.DeleteFunc(slices.Clone(states), func(s k8s.EndpointState) bool {
		return !slices.Contains(e.Endpoints, s.Addr.String())
	})
	if len(states) == 0 {
		return
	}
	e.step("this is %s; whether anything listens there nkp cannot see", slicePorts(name.Namespace, states))
	if odd := OddPort(e.Tracker, name, states); odd != "" {
		e.step("%s", odd)
	}
}

// allowed applies loadBalancerSourceRanges. If they allow an address of this node, they also allow the load
// balancer's own address: the node may hold it, and then uses it as source.
func (e *explanation) allowed(port *k8s.ServicePort, f *k8s.Frontend) bool {
	if len(f.SourceRanges) == 0 {
		return true
	}
	if e.Permissive {
		e.step("loadBalancerSourceRanges are not enforced: this data plane cannot drop packets")
		return true
	}
	client, list := e.q.From.Addr(), joinPrefixes(f.SourceRanges)
	in := func(ranges []netip.Prefix) bool {
		return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(client) })
	}
	switch {
	case in(f.SourceRanges):
		e.step("loadBalancerSourceRanges %s allow %s", list, client)
	case slices.ContainsFunc(port.Frontends, func(g k8s.Frontend) bool {
		return g.Type == k8s.LoadBalancer && e.router.Serves(&g) && in(e.router.Clients(&g))
	}):
		e.step("loadBalancerSourceRanges %s allow this node, and with it the load balancer's address itself",
			list)
	default:
		e.step("dropped: loadBalancerSourceRanges allow only %s, and %s is not among them", list, client)
		return false
	}
	return true
}

// masqueradeText returns what happens to the client's address.
func (e *explanation) masqueradeText(f *k8s.Frontend) string {
	client := e.q.From.Addr()
	switch {
	case e.Masquerade == Hairpin:
		return fmt.Sprintf("the endpoint sees %s, unless %s itself is picked: "+
			"then it is masqueraded (hairpin)", client, client)
	case e.Masquerade == Never:
		return fmt.Sprintf("the endpoint sees %s as its client", client)
	case f.Type != k8s.ClusterIP && e.Source == k8s.ThisNode:
		return "masqueraded: the node reaches its own frontends from its primary address"
	case f.Type != k8s.ClusterIP:
		return "masqueraded: the endpoint sees this node as its client, so that its answer comes back " +
			"through here"
	case e.MasqueradeAll && e.Source == k8s.Pod:
		return "masqueraded (--masquerade-all): the endpoint sees this node as its client"
	}
	return fmt.Sprintf("masqueraded: %s is not a pod, so the endpoint sees this node as its client", client)
}
