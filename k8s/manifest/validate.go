package manifest

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// maxAffinitySeconds is the longest session affinity that the API allows: a day.
const maxAffinitySeconds = 86400

// validate returns the errors for which the last good state of an object stays in force: an API server would
// refuse the value, and the object could not be served as it was meant. The Tracker warns of all other values
// that it cannot use.
func validate(o k8s.Object) field.ErrorList {
	switch o := o.(type) {
	case *v1.Service:
		return append(checkNames(o, validation.IsDNS1123Label), checkService(o)...)
	case *discoveryv1.EndpointSlice:
		return append(checkNames(o, validation.IsDNS1123Subdomain), checkSlice(o)...)
	}
	return checkName(field.NewPath("metadata", "name"), o.GetName(), validation.IsDNS1123Subdomain)
}

// checkNames checks the name and the namespace of an object that is in one.
func checkNames(o k8s.Object, rule func(string) []string) field.ErrorList {
	meta := field.NewPath("metadata")
	errs := checkName(meta.Child("name"), o.GetName(), rule)
	return append(errs, checkName(meta.Child("namespace"), o.GetNamespace(), validation.IsDNS1123Label)...)
}

// checkName checks a name, which must not be empty, with a rule of apimachinery.
func checkName(path *field.Path, name string, rule func(string) []string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	name = brief.Cut(name, 2*validation.DNS1123SubdomainMaxLength) // the rules would scan all of it
	return invalid(path, brief.Cut(name, maxField), rule(name))
}

// invalid returns an error for each message of a rule about a value.
func invalid(path *field.Path, value any, messages []string) (errs field.ErrorList) {
	for _, message := range messages {
		message, _, _ = strings.Cut(message, " (e.g.") // examples and the regular expression
		errs = append(errs, field.Invalid(path, value, message))
	}
	return errs
}

// oneOf checks a value that has a few spellings only; "" stands for the default.
func oneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	for _, a := range append(allowed, "") {
		if value == a {
			return nil
		}
	}
	return field.ErrorList{field.NotSupported(path, T(brief.Cut(string(value), maxField)), allowed)}
}

// checkAddress checks an address that packets are to be sent to.
func checkAddress(path *field.Path, text string) field.ErrorList {
	a, ok := k8s.ParseAddr(text)
	if !ok {
		return field.ErrorList{field.Invalid(path, brief.Cut(text, maxField), "must be an IP address")}
	}
	if isSpecial(a) {
		return field.ErrorList{field.Invalid(path, text,
			"must not be an unspecified, loopback or link-local address")}
	}
	return nil
}

func isSpecial(a netip.Addr) bool {
	return a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast()
}

func checkService(o *v1.Service) field.ErrorList {
	s, spec := &o.Spec, field.NewPath("spec")
	errs := oneOf(spec.Child("type"), s.Type, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort,
		v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName)
	if s.Type == v1.ServiceTypeExternalName || s.ClusterIP == v1.ClusterIPNone {
		return errs
	}

	if len(s.ClusterIPs) > 0 && s.ClusterIPs[0] != s.ClusterIP {
		first := brief.Cut(s.ClusterIPs[0], maxField)
		errs = append(errs,
			field.Invalid(spec.Child("clusterIPs").Index(0), first, "must match spec.clusterIP"))
	}
	// Of three, one is not valid or there twice.
	for i, family := range s.IPFamilies[:min(len(s.IPFamilies), 3)] {
		path := spec.Child("ipFamilies").Index(i)
		errs = append(errs, oneOf(path, family, v1.IPv4Protocol, v1.IPv6Protocol)...)
		if slices.Contains(s.IPFamilies[:i], family) {
			errs = append(errs, field.Duplicate(path, v1.IPFamily(brief.Cut(string(family), maxField))))
		}
	}
	for i, text := range s.ClusterIPs {
		path := spec.Child("clusterIPs").Index(i)
		if text == s.ClusterIP {
			path = spec.Child("clusterIP")
		}
		errs = append(errs, checkAddress(path, text)...)
	}
	for i, text := range s.ExternalIPs {
		errs = append(errs, checkAddress(spec.Child("externalIPs").Index(i), text)...)
	}
	for i, ingress := range o.Status.LoadBalancer.Ingress {
		path := field.NewPath("status", "loadBalancer", "ingress").Index(i)
		if _, ok := k8s.ParseAddr(ingress.IP); !ok && ingress.IP != "" {
			errs = append(errs,
				field.Invalid(path.Child("ip"), brief.Cut(ingress.IP, maxField), "must be an IP address"))
		}
		if mode := ingress.IPMode; mode != nil {
			errs = append(errs,
				oneOf(path.Child("ipMode"), *mode, v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)...)
		}
	}

	if len(s.Ports) == 0 {
		errs = append(errs, field.Required(spec.Child("ports"), ""))
	}
	for i := range s.Ports {
		errs = append(errs, checkServicePort(spec.Child("ports").Index(i), &s.Ports[i])...)
	}
	return append(errs, checkPolicies(spec, s)...)
}

func checkServicePort(path *field.Path, p *v1.ServicePort) field.ErrorList {
	errs := checkPort(path, p.Name, p.Protocol, p.Port)
	if p.NodePort != 0 {
		errs = append(errs,
			invalid(path.Child("nodePort"), p.NodePort, validation.IsValidPortNum(int(p.NodePort)))...)
	}
	return errs
}

// checkPort checks what ports of Services and of EndpointSlices have in common.
func checkPort(path *field.Path, name string, protocol v1.Protocol, number int32) (errs field.ErrorList) {
	if name != "" {
		errs = checkName(path.Child("name"), name, validation.IsDNS1123Label)
	}
	errs = append(errs,
		oneOf(path.Child("protocol"), protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)...)
	return append(errs, invalid(path.Child("port"), number, validation.IsValidPortNum(int(number)))...)
}

func checkPolicies(spec *field.Path, s *v1.ServiceSpec) field.ErrorList {
	errs := oneOf(spec.Child("externalTrafficPolicy"), s.ExternalTrafficPolicy,
		v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)
	if p := s.InternalTrafficPolicy; p != nil {
		errs = append(errs, oneOf(spec.Child("internalTrafficPolicy"), *p,
			v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)...)
	}

	errs = append(errs, oneOf(spec.Child("sessionAffinity"), s.SessionAffinity,
		v1.ServiceAffinityNone, v1.ServiceAffinityClientIP)...)
	if c := s.SessionAffinityConfig; s.SessionAffinity == v1.ServiceAffinityClientIP &&
		c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds := *c.ClientIP.TimeoutSeconds
		errs = append(errs,
			invalid(spec.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), seconds,
				validation.IsInRange(int(seconds), 1, maxAffinitySeconds))...)
	}
	return errs
}

func checkSlice(o *discoveryv1.EndpointSlice) field.ErrorList {
	if o.AddressType == "" {
		return field.ErrorList{field.Required(field.NewPath("addressType"), "")}
	}
	errs := oneOf(field.NewPath("addressType"), o.AddressType,
		discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)

	names := map[string]bool{}
	for i := range o.Ports {
		p, path := &o.Ports[i], field.NewPath("ports").Index(i)
		if names[*p.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), brief.Cut(*p.Name, maxField)))
		}
		names[*p.Name] = true
		if p.Port != nil && *p.Port != 0 {
			errs = append(errs, checkPort(path, *p.Name, *p.Protocol, *p.Port)...)
		}
	}
	if o.AddressType == discoveryv1.AddressTypeFQDN {
		return errs
	}
	for i := range o.Endpoints {
		path := field.NewPath("endpoints").Index(i).Child("addresses")
		for j, text := range o.Endpoints[i].Addresses {
			errs = append(errs, checkAddress(path.Index(j), text)...)
		}
	}
	return errs
}
