package k8s

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Family is an IP address family.
type Family uint8

// The two families of a dual-stack cluster.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns the family as Kubernetes spells it: IPv4 or IPv6.
func (f Family) String() string {
	if f == IPv6 {
		return string(v1.IPv6Protocol)
	}
	return string(v1.IPv4Protocol)
}

// FamilyOf returns the family of an address. A 4-in-6 address counts as IPv6.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Protocol is the transport protocol of a Service port: TCP, UDP or SCTP.
type Protocol = v1.Protocol

// ProtocolNumbers are the protocols of Services by IANA's numbers.
var ProtocolNumbers = map[Protocol]uint8{v1.ProtocolTCP: 6, v1.ProtocolUDP: 17, v1.ProtocolSCTP: 132}

// ServiceName is the namespace and name of a Service.
type ServiceName struct {
	Namespace, Name string
}

// String returns namespace/name.
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, name.
func (n ServiceName) Compare(o ServiceName) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// PortName identifies one port of one Service in one family: the unit that data planes program.
// It is comparable and ordered by Compare.
type PortName struct {
	ServiceName
	Port     string // the port's name, "" if it has none
	Protocol Protocol
	Family   Family
}

// String returns namespace/name:port, or namespace/name for an unnamed port.
func (n PortName) String() string {
	if n.Port == "" {
		return n.ServiceName.String()
	}
	return n.ServiceName.String() + ":" + n.Port
}

// ID returns a text that no other PortName shares: the String form with protocol and family.
func (n PortName) ID() string {
	return fmt.Sprintf("%s/%s:%s/%s/%s", n.Namespace, n.Name, n.Port, n.Protocol, n.Family)
}

// Compare orders by namespace, name, port, protocol, family.
func (n PortName) Compare(o PortName) int {
	return cmp.Or(
		cmp.Compare(n.Namespace, o.Namespace),
		cmp.Compare(n.Name, o.Name),
		cmp.Compare(n.Port, o.Port),
		cmp.Compare(n.Protocol, o.Protocol),
		cmp.Compare(n.Family, o.Family),
	)
}

// Endpoint is one address and port behind a Service port that is in force on this node.
type Endpoint struct {
	Addr  netip.AddrPort
	Local bool // the endpoint runs on this node
	// Unplaced says that no node is named for the endpoint: it may run on this one all the same.
	Unplaced bool
	// MoreWeight is what AnnotationWeights adds to the weight 1; endpoints of weight 0 are not in force.
	MoreWeight uint8
}

// Weight is the endpoint's share of new connections relative to the others'.
func (e Endpoint) Weight() int { return 1 + int(e.MoreWeight) }

// FrontendType is the kind of address at which a Service port is reached.
type FrontendType string

// The kinds of frontend; the texts are part of the command-line contract (plan -o json).
const (
	ClusterIP    FrontendType = "ClusterIP"
	NodePort     FrontendType = "NodePort"
	ExternalIP   FrontendType = "ExternalIP"
	LoadBalancer FrontendType = "LoadBalancer"
	// Canary is the kind of nkp's own Service for canaries, which is in no Model.
	Canary FrontendType = "Canary"
)

// Policy is the traffic policy that applies to a frontend.
type Policy string

// The two traffic policies.
const (
	Cluster Policy = "Cluster"
	Local   Policy = "Local"
)

// WhenEmpty is what happens to a new connection to a frontend without an endpoint in force.
type WhenEmpty string

// Reject answers at once (TCP RST, ICMP port unreachable); Drop stays silent.
const (
	Reject WhenEmpty = "reject"
	Drop   WhenEmpty = "drop"
)

// Frontend is an address and port where a Service port is served.
type Frontend struct {
	Type    FrontendType
	Address netip.Addr // the zero Addr: every address of the node but Loopback6 (NodePort)
	Port    uint16
	Policy  Policy
	// SourceRanges are the only client prefixes of the frontend's family that are served; empty: all.
	// For LoadBalancer frontends only.
	SourceRanges []netip.Prefix
	WhenEmpty    WhenEmpty
	// ShadowedBy names the Service port (String form) that owns this address, port and protocol;
	// "" if this frontend is in force. A shadowed frontend is shown but never programmed.
	ShadowedBy string
}

// ServicePort is one port of a Service in one family with everything a data plane needs.
// It is immutable once it is in a Model: readers share it, the tracker replaces it.
type ServicePort struct {
	Name            PortName
	AffinitySeconds int // session affinity by client address; 0: none
	// PreserveDestination asks for packets to keep the load balancer's address as destination (annotation
	// preserve-destination, for Windows nodes).
	PreserveDestination bool
	// ClusterEndpoints and LocalEndpoints are the endpoints in force for traffic with that policy on this
	// node, after readiness, termination and topology; each sorted by address and port, without duplicates.
	ClusterEndpoints []Endpoint
	LocalEndpoints   []Endpoint
	// Serving are the endpoints with which connections may stay, in the same order; conntrack entries to
	// others are to be deleted. Of UDP they are those that serve, in force or not (terminating ones, those of
	// other zones). Of TCP with Removed they are all that are listed, ready or not, and those that drain.
	// Else it is nil.
	Serving []netip.AddrPort
	// Removed is how connections to removed endpoints are closed (AnnotationRemovedEndpoints); nil: they
	// stay.
	Removed *Removed
	// Frontends are sorted by type, address, port.
	Frontends []Frontend
	// Cost is what a data plane makes of it at most (Options.Cost), and ServiceCost what it makes of all
	// ports of its Service; 0: not known.
	Cost, ServiceCost int
	// Partial: other new ports of its Service are still to come, so that a data plane does not refuse yet
	// what no port of its ClusterIPs serves.
	Partial bool
	// Consistent is how clients from outside are served at one of the frontends (AnnotationConsistent); nil:
	// as at the others.
	Consistent *Consistent
}

// EachRemoteEndpoint calls f for the address of each endpoint in force that runs elsewhere; for some twice.
func (s *ServicePort) EachRemoteEndpoint(f func(netip.Addr)) {
	for _, set := range [][]Endpoint{s.ClusterEndpoints, s.LocalEndpoints} {
		for _, e := range set {
			if !e.Local {
				f(e.Addr.Addr())
			}
		}
	}
}

// EachExternalAddress calls f for the address of each frontend that is a load balancer's or an external IP.
func (s *ServicePort) EachExternalAddress(f func(netip.Addr)) {
	for i := range s.Frontends {
		if fe := &s.Frontends[i]; (fe.Type == ExternalIP || fe.Type == LoadBalancer) && fe.ShadowedBy == "" {
			f(fe.Address)
		}
	}
}

// Node holds the facts about this node that data planes need.
type Node struct {
	Name string
	// Known reports whether the source has a Node object of that name; without one most of the rest is empty.
	Known bool
	// UID is the Node object's; "" if it has none.
	UID  string
	Zone string // label topology.kubernetes.io/zone
	// IPs are the addresses of the Node object, internal ones first, or those that the options set instead.
	// The first of each family is the node's primary address.
	IPs []netip.Addr
	// Local are all addresses of the node that a NodePort may be served at: IPs and those of its interfaces.
	Local    []netip.Addr
	PodCIDRs []netip.Prefix
	// NotEligible is the reason why load balancers should send no new traffic to this node; "": they may.
	NotEligible string
}

// Detector recognizes traffic of this node's pods (kube-proxy's detect-local-mode, resolved for this node).
// At most one field is set. The zero value recognizes no pods: ClusterIP traffic is then never masqueraded
// because of its source, and pods are treated like any other client.
type Detector struct {
	CIDRs           []netip.Prefix // by source address (modes ClusterCIDR and NodeCIDR)
	Bridge          string         // by the bridge that packets come from (mode BridgeInterface)
	InterfacePrefix string         // by the prefix of the interface's name (mode InterfaceNamePrefix)
}

// Has reports whether traffic of pods can be recognized in a family.
func (d *Detector) Has(f Family) bool {
	return d.Bridge != "" || d.InterfacePrefix != "" ||
		slices.ContainsFunc(d.CIDRs, func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f })
}

func (d *Detector) equal(o *Detector) bool {
	return d.Bridge == o.Bridge && d.InterfacePrefix == o.InterfacePrefix && slices.Equal(d.CIDRs, o.CIDRs)
}

// HealthCheck is the health check node port of a Service of type LoadBalancer with externalTrafficPolicy
// Local. Load balancers probe it to learn whether this node has endpoints.
type HealthCheck struct {
	Port uint16
	// Local4 and Local6 count the distinct addresses of ready endpoints on this node; -1: the Service is not
	// served in that family, and nothing listens there.
	Local4, Local6 int
}

// Warning is a problem with an object that does not affect the others.
type Warning struct {
	// Ref is the object that it is about; the zero Ref if it is about none, or before a Tracker has it.
	Ref Ref
	// Object is what it is about: "Service default/web", "EndpointSlice default/web-1", or "" for a whole
	// file.
	Object string
	// Field is the path of the offending field, such as spec.ports[0].nodePort; "" if it is about the object.
	Field string
	// Where is the object's origin: a file and document ("services.yaml, document 3"); "" from an API server.
	Where string
	Text  string
	// Event is the reason of the Event about it; "": the default, that something is not served as the object
	// asks.
	Event string
	// Passing reports that objects which are created or deleted one after the other cause it for a moment.
	Passing bool
}

// String returns the warning in one line.
func (w Warning) String() string {
	s := w.Text
	if w.Field != "" {
		s = w.Field + ": " + s
	}
	if w.Object != "" {
		s = w.Object + ": " + s
	}
	if w.Where != "" {
		s = w.Where + ": " + s
	}
	return s
}

// Model is the state of all Service ports on this node, as Tracker.Flush returns it. Everything in it is
// immutable except the two maps, which the Tracker updates in place. To read them after the next Flush, or on
// another goroutine, use Clone.
type Model struct {
	Node         Node
	Detector     Detector
	ServiceCIDRs []netip.Prefix // sorted; without the addresses of Skipped
	Skipped      []ServiceName  // those of Options.SkipServices that there are, sorted
	Ports        map[PortName]*ServicePort
	HealthChecks map[ServiceName]HealthCheck
	Warnings     []Warning // sorted by text
}

// Changes lists the differences between two consecutive models.
type Changes struct {
	// Ports holds, for every Service port that is new, changed or gone, its state in the newer model; nil:
	// gone.
	Ports map[PortName]*ServicePort
	// HealthChecks holds, for every Service whose health check is new, changed or gone, its newer state; nil:
	// gone.
	HealthChecks map[ServiceName]*HealthCheck
	// Triggers are the known causes of endpoint changes in Ports: one for each EndpointSlice added or
	// replaced.
	Triggers []Trigger
	// Node is set when Model.Node, Model.Detector, Model.ServiceCIDRs or Model.Skipped differ.
	Node bool
}
