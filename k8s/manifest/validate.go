package manifest

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// validate tells what an API server would refuse in an object (after defaults), and what it would accept and a
// service proxy cannot use. Only fields that the model reads are looked at.
func validate(o k8s.Object) (errs, hints []k8s.Warning) {
	var list field.ErrorList
	switch o := o.(type) {
	case *v1.Service:
		list = validateService(o)
		hints = serviceHints(o)
	case *discoveryv1.EndpointSlice:
		list = validateEndpointSlice(o)
	case *v1.Node:
		list = validateNode(o)
	case *networkingv1.ServiceCIDR:
		list = validateServiceCIDR(o)
	}
	for i, e := range list {
		if i == maxPerDocument {
			errs = append(errs, k8s.Warning{Text: fmt.Sprintf("and %d more errors", len(list)-i)})
			break
		}
		errs = append(errs, k8s.Warning{Field: e.Field, Text: e.Detail})
	}
	return errs, hints
}

// invalid makes a field error whose Detail reads well without the value being repeated before it.
func invalid(path *field.Path, value any, format string, args ...any) *field.Error {
	return field.Invalid(path, value, fmt.Sprintf(format, args...))
}

func required(path *field.Path) *field.Error { return field.Required(path, "is required") }

// validName checks an object's name with a rule of apimachinery; a name that is missing is an error too.
func validName(path *field.Path, name string, rule func(string) []string) field.ErrorList {
	if name == "" {
		return field.ErrorList{required(path)}
	}
	if len(name) > validation.DNS1123SubdomainMaxLength { // the rules would look at all of it
		return field.ErrorList{invalid(path, name, "%s is longer than %d characters", brief.Quote(name), validation.DNS1123SubdomainMaxLength)}
	}
	var list field.ErrorList
	for _, msg := range rule(name) {
		msg, _, _ = strings.Cut(msg, " (e.g.") // examples and the regular expression
		list = append(list, invalid(path, name, "%s is not a valid name: %s", brief.Quote(name), msg))
	}
	return list
}

func validPort(path *field.Path, port int32) field.ErrorList {
	if port < 1 || port > 65535 {
		return field.ErrorList{invalid(path, port, "%d is out of range 1-65535", port)}
	}
	return nil
}

func validProtocol(path *field.Path, p k8s.Protocol) field.ErrorList {
	switch p {
	case v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP:
		return nil
	}
	return field.ErrorList{invalid(path, p, "%s is no protocol of Services: expected TCP, UDP or SCTP", brief.Quote(string(p)))}
}

// validAddr checks an address; the zero Addr comes back if it is none.
func validAddr(path *field.Path, text string) (netip.Addr, field.ErrorList) {
	a, ok := k8s.ParseAddr(text)
	if !ok {
		return a, field.ErrorList{invalid(path, text, "%s is not an IP address", brief.Quote(text))}
	}
	return a, nil
}

// validReachable checks an address that packets are to be sent to.
func validReachable(path *field.Path, text string) (netip.Addr, field.ErrorList) {
	a, list := validAddr(path, text)
	if list != nil {
		return a, list
	}
	switch {
	case a.IsUnspecified(), a.IsLoopback(), a.IsLinkLocalUnicast(), a.IsLinkLocalMulticast():
		list = append(list, invalid(path, text, "%s cannot be used: it is an unspecified, loopback or link-local address", a))
	}
	return a, list
}

func validCIDR(path *field.Path, text string) field.ErrorList {
	if _, ok := k8s.ParsePrefix(text); !ok {
		return field.ErrorList{invalid(path, text, "%s is not a CIDR such as 10.0.0.0/24", brief.Quote(text))}
	}
	return nil
}

// oneOf checks a value that can only be one of some texts.
func oneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return field.ErrorList{invalid(path, value, "%s is not one of %v", brief.Quote(string(value)), allowed)}
}

// validateNode tells what an API server would refuse in a Node, as far as the model reads it. The Detail of each
// error is complete in itself.
func validateNode(o *v1.Node) field.ErrorList {
	list := validName(field.NewPath("metadata", "name"), o.Name, validation.IsDNS1123Subdomain)
	path := field.NewPath("spec", "podCIDRs")
	for i, text := range o.Spec.PodCIDRs {
		list = append(list, validCIDR(path.Index(i), text)...)
	}
	if len(o.Spec.PodCIDRs) == 0 && o.Spec.PodCIDR != "" {
		list = append(list, validCIDR(field.NewPath("spec", "podCIDR"), o.Spec.PodCIDR)...)
	}
	path = field.NewPath("status", "addresses")
	for i, a := range o.Status.Addresses {
		if a.Type == v1.NodeInternalIP || a.Type == v1.NodeExternalIP {
			_, errs := validAddr(path.Index(i).Child("address"), a.Address)
			list = append(list, errs...)
		}
	}
	return list
}

// validateServiceCIDR tells what an API server would refuse in a ServiceCIDR, as validateNode does.
func validateServiceCIDR(o *networkingv1.ServiceCIDR) field.ErrorList {
	list := validName(field.NewPath("metadata", "name"), o.Name, validation.IsDNS1123Subdomain)
	path := field.NewPath("spec", "cidrs")
	if len(o.Spec.CIDRs) == 0 {
		list = append(list, required(path))
	}
	for i, text := range o.Spec.CIDRs {
		list = append(list, validCIDR(path.Index(i), text)...)
	}
	return list
}

// validateEndpointSlice tells what an API server would refuse in an EndpointSlice, as validateNode does.
func validateEndpointSlice(o *discoveryv1.EndpointSlice) field.ErrorList {
	meta := field.NewPath("metadata")
	list := validName(meta.Child("name"), o.Name, validation.IsDNS1123Subdomain)
	list = append(list, validName(meta.Child("namespace"), o.Namespace, validation.IsDNS1123Label)...)
	typePath := field.NewPath("addressType")
	if o.AddressType == "" {
		list = append(list, required(typePath))
	} else {
		list = append(list, oneOf(typePath, o.AddressType, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)...)
	}
	names := map[string]bool{}
	for i := range o.Ports {
		p, path := &o.Ports[i], field.NewPath("ports").Index(i)
		if p.Name != nil {
			if *p.Name != "" {
				list = append(list, validName(path.Child("name"), *p.Name, validation.IsDNS1123Label)...)
			}
			if names[*p.Name] {
				list = append(list, invalid(path.Child("name"), *p.Name, "another port of the slice has the name %s", brief.Quote(*p.Name)))
			}
			names[*p.Name] = true
		}
		if p.Protocol != nil {
			list = append(list, validProtocol(path.Child("protocol"), *p.Protocol)...)
		}
		if p.Port != nil && *p.Port != 0 {
			list = append(list, validPort(path.Child("port"), *p.Port)...)
		}
	}
	for i := range o.Endpoints {
		list = append(list, validEndpoint(&o.Endpoints[i], i, o.AddressType)...)
	}
	return list
}

func validEndpoint(e *discoveryv1.Endpoint, i int, typ discoveryv1.AddressType) (list field.ErrorList) {
	path := field.NewPath("endpoints").Index(i).Child("addresses")
	if len(e.Addresses) == 0 {
		return field.ErrorList{required(path)}
	}
	if typ != discoveryv1.AddressTypeIPv4 && typ != discoveryv1.AddressTypeIPv6 {
		return nil
	}
	for j, text := range e.Addresses {
		a, errs := validReachable(path.Index(j), text)
		list = append(list, errs...)
		if errs == nil && k8s.FamilyOf(a).String() != string(typ) {
			list = append(list, invalid(path.Index(j), text, "%s is not an %s address, but addressType is %s", a, typ, typ))
		}
	}
	return list
}
