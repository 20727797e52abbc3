package k8s

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// slice is an EndpointSlice reduced to what the model needs.
type slice struct {
	name      string
	version   string // resourceVersion
	origin    Origin
	family    Family // 0: addressType is not supported, the slice is ignored
	otherName bool   // labelled for another service proxy, so a missing Service is no surprise
	ports     []slicePort
	endpoints []sliceEndpoint
	// serving is how many of the endpoints serve, local how many of these run on this node.
	serving, local int
	warned
}

type slicePort struct {
	name     string
	protocol Protocol
	port     uint16
}

// compare orders by name, protocol.
func (p slicePort) compare(o slicePort) int {
	return cmp.Or(cmp.Compare(p.name, o.name), cmp.Compare(p.protocol, o.protocol))
}

// sliceEndpoint is one endpoint of a slice at all its ports.
type sliceEndpoint struct {
	addr                        netip.Addr
	node                        string
	pod                         string // its name, in the slice's namespace; "": no pod, or not said
	ready, serving, terminating bool
	hints                       *hints // most endpoints have none
}

// hints are the topology hints of an endpoint.
type hints struct{ forNodes, forZones []string }

var noHints hints // never written

func (e *sliceEndpoint) topologyHints() *hints {
	if e.hints == nil {
		return &noHints
	}
	return e.hints
}

// ownerOfSlice returns the Service that a slice belongs to; the zero ServiceName if it belongs to none that
// is served. problem is the reason if that was probably not intended.
func ownerOfSlice(o *discoveryv1.EndpointSlice) (owner ServiceName, problem string) {
	if _, headless := o.Labels[v1.IsHeadlessService]; headless {
		return owner, ""
	}
	name := o.Labels[discoveryv1.LabelServiceName]
	if name == "" {
		return owner, "the label " + discoveryv1.LabelServiceName + " is missing: " +
			"the slice belongs to no Service and is ignored"
	}
	return ServiceName{o.Namespace, name}, ""
}

// newSlice reads an EndpointSlice. It trusts nothing: a value that the API server would have refused is
// ignored with a warning.
func newSlice(o *discoveryv1.EndpointSlice, origin Origin, opts *Options) *slice {
	s := &slice{name: o.Name, version: o.ResourceVersion, origin: origin}
	label, labelled := o.Labels[LabelServiceProxyName]
	s.otherName = labelled && label != opts.ServiceProxyName
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4:
		s.family = IPv4
	case discoveryv1.AddressTypeIPv6:
		s.family = IPv6
	default:
		return s
	}

	for i := range o.Ports {
		p := &o.Ports[i]
		path := field.NewPath("ports").Index(i)
		switch {
		case p.Name == nil:
			s.warn(path.Child("name"), "is not set: this port is ignored")
		case p.Port == nil || *p.Port == 0:
			s.warn(path.Child("port"), "is not set: this port is ignored")
		case *p.Port < 0 || *p.Port > 65535:
			s.warn(path.Child("port"), "%d is out of range 1-65535: this port is ignored", *p.Port)
		default:
			protocol := v1.ProtocolTCP
			if p.Protocol != nil {
				protocol = cmp.Or(*p.Protocol, protocol)
			}
			s.ports = append(s.ports, slicePort{*p.Name, protocol, uint16(*p.Port)})
		}
	}

	slices.SortStableFunc(s.ports, slicePort.compare)
	s.endpoints = make([]sliceEndpoint, 0, len(o.Endpoints))
	for i := range o.Endpoints {
		s.addEndpoint(&o.Endpoints[i], i, o.Namespace)
	}

	for i := range s.endpoints {
		if e := &s.endpoints[i]; e.ready || e.serving {
			if s.serving++; e.node != "" && e.node == opts.NodeName {
				s.local++
			}
		}
	}
	return s
}

// addEndpoint adds an endpoint at its first address; the others are alternatives that no proxy uses.
func (s *slice) addEndpoint(e *discoveryv1.Endpoint, i int, namespace string) {
	path := func() *field.Path { return field.NewPath("endpoints").Index(i).Child("addresses") }
	if len(e.Addresses) == 0 {
		s.warn(path(), "is empty: this endpoint is ignored")
		return
	}

	addr, ok := ParseAddr(e.Addresses[0])
	if !ok {
		s.warn(path().Index(0), "%s is not an IP address: this endpoint is ignored",
			brief.Quote(e.Addresses[0]))
		return
	}
	if FamilyOf(addr) != s.family {
		s.warn(path().Index(0), "%s is not an %s address, but addressType is %s: this endpoint is ignored",
			addr, s.family, s.family)
		return
	}

	c := &e.Conditions
	ep := sliceEndpoint{
		addr:        addr,
		ready:       c.Ready == nil || *c.Ready,
		serving:     c.Serving == nil || *c.Serving,
		terminating: c.Terminating != nil && *c.Terminating,
	}
	if e.NodeName != nil {
		ep.node = *e.NodeName
	}
	ep.pod = PodOf(e.TargetRef, namespace)
	if e.Hints != nil {
		ep.hints = &hints{}
		for _, n := range e.Hints.ForNodes {
			ep.hints.forNodes = append(ep.hints.forNodes, n.Name)
		}
		for _, z := range e.Hints.ForZones {
			ep.hints.forZones = append(ep.hints.forZones, z.Name)
		}
	}

	s.endpoints = append(s.endpoints, ep)
}

// maxPodName is the longest name of a pod, a DNS subdomain (RFC 1123).
const maxPodName = 253

// PodOf returns the name of the pod in a namespace that a targetRef of an endpoint names; "": it names none.
// The API server checks no targetRef. A name that no pod can have is not shown to anyone: it may hold what
// terminals and shells obey.
func PodOf(ref *v1.ObjectReference, namespace string) string {
	if ref == nil || ref.Kind != "Pod" || len(ref.Name) > maxPodName ||
		ref.Namespace != "" && ref.Namespace != namespace {
		return ""
	}
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	if strings.Trim(ref.Name, letters+"-.") != "" || strings.IndexAny(ref.Name, letters) != 0 {
		return ""
	}
	return ref.Name
}
