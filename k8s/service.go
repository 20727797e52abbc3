package k8s

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// LabelServiceProxyName is the label that selects the proxy that serves a Service.
const LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// AnnotationPreserveDestination is an annotation of kube-proxy's Windows mode
// (ServicePort.PreserveDestination).
const AnnotationPreserveDestination = "preserve-destination"

// service is the tracker's state of one Service name: the Service object, if it exists, and the
// EndpointSlices that name it, if any.
type service struct {
	name   ServiceName
	def    *serviceDef // nil: no such Service object
	newDef bool        // def was replaced since the last Flush: frontends and claims are out of date
	slices []*slice    // sorted by name

	cost     int    // as far as the sums have it
	costs    []int  // of def.ports
	tooLarge string // why it is refused for its own cost, and overSum for that of all; "": it is not
	overSum  string
	refused  string    // either of these
	ports    []portDef // with the frontends that this node serves; none if it is refused
	held     []portDef // with the cluster IPs of a refused Service, which no other may have
	former   []portDef // ports before the present Flush, if that replaces them
	created  time.Time // as the claims have it
	// contested: other frontends may want what one of its frontends does. Else none is looked up.
	contested bool
	relays    []relay
	triggers  []Trigger // of the slices added or replaced since the last Flush
}

// serviceDef is a Service object reduced to what the model needs.
type serviceDef struct {
	version string // resourceVersion
	origin  Origin
	created time.Time
	ports   []portDef // without frontends: placeFrontends
	// healthCheckPort is where load balancers probe for local endpoints; 0: none.
	healthCheckPort uint16
	warned

	// Options.SkipServices names it: its ports hold their cluster IPs, and are not served
	skipped        bool
	notServed      []notServedDef // addresses that are not served here; nearly always none
	notServedPorts []notServedPort
}

// portDef is one Service port in one family before endpoints are known.
type portDef struct {
	name     PortName
	affinity int
	preserve bool
	weights  *weights // nil: all are 1
	removed  *Removed // nil: connections stay
	// consistent is AnnotationConsistent's, without endpoints; nil: none.
	consistent *Consistent
	target     uint16 // targetPort as a number; 0: a name, or not known

	port, nodePort uint16 // nodePort 0: none
	nodePortField  string
	shared         *addresses
	// frontends are those of shared and nodePort as last computed: the model's own, never written to.
	frontends []Frontend
}

// addresses are what the ports of a Service have in common in one family. Each port is served at all of them.
type addresses struct {
	frontends                 []frontendDef // without port; the ClusterIP first
	ranges                    []netip.Prefix
	external                  Policy
	firewalled, loadBalancers int // how many have the ranges, and how many are load balancers'
}

// addressKey is what only one frontend of a port has.
type addressKey struct {
	FrontendType
	netip.Addr
}

// frontendDef is a frontend and the field of the Service that asks for it.
type frontendDef struct {
	Frontend
	field string
}

// field returns the field of the Service that asks for a frontend.
func (p *portDef) field(f *Frontend) string {
	for i := range p.shared.frontends {
		if s := &p.shared.frontends[i]; s.Type == f.Type && s.Address == f.Address {
			return s.field
		}
	}
	return p.nodePortField
}

// sharedBy returns the addresses of a Service's ports, those of each family once.
func sharedBy(ports []portDef) (list []*addresses) {
	for i := range ports {
		if shared := ports[i].shared; !slices.Contains(list, shared) {
			list = append(list, shared)
		}
	}
	return list
}

// find returns the index of a slice in s.slices, or where to insert it, and whether it was found.
func (s *service) find(name string) (at int, ok bool) {
	return slices.BinarySearchFunc(s.slices, name, func(sl *slice, name string) int {
		return strings.Compare(sl.name, name)
	})
}

// newServiceDef reads a Service. It trusts nothing: a value that the API server would have refused is ignored
// with a warning.
func newServiceDef(o *v1.Service, origin Origin, opts *Options) *serviceDef {
	d := &serviceDef{version: o.ResourceVersion, origin: origin, created: o.CreationTimestamp.Time}
	if o.Spec.Type == v1.ServiceTypeExternalName || o.Spec.ClusterIP == v1.ClusterIPNone {
		return d
	}

	server := otherServer(o, opts)
	d.skipped = server == whySkipped
	d.noteNotServed(o, server, opts)
	if server != "" && !d.skipped {
		return d
	}

	if o.Spec.ClusterIP == "" {
		d.warn(field.NewPath("spec", "clusterIP"), "is not set: this Service is not served")
		return d
	}

	d.checkAnnotations(o)
	for _, f := range []Family{IPv4, IPv6} {
		if len(opts.Families) == 0 || slices.Contains(opts.Families, f) {
			d.addFamily(o, f, opts)
		}
	}

	if d.skipped {
		d.warnings = nil // they would be about what nkp serves of it
	} else {
		d.healthCheckPort = healthCheckPort(o)
	}
	return d
}

// otherServer returns why another program than this proxy serves a Service; "": none does.
func otherServer(o *v1.Service, opts *Options) string {
	label, labelled := o.Labels[LabelServiceProxyName]
	selected := label == opts.ServiceProxyName && labelled == (opts.ServiceProxyName != "")
	switch {
	case !selected && labelled:
		return "another proxy serves it: its label " + LabelServiceProxyName + " is " + brief.Quote(label)
	case !selected:
		return "another proxy serves it: it has no label " + LabelServiceProxyName
	case opts.skips(ServiceName{o.Namespace, o.Name}):
		return whySkipped
	}
	return ""
}

// addFamily adds the ports of the Service in one family, if it has a cluster IP there.
func (d *serviceDef) addFamily(o *v1.Service, f Family, opts *Options) {
	clusterIP, path, ok := d.clusterIP(o, f)
	if !ok {
		return
	}
	internal, external := policies(o)
	ranges := d.sourceRanges(o, f)
	shared := &addresses{external: external, ranges: ranges}

	seen := map[addressKey]bool{}
	add := func(t FrontendType, a netip.Addr, path *field.Path, p Policy, ranges []netip.Prefix) {
		if key := (addressKey{t, a}); !seen[key] {
			seen[key] = true
			shared.frontends = append(shared.frontends,
				frontendDef{Frontend{Type: t, Address: a, Policy: p, SourceRanges: ranges}, path.String()})
			if len(ranges) > 0 {
				shared.firewalled++
			}
			if t == LoadBalancer {
				shared.loadBalancers++
			}
		}
	}

	add(ClusterIP, clusterIP, path, internal, nil)
	if !opts.IgnoreExternalIPs {
		base := field.NewPath("spec", "externalIPs")
		for i, text := range o.Spec.ExternalIPs {
			if a, ok := d.address(text, base.Index(i), f); ok {
				add(ExternalIP, a, base.Index(i), external, nil)
			}
		}
	}

	base := field.NewPath("status", "loadBalancer", "ingress")
	for i, ing := range o.Status.LoadBalancer.Ingress {
		if ing.IP == "" || opts.leftToLoadBalancer(&ing) != "" {
			continue
		}
		path := base.Index(i).Child("ip")
		if a, ok := d.address(ing.IP, path, f); ok {
			add(LoadBalancer, a, path, external, ranges)
		}
	}

	d.addPorts(o, f, shared, opts)
}

// addPorts adds one portDef for each port of the Service.
func (d *serviceDef) addPorts(o *v1.Service, f Family, shared *addresses, opts *Options) {
	affinity, weights := affinitySeconds(o), d.readWeights(o, opts)
	consistent := d.wantsConsistent(o, shared.external, opts)
	removed := d.readRemoved(o, consistent, opts)
	taken := map[PortName]bool{}

	for i := range o.Spec.Ports {
		p := &o.Spec.Ports[i]
		path := field.NewPath("spec", "ports").Index(i)
		port := portDef{
			name: PortName{
				ServiceName{o.Namespace, o.Name}, p.Name, cmp.Or(p.Protocol, v1.ProtocolTCP), f,
			},
			affinity: affinity,
			preserve: o.Annotations[AnnotationPreserveDestination] == "true",
			weights:  weights,
			target:   targetPort(o, p),
			shared:   shared,
		}

		if taken[port.name] {
			d.warn(path.Child("name"), "another port has the name %q and protocol %s: this one is not served",
				p.Name, port.name.Protocol)
			continue
		}
		if p.Port < 1 || p.Port > 65535 {
			d.warn(path.Child("port"), "%d is out of range 1-65535: this port is not served", p.Port)
			continue
		}

		taken[port.name], port.port = true, uint16(p.Port)
		if p.NodePort < 0 || p.NodePort > 65535 {
			d.warn(path.Child("nodePort"), "%d is out of range 1-65535: no NodePort is served", p.NodePort)
		} else if p.NodePort != 0 {
			port.nodePort, port.nodePortField = uint16(p.NodePort), path.Child("nodePort").String()
		}
		if port.name.Protocol == v1.ProtocolTCP {
			port.removed = removed
		}
		if consistent {
			port.consistent = d.consistent(o, &port)
		}

		d.ports = append(d.ports, port)
	}
}

// clusterIP finds the cluster IP of a family: the one at the family's place in ipFamilies; without
// ipFamilies, spec.clusterIP if it is of that family.
func (d *serviceDef) clusterIP(o *v1.Service, f Family) (netip.Addr, *field.Path, bool) {
	if len(o.Spec.IPFamilies) == 0 {
		path := field.NewPath("spec", "clusterIP")
		a, ok := d.address(o.Spec.ClusterIP, path, f)
		return a, path, ok
	}
	i := slices.Index(o.Spec.IPFamilies, v1.IPFamily(f.String()))
	if i < 0 || i >= len(o.Spec.ClusterIPs) {
		return netip.Addr{}, nil, false
	}
	path := field.NewPath("spec", "clusterIPs").Index(i)
	a, ok := d.address(o.Spec.ClusterIPs[i], path, f)
	if !ok && a.IsValid() {
		d.warn(path, "%s is not an %s address, but spec.ipFamilies[%d] is %s: not served", a, f, i, f)
	}
	return a, path, ok
}

// address parses an address of a Service; ok is false if it is invalid or of the other family.
func (d *serviceDef) address(text string, path *field.Path, f Family) (a netip.Addr, ok bool) {
	if strings.TrimSpace(text) == "" {
		return a, false
	}
	a, ok = ParseAddr(text)
	if !ok {
		d.warn(path, "%s is not an IP address: ignored", brief.Quote(text))
		return netip.Addr{}, false
	}
	if a.IsUnspecified() {
		d.warn(path, "a Service cannot be reached at %s: ignored", a)
		return netip.Addr{}, false
	}
	return a, FamilyOf(a) == f
}

// sourceRanges returns the client prefixes of a family; nil: no restriction.
func (d *serviceDef) sourceRanges(o *v1.Service, f Family) []netip.Prefix {
	var ranges []netip.Prefix
	all := false
	for i, text := range o.Spec.LoadBalancerSourceRanges {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		p, ok := ParsePrefix(text)
		if !ok {
			d.warn(field.NewPath("spec", "loadBalancerSourceRanges").Index(i),
				"%s is not a CIDR: ignored, as if it were not there", brief.Quote(text))
			continue
		}
		if FamilyOf(p.Addr()) == f {
			ranges = append(ranges, p)
			all = all || p.Bits() == 0
		}
	}
	if all {
		return nil
	}
	slices.SortFunc(ranges, comparePrefix)
	return slices.Compact(ranges)
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// policies returns the internal and the external traffic policy. The external one applies only if traffic can
// enter from outside: types LoadBalancer and NodePort, and ClusterIP with externalIPs.
func policies(o *v1.Service) (internal, external Policy) {
	internal, external = Cluster, Cluster
	if p := o.Spec.InternalTrafficPolicy; p != nil && *p == v1.ServiceInternalTrafficPolicyLocal {
		internal = Local
	}
	var open bool
	switch o.Spec.Type {
	case v1.ServiceTypeLoadBalancer, v1.ServiceTypeNodePort:
		open = true
	case v1.ServiceTypeClusterIP, "":
		open = len(o.Spec.ExternalIPs) > 0
	}
	if open && o.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal {
		external = Local
	}
	return internal, external
}

// affinitySeconds returns the session affinity by client address; 0: none.
func affinitySeconds(o *v1.Service) int {
	if o.Spec.SessionAffinity != v1.ServiceAffinityClientIP {
		return 0
	}
	if c := o.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return int(*c.ClientIP.TimeoutSeconds)
	}
	return int(v1.DefaultClientIPServiceAffinitySeconds)
}

// targetPort returns the port number that EndpointSlices of a Service port are meant to have; 0: unknown.
// Without a selector Kubernetes does not write the slices, and they may have any port.
func targetPort(o *v1.Service, p *v1.ServicePort) uint16 {
	n := p.TargetPort.IntVal
	if p.TargetPort.Type == intstr.Int && n > 0 && n <= 65535 && len(o.Spec.Selector) > 0 {
		return uint16(n)
	}
	return 0
}
