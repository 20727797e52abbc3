package manifest

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// maxAffinitySeconds is the longest session affinity that the API allows: a day.
const maxAffinitySeconds = 86400

func (c *checker) service(o *v1.Service) {
	meta, spec := field.NewPath("metadata"), field.NewPath("spec")
	c.name(meta.Child("name"), o.Name, validation.IsDNS1123Label)
	c.name(meta.Child("namespace"), o.Namespace, validation.IsDNS1123Label)
	oneOf(c, spec.Child("type"), o.Spec.Type, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort,
		v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName)
	if o.Spec.Type == v1.ServiceTypeExternalName {
		return
	}
	c.clusterIPs(&o.Spec, spec)
	c.servicePorts(&o.Spec, spec.Child("ports"))
	for i, text := range o.Spec.ExternalIPs {
		c.reachable(spec.Child("externalIPs").Index(i), text)
	}
	ingress := field.NewPath("status", "loadBalancer", "ingress")
	for i, ing := range o.Status.LoadBalancer.Ingress {
		if ing.IP != "" {
			c.addr(ingress.Index(i).Child("ip"), ing.IP)
		}
		if ing.IPMode != nil {
			oneOf(c, ingress.Index(i).Child("ipMode"), *ing.IPMode, v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)
		}
	}
	c.policies(&o.Spec, spec)
	c.serviceHints(&o.Spec, spec)
}

func (c *checker) policies(s *v1.ServiceSpec, spec *field.Path) {
	if s.ExternalTrafficPolicy != "" {
		oneOf(c, spec.Child("externalTrafficPolicy"), s.ExternalTrafficPolicy,
			v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)
	}
	if s.InternalTrafficPolicy != nil {
		oneOf(c, spec.Child("internalTrafficPolicy"), *s.InternalTrafficPolicy,
			v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)
	}
	oneOf(c, spec.Child("sessionAffinity"), s.SessionAffinity, v1.ServiceAffinityNone, v1.ServiceAffinityClientIP)
	if config := s.SessionAffinityConfig; s.SessionAffinity == v1.ServiceAffinityClientIP && config != nil && config.ClientIP != nil && config.ClientIP.TimeoutSeconds != nil {
		if t := *config.ClientIP.TimeoutSeconds; t < 1 || t > maxAffinitySeconds {
			c.invalid(spec.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), "%d is out of range 1-%d", t, maxAffinitySeconds)
		}
	}
}

func (c *checker) clusterIPs(s *v1.ServiceSpec, spec *field.Path) {
	if s.ClusterIP == v1.ClusterIPNone {
		return
	}
	path := spec.Child("clusterIPs")
	if len(s.ClusterIPs) > 0 && s.ClusterIPs[0] != s.ClusterIP {
		c.invalid(path.Index(0), "%s differs from spec.clusterIP %s", brief.Quote(s.ClusterIPs[0]), brief.Quote(s.ClusterIP))
	}
	if len(s.ClusterIPs) > 2 {
		c.invalid(path, "has %d entries: at most one for each family", len(s.ClusterIPs))
	}
	for i, f := range s.IPFamilies {
		at := spec.Child("ipFamilies").Index(i)
		oneOf(c, at, f, v1.IPv4Protocol, v1.IPv6Protocol)
		if slices.Contains(s.IPFamilies[:i], f) {
			c.invalid(at, "%s is given twice", f)
		}
	}
	for i, text := range s.ClusterIPs {
		at := path.Index(i)
		if len(s.ClusterIPs) == 1 {
			at = spec.Child("clusterIP")
		}
		a, ok := c.reachable(at, text)
		if !ok {
			continue
		}
		if i < len(s.IPFamilies) && string(s.IPFamilies[i]) != k8s.FamilyOf(a).String() {
			c.invalid(at, "%s is not an %s address, but spec.ipFamilies[%d] is %s", a, s.IPFamilies[i], i, s.IPFamilies[i])
		}
		if len(s.IPFamilies) == 0 && i == 1 {
			c.invalid(at, "spec.ipFamilies is missing")
		}
	}
}

func (c *checker) servicePorts(s *v1.ServiceSpec, path *field.Path) {
	if len(s.Ports) == 0 && s.ClusterIP != v1.ClusterIPNone {
		c.invalid(path, "is required")
	}
	type key struct {
		port     int32
		protocol k8s.Protocol
	}
	names, ports, nodePorts := map[string]int{}, map[key]int{}, map[key]int{}
	for i := range s.Ports {
		p, at := &s.Ports[i], path.Index(i)
		if p.Name != "" {
			c.name(at.Child("name"), p.Name, validation.IsDNS1123Label)
		} else if len(s.Ports) > 1 {
			c.invalid(at.Child("name"), "is required where there are several ports")
		}
		if j, ok := names[p.Name]; ok && p.Name != "" {
			c.invalid(at.Child("name"), "%s is also the name of ports[%d]", brief.Quote(p.Name), j)
		}
		names[p.Name] = i
		c.port(at.Child("port"), p.Port)
		c.protocol(at.Child("protocol"), p.Protocol)
		if j, ok := ports[key{p.Port, p.Protocol}]; ok {
			c.invalid(at, "%d/%s is also in ports[%d]", p.Port, p.Protocol, j)
		}
		ports[key{p.Port, p.Protocol}] = i
		if p.NodePort == 0 {
			continue
		}
		c.port(at.Child("nodePort"), p.NodePort)
		if j, ok := nodePorts[key{p.NodePort, p.Protocol}]; ok {
			c.invalid(at.Child("nodePort"), "%d/%s is also in ports[%d]", p.NodePort, p.Protocol, j)
		}
		nodePorts[key{p.NodePort, p.Protocol}] = i
	}
}

// serviceHints records settings of a Service that have no effect, or probably not the intended one.
func (c *checker) serviceHints(s *v1.ServiceSpec, spec *field.Path) {
	if s.ClusterIP == v1.ClusterIPNone {
		return
	}
	for i, p := range s.Ports {
		if p.NodePort != 0 && s.Type == v1.ServiceTypeClusterIP {
			c.hint(spec.Child("ports").Index(i).Child("nodePort"), "an API server refuses it for type ClusterIP; it is served all the same")
		}
	}
	if len(s.LoadBalancerSourceRanges) > 0 && !slices.ContainsFunc(s.LoadBalancerSourceRanges, func(text string) bool {
		_, ok := k8s.ParsePrefix(strings.TrimSpace(text))
		return ok
	}) {
		c.hint(spec.Child("loadBalancerSourceRanges"), "has no valid CIDR: clients are not restricted")
	}
}
