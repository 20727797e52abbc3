package manifest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// checker collects what an API server would refuse in an object after defaults (errors), and what it would accept but a service
// proxy cannot use as it was probably meant (hints). Only fields that the model reads are checked.
type checker struct{ errors, hints []k8s.Warning }

func validate(o k8s.Object) (errs, hints []k8s.Warning) {
	var c checker
	switch o := o.(type) {
	case *v1.Service:
		c.service(o)
	case *discoveryv1.EndpointSlice:
		c.endpointSlice(o)
	case *v1.Node:
		c.node(o)
	case *networkingv1.ServiceCIDR:
		c.serviceCIDR(o)
	}
	if more := len(c.errors) - maxPerDocument; more > 0 {
		c.errors = append(c.errors[:maxPerDocument], k8s.Warning{Text: fmt.Sprintf("and %d more errors", more)})
	}
	return c.errors, c.hints
}

func (c *checker) invalid(path *field.Path, format string, args ...any) {
	c.errors = append(c.errors, k8s.Warning{Field: path.String(), Text: fmt.Sprintf(format, args...)})
}

func (c *checker) hint(path *field.Path, text string) {
	c.hints = append(c.hints, k8s.Warning{Field: path.String(), Text: text})
}

// name checks an object's name with a rule of apimachinery; a name that is missing is an error too.
func (c *checker) name(path *field.Path, name string, rule func(string) []string) {
	switch {
	case name == "":
		c.invalid(path, "is required")
	case len(name) > validation.DNS1123SubdomainMaxLength: // the rules would scan all of it
		c.invalid(path, "%s is longer than %d characters", brief.Quote(name), validation.DNS1123SubdomainMaxLength)
	default:
		for _, msg := range rule(name) {
			msg, _, _ = strings.Cut(msg, " (e.g.") // examples and the regular expression
			c.invalid(path, "%s is not a valid name: %s", brief.Quote(name), msg)
		}
	}
}

func (c *checker) port(path *field.Path, port int32) {
	if port < 1 || port > 65535 {
		c.invalid(path, "%d is out of range 1-65535", port)
	}
}

func (c *checker) protocol(path *field.Path, p k8s.Protocol) {
	switch p {
	case v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP:
	default:
		c.invalid(path, "%s is no protocol of Services: expected TCP, UDP or SCTP", brief.Quote(string(p)))
	}
}

// addr checks an address; ok is false if it is none.
func (c *checker) addr(path *field.Path, text string) (a netip.Addr, ok bool) {
	if a, ok = k8s.ParseAddr(text); !ok {
		c.invalid(path, "%s is not an IP address", brief.Quote(text))
	}
	return a, ok
}

// reachable checks an address that packets are to be sent to.
func (c *checker) reachable(path *field.Path, text string) (a netip.Addr, ok bool) {
	if a, ok = c.addr(path, text); !ok {
		return a, false
	}
	if a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() {
		c.invalid(path, "%s cannot be used: it is an unspecified, loopback or link-local address", a)
		return a, false
	}
	return a, true
}

func (c *checker) cidrs(path *field.Path, texts []string) {
	for i, text := range texts {
		if _, ok := k8s.ParsePrefix(text); !ok {
			c.invalid(path.Index(i), "%s is not a CIDR such as 10.0.0.0/24", brief.Quote(text))
		}
	}
}

// oneOf checks a value that can only be one of some texts.
func oneOf[T ~string](c *checker, path *field.Path, value T, allowed ...T) {
	if !slices.Contains(allowed, value) {
		c.invalid(path, "%s is not one of %v", brief.Quote(string(value)), allowed)
	}
}

func (c *checker) node(o *v1.Node) {
	c.name(field.NewPath("metadata", "name"), o.Name, validation.IsDNS1123Subdomain)
	c.cidrs(field.NewPath("spec", "podCIDRs"), o.Spec.PodCIDRs)
	if path := field.NewPath("spec", "podCIDR"); len(o.Spec.PodCIDRs) == 0 && o.Spec.PodCIDR != "" {
		if _, ok := k8s.ParsePrefix(o.Spec.PodCIDR); !ok {
			c.invalid(path, "%s is not a CIDR such as 10.0.0.0/24", brief.Quote(o.Spec.PodCIDR))
		}
	}
	path := field.NewPath("status", "addresses")
	for i, a := range o.Status.Addresses {
		if a.Type == v1.NodeInternalIP || a.Type == v1.NodeExternalIP {
			c.addr(path.Index(i).Child("address"), a.Address)
		}
	}
}

func (c *checker) serviceCIDR(o *networkingv1.ServiceCIDR) {
	c.name(field.NewPath("metadata", "name"), o.Name, validation.IsDNS1123Subdomain)
	path := field.NewPath("spec", "cidrs")
	if len(o.Spec.CIDRs) == 0 {
		c.invalid(path, "is required")
	}
	c.cidrs(path, o.Spec.CIDRs)
}

func (c *checker) endpointSlice(o *discoveryv1.EndpointSlice) {
	meta := field.NewPath("metadata")
	c.name(meta.Child("name"), o.Name, validation.IsDNS1123Subdomain)
	c.name(meta.Child("namespace"), o.Namespace, validation.IsDNS1123Label)
	if path := field.NewPath("addressType"); o.AddressType == "" {
		c.invalid(path, "is required")
	} else {
		oneOf(c, path, o.AddressType, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)
	}
	names := map[string]bool{}
	for i := range o.Ports {
		p, path := &o.Ports[i], field.NewPath("ports").Index(i)
		if p.Name != nil {
			if *p.Name != "" {
				c.name(path.Child("name"), *p.Name, validation.IsDNS1123Label)
			}
			if names[*p.Name] {
				c.invalid(path.Child("name"), "another port of the slice has the name %s", brief.Quote(*p.Name))
			}
			names[*p.Name] = true
		}
		if p.Protocol != nil {
			c.protocol(path.Child("protocol"), *p.Protocol)
		}
		if p.Port != nil && *p.Port != 0 {
			c.port(path.Child("port"), *p.Port)
		}
	}
	for i := range o.Endpoints {
		c.endpoint(&o.Endpoints[i], field.NewPath("endpoints").Index(i).Child("addresses"), o.AddressType)
	}
}

func (c *checker) endpoint(e *discoveryv1.Endpoint, path *field.Path, typ discoveryv1.AddressType) {
	if len(e.Addresses) == 0 {
		c.invalid(path, "is required")
	}
	if typ != discoveryv1.AddressTypeIPv4 && typ != discoveryv1.AddressTypeIPv6 {
		return
	}
	for i, text := range e.Addresses {
		if a, ok := c.reachable(path.Index(i), text); ok && k8s.FamilyOf(a).String() != string(typ) {
			c.invalid(path.Index(i), "%s is not an %s address, but addressType is %s", a, typ, typ)
		}
	}
}
