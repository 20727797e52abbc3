package k8s

import (
	"net/netip"
	"slices"
)

// ClientKind is a kind of client of a frontend, as a node can tell them apart.
type ClientKind uint8

// The kinds of clients.
const (
	Outside  ClientKind = iota // another host, or a pod that is not recognized as one
	Pod                        // recognized by the Detector
	ThisNode                   // a process of this node
)

// ClientKinds are all of them.
var ClientKinds = [...]ClientKind{Outside, Pod, ThisNode}

// Set names one of the two sets of endpoints of a Service port.
type Set uint8

// The sets.
const (
	Anywhere Set = iota // ServicePort.ClusterEndpoints
	OnNode              // ServicePort.LocalEndpoints
)

// Sets are both sets.
var Sets = [...]Set{Anywhere, OnNode}

// Endpoints returns the endpoints of a set.
func (s *ServicePort) Endpoints(of Set) []Endpoint {
	if of == OnNode {
		return s.LocalEndpoints
	}
	return s.ClusterEndpoints
}

// whenEmpty returns what happens to new connections for a set of endpoints if it is empty: silence if others
// have endpoints, which a load balancer should find.
func (s *ServicePort) whenEmpty(of Set) WhenEmpty {
	if of == OnNode && len(s.ClusterEndpoints) > 0 {
		return Drop
	}
	return Reject
}

// set returns the endpoints that a policy is about.
func (p Policy) set() Set {
	if p == Local {
		return OnNode
	}
	return Anywhere
}

// Route is what becomes of new connections from one kind of client to a frontend.
type Route struct {
	Set Set // of the endpoints, one of which gets the connection
	// Masquerade reports whether the endpoint sees the node as its client, so that its answers come back
	// through here. A client that is its own endpoint always needs that.
	Masquerade bool
	// Consistent reports whether ServicePort.Consistent decides instead, for packets that are not in
	// fragments. Then the endpoint sees the client.
	Consistent bool
	// Empty is what happens as there is no endpoint; "": there is one.
	Empty WhenEmpty
	// Why is the rule by which the Set is what it is, for people.
	Why string
}

// Routes are those to one frontend, by ClientKind.
type Routes [len(ClientKinds)]Route

// Reach reports whether a client of some kind gets an endpoint of a set.
func (r *Routes) Reach(set Set) bool {
	return slices.ContainsFunc(r[:], func(t Route) bool { return t.Set == set && t.Empty == "" })
}

// Router applies Kubernetes' rules to the frontends of a node: nothing else decides them. Its methods may be
// called from any goroutine.
type Router struct {
	Detector Detector
	NodeIPs  []netip.Addr // in the Node object
	// MasqueradeAll masquerades all clients of ClusterIPs.
	MasqueradeAll bool
	// Loopback serves NodePorts at loopback addresses. A data plane in the kernel serves none at Loopback6.
	Loopback bool
	// Own, unless nil, are the node's addresses, and only frontends at these are served.
	Own []netip.Addr
}

// Serves reports whether a frontend is served, or its packets refused.
func (r *Router) Serves(f *Frontend) bool {
	switch {
	case f.Type == Canary:
		return true
	case f.ShadowedBy != "", f.Address.IsLoopback() && !r.Loopback:
		return false
	case r.Own == nil || f.Type == NodePort:
		return true
	}
	return f.Type != ClusterIP && slices.Contains(r.Own, f.Address)
}

// Routes returns the routes to a frontend.
func (r *Router) Routes(sp *ServicePort, f *Frontend) (routes Routes) {
	for _, from := range ClientKinds {
		t := r.Route(f.Type, f.Policy.set(), sp.Name.Family, from)
		if len(sp.Endpoints(t.Set)) == 0 {
			t.Empty = sp.whenEmpty(t.Set)
		}
		t.Consistent = from == Outside && sp.Consistent != nil && sp.Consistent.Address == f.Address
		routes[from] = t
	}
	return routes
}

// Route returns the route to frontends of a type whose traffic policy is about a set of endpoints, as if
// there were endpoints.
//
// A ClusterIP masquerades clients that are not pods: answers might not reach them through this node
// otherwise. The other frontends masquerade as well, unless externalTrafficPolicy Local is there to keep the
// client's address. This policy is for clients from outside: pods are served as at the ClusterIP, and the
// node by endpoints anywhere.
func (r *Router) Route(t FrontendType, set Set, family Family, from ClientKind) (route Route) {
	known := r.Detector.Has(family)
	if from == Pod && !known {
		from = Outside
	}

	switch {
	case t == Canary:
		return Route{}
	case t == ClusterIP && set == OnNode:
		route = Route{Set: OnNode, Why: "internalTrafficPolicy Local: endpoints on this node only"}
	case t == ClusterIP:
		route = Route{Why: "internalTrafficPolicy Cluster: endpoints on any node"}
	case set == Anywhere:
		return Route{Masquerade: true, Why: "externalTrafficPolicy Cluster: endpoints on any node"}
	case from == Pod:
		return Route{Why: "externalTrafficPolicy Local is for clients from outside: " +
			"a pod is served by endpoints on any node, as by the cluster IP"}
	case from == ThisNode:
		return Route{
			Masquerade: true,
			Why: "externalTrafficPolicy Local is for clients from outside: " +
				"the node itself is served by endpoints on any node",
		}
	default:
		return Route{Set: OnNode, Why: "externalTrafficPolicy Local: endpoints on this node only"}
	}

	route.Masquerade = r.MasqueradeAll || known && from != Pod
	return route
}

// Clients returns the client prefixes that a frontend serves; nil: all. If the load balancer's source ranges
// contain an address of this node, they also allow the frontend's own address: the node may hold that, and
// then connects to it from there.
func (r *Router) Clients(f *Frontend) []netip.Prefix {
	hasNode := func(p netip.Prefix) bool { return slices.ContainsFunc(r.NodeIPs, p.Contains) }
	if slices.ContainsFunc(f.SourceRanges, hasNode) {
		return append(slices.Clone(f.SourceRanges), netip.PrefixFrom(f.Address, f.Address.BitLen()))
	}
	return f.SourceRanges
}

// Pings returns which clients get an answer to an echo request to a frontend's address, if the node answers
// pings: clients that the Service port serves there. Of kinds, all others get none. from are the client
// prefixes that get one; nil: all. A load balancer's address with source ranges answers pods and this node
// only if it answers clients from outside. The node itself answers for its own addresses.
func (r *Router) Pings(sp *ServicePort, f *Frontend) (kinds []ClientKind, from []netip.Prefix) {
	if f.Type == NodePort || f.Type == Canary || r.Own != nil || !r.Serves(f) {
		return nil, nil
	}

	routes := r.Routes(sp, f)
	if len(f.SourceRanges) > 0 && routes[Outside].Empty != "" {
		return nil, nil
	}
	for _, kind := range ClientKinds {
		if routes[kind].Empty == "" {
			kinds = append(kinds, kind)
		}
	}
	return kinds, r.Clients(f)
}
