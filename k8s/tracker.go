package k8s

import (
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Options are the settings that, together with the API objects, determine the model.
type Options struct {
	// NodeName is the name of this node's Node object and the nodeName of local endpoints; "": no endpoint is
	// local.
	NodeName string
	// ServiceProxyName selects the Services whose label service.kubernetes.io/service-proxy-name has this
	// value; "": those without the label.
	ServiceProxyName string
	// NodePortAddresses restricts NodePorts to the node addresses inside these prefixes, per family: a family
	// without a prefix, or with a /0, is not restricted.
	NodePortAddresses []netip.Prefix
	// NodePortPrimary restricts NodePorts to the first of the node's IPs of each family and to
	// NodePortAddresses.
	NodePortPrimary bool
	// UserspaceLoopback6 reports whether a proxy in user space serves TCP NodePorts at Loopback6, in addition
	// to these.
	UserspaceLoopback6 bool
	// LocalAddresses are the addresses of the node's interfaces, in addition to those of the Node object.
	LocalAddresses []netip.Addr
	// DetectLocal configures how traffic of this node's pods is recognized.
	DetectLocal DetectLocal
	// ServiceCIDRs, if any, are the Service ranges; ServiceCIDR objects are then ignored. With a
	// ServiceProxyName neither count.
	ServiceCIDRs []netip.Prefix
	// NodeIPs, if any, are the addresses of this node; those of the Node object are then ignored.
	NodeIPs []netip.Addr
	// PrimaryIP replaces the Node object's addresses of its family, as kube-proxy's bind address does. An
	// unspecified one (0.0.0.0, ::) replaces none.
	PrimaryIP netip.Addr
	// Families are the address families that are served; none: both.
	Families []Family
	// SkipServices are the Services that another program of the node serves (skip.go).
	SkipServices []ServiceName
	// IgnoreExternalIPs leaves out the externalIPs of Services (kube-proxy's gate AllowServiceExternalIPs,
	// off).
	IgnoreExternalIPs bool
	// IgnoreLoadBalancers leaves out the addresses of load balancers, as if their ipMode were Proxy.
	IgnoreLoadBalancers bool
	// Cost returns a data plane's cost of a Service port; nil: there are no Limits.
	Cost   func(*Size) int `json:"-"`
	Limits Limits
	// NotConsistent is why the data plane ignores AnnotationConsistent; "": it does not.
	NotConsistent string
	// NotWeighing is why the data plane ignores weights other than 0 (AnnotationWeights); "": it does not.
	NotWeighing string
	// NotClosing is why the data plane ignores AnnotationRemovedEndpoints; "": it does not.
	NotClosing string
}

// Tracker holds API objects and computes the model from them, recomputing only what a change affects.
// The zero Tracker is not usable; call NewTracker.
//
// A Tracker is not safe for concurrent use, and it owns the maps of the Model that Flush returns: see Flush.
type Tracker struct {
	opts Options

	services map[ServiceName]*service
	sliceOf  map[ServiceName]ServiceName // EndpointSlice (namespace, name) -> the Service it belongs to
	nodes    map[string]*nodeFacts
	cidrs    map[string][]netip.Prefix

	dirty     map[ServiceName]struct{} // Services to recompute at the next Flush
	dirtyNode bool                     // node facts or Service ranges may have changed

	budget    budget
	claims    claims
	relays    claims // see relay
	addresses addressBook
	warnings  warningBook
	model     Model

	now     time.Time           // as Advance has set it
	drains  map[PortName]*drain // of ports with something to close later
	flushed bool                // Flush was called
}

// NewTracker returns a tracker without objects.
func NewTracker(opts Options) *Tracker {
	return &Tracker{
		opts:      opts,
		services:  map[ServiceName]*service{},
		sliceOf:   map[ServiceName]ServiceName{},
		nodes:     map[string]*nodeFacts{},
		cidrs:     map[string][]netip.Prefix{},
		dirty:     map[ServiceName]struct{}{},
		dirtyNode: true,
		budget:    budget{byNamespace: map[string]int{}},
		claims:    claims{},
		relays:    claims{},
		addresses: newAddressBook(),
		warnings:  newWarningBook(),
		drains:    map[PortName]*drain{},
		model:     Model{Ports: map[PortName]*ServicePort{}, HealthChecks: map[ServiceName]HealthCheck{}},
	}
}

// Apply takes a batch of changes from a Source. Nothing is computed before Flush.
func (t *Tracker) Apply(changes []Change) {
	for _, c := range changes {
		switch c.Op {
		case Delete:
			t.delete(c.Ref)
		case Renew:
			t.renew(c)
		case Upsert:
			switch o := c.Object.(type) {
			case *v1.Service:
				t.SetService(o, c.Origin)
			case *discoveryv1.EndpointSlice:
				t.SetEndpointSlice(o, c.Origin)
			case *v1.Node:
				t.SetNode(o, c.Origin)
			case *networkingv1.ServiceCIDR:
				t.SetServiceCIDR(o, c.Origin)
			}
		}
	}
}

func (t *Tracker) delete(ref Ref) {
	switch ref.Kind {
	case KindService:
		t.DeleteService(ref.Namespace, ref.Name)
	case KindEndpointSlice:
		t.DeleteEndpointSlice(ref.Namespace, ref.Name)
	case KindNode:
		t.DeleteNode(ref.Name)
	case KindServiceCIDR:
		t.DeleteServiceCIDR(ref.Name)
	}
}

// renew changes the version and the origin of an object, and the origin in the warnings about it.
func (t *Tracker) renew(c Change) {
	name, version := ServiceName{c.Ref.Namespace, c.Ref.Name}, c.Object.GetResourceVersion()
	switch c.Ref.Kind {
	case KindService:
		if s := t.services[name]; s != nil && s.def != nil {
			s.def.version, s.def.origin = version, c.Origin
		}
	case KindEndpointSlice:
		if s := t.services[t.sliceOf[name]]; s != nil {
			if at, ok := s.find(c.Ref.Name); ok {
				s.slices[at].version, s.slices[at].origin = version, c.Origin
			}
		}
	case KindNode:
		if n := t.nodes[c.Ref.Name]; n != nil {
			n.origin = c.Origin
		}
	}
	t.warnings.move(c.Ref, c.Origin)
}

// SetService adds or replaces a Service.
func (t *Tracker) SetService(o *v1.Service, origin Origin) {
	s := t.service(ServiceName{o.Namespace, o.Name})
	s.def = newServiceDef(o, origin, &t.opts)
	s.newDef = true
	t.dirty[s.name] = struct{}{}
	t.dirtyNode = t.dirtyNode || t.opts.skips(s.name)
}

// DeleteService removes a Service; its EndpointSlices stay until they are deleted themselves.
func (t *Tracker) DeleteService(namespace, name string) {
	s := t.services[ServiceName{namespace, name}]
	if s == nil || s.def == nil {
		return
	}
	s.def, s.newDef = nil, true
	t.dirty[s.name] = struct{}{}
	t.dirtyNode = t.dirtyNode || t.opts.skips(s.name)
}

// SetEndpointSlice adds or replaces an EndpointSlice.
func (t *Tracker) SetEndpointSlice(o *discoveryv1.EndpointSlice, origin Origin) {
	ref := Ref{KindEndpointSlice, o.Namespace, o.Name}
	key := ServiceName{o.Namespace, o.Name}
	owner, problem := ownerOfSlice(o)
	if before, ok := t.sliceOf[key]; ok && before != owner {
		t.DeleteEndpointSlice(o.Namespace, o.Name)
	}
	if owner == (ServiceName{}) {
		var ws []Warning
		if problem != "" {
			ws = []Warning{{Field: "metadata.labels", Text: problem}}
		}
		t.warnings.set(ref, origin, ws)
		return
	}
	s := t.service(owner)
	sl := newSlice(o, origin, &t.opts)
	if at, ok := s.find(o.Name); ok {
		s.slices[at] = sl
	} else {
		s.slices = slices.Insert(s.slices, at, sl)
	}
	s.noteTrigger(o, sl.family)
	t.sliceOf[key] = owner
	t.dirty[owner] = struct{}{}
}

// DeleteEndpointSlice removes an EndpointSlice.
func (t *Tracker) DeleteEndpointSlice(namespace, name string) {
	t.warnings.set(Ref{KindEndpointSlice, namespace, name}, Origin{}, nil)
	key := ServiceName{namespace, name}
	owner, ok := t.sliceOf[key]
	if !ok {
		return
	}
	delete(t.sliceOf, key)
	s := t.services[owner]
	if at, ok := s.find(name); ok {
		s.slices = slices.Delete(s.slices, at, at+1)
	}
	s.triggers = nil // earlier triggers are not the cause of this deletion
	t.dirty[owner] = struct{}{}
}

// SetNode adds or replaces a Node. Only this node's Node affects the model; others are optional.
func (t *Tracker) SetNode(o *v1.Node, origin Origin) {
	t.nodes[o.Name] = newNodeFacts(o, origin)
	t.dirtyNode = t.dirtyNode || o.Name == t.opts.NodeName
}

// DeleteNode removes a Node.
func (t *Tracker) DeleteNode(name string) {
	delete(t.nodes, name)
	t.dirtyNode = t.dirtyNode || name == t.opts.NodeName
}

// SetServiceCIDR adds or replaces a ServiceCIDR.
func (t *Tracker) SetServiceCIDR(o *networkingv1.ServiceCIDR, origin Origin) {
	var found warned
	t.cidrs[o.Name] = found.prefixes(field.NewPath("spec", "cidrs"), o.Spec.CIDRs)
	t.warnings.set(Ref{KindServiceCIDR, "", o.Name}, origin, found.warnings)
	t.dirtyNode = true
}

// DeleteServiceCIDR removes a ServiceCIDR.
func (t *Tracker) DeleteServiceCIDR(name string) {
	t.warnings.set(Ref{KindServiceCIDR, "", name}, Origin{}, nil)
	delete(t.cidrs, name)
	t.dirtyNode = true
}

// SetLocalAddresses replaces Options.LocalAddresses.
func (t *Tracker) SetLocalAddresses(ips []netip.Addr) {
	if !slices.Equal(t.opts.LocalAddresses, ips) {
		t.opts.LocalAddresses = ips
		t.dirtyNode = true
	}
}

// service returns the entry of a Service. It creates a missing one.
func (t *Tracker) service(name ServiceName) *service {
	s := t.services[name]
	if s == nil {
		s = &service{name: name}
		t.services[name] = s
	}
	return s
}
