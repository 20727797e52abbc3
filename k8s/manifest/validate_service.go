package manifest

import (
	"fmt"
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

// validateService tells what an API server would refuse in a Service (after defaults), as far as the model
// reads it. The Detail of each error is complete in itself.
func validateService(o *v1.Service) field.ErrorList {
	meta, spec := field.NewPath("metadata"), field.NewPath("spec")
	list := validName(meta.Child("name"), o.Name, validation.IsDNS1123Label)
	list = append(list, validName(meta.Child("namespace"), o.Namespace, validation.IsDNS1123Label)...)
	list = append(list, oneOf(spec.Child("type"), o.Spec.Type, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort,
		v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName)...)
	if o.Spec.Type == v1.ServiceTypeExternalName {
		return list
	}
	list = append(list, validClusterIPs(&o.Spec, spec)...)
	list = append(list, validServicePorts(&o.Spec, spec.Child("ports"))...)
	for i, text := range o.Spec.ExternalIPs {
		_, errs := validReachable(spec.Child("externalIPs").Index(i), text)
		list = append(list, errs...)
	}
	ingress := field.NewPath("status", "loadBalancer", "ingress")
	for i, ing := range o.Status.LoadBalancer.Ingress {
		if ing.IP != "" {
			_, errs := validAddr(ingress.Index(i).Child("ip"), ing.IP)
			list = append(list, errs...)
		}
		if ing.IPMode != nil {
			list = append(list, oneOf(ingress.Index(i).Child("ipMode"), *ing.IPMode, v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)...)
		}
	}
	return append(list, validPolicies(&o.Spec, spec)...)
}

func validPolicies(s *v1.ServiceSpec, spec *field.Path) (list field.ErrorList) {
	if s.ExternalTrafficPolicy != "" {
		list = append(list, oneOf(spec.Child("externalTrafficPolicy"), s.ExternalTrafficPolicy,
			v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)...)
	}
	if s.InternalTrafficPolicy != nil {
		list = append(list, oneOf(spec.Child("internalTrafficPolicy"), *s.InternalTrafficPolicy,
			v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)...)
	}
	list = append(list, oneOf(spec.Child("sessionAffinity"), s.SessionAffinity, v1.ServiceAffinityNone, v1.ServiceAffinityClientIP)...)
	if c := s.SessionAffinityConfig; s.SessionAffinity == v1.ServiceAffinityClientIP && c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if t := *c.ClientIP.TimeoutSeconds; t < 1 || t > maxAffinitySeconds {
			list = append(list, invalid(spec.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), t,
				"%d is out of range 1-%d", t, maxAffinitySeconds))
		}
	}
	return list
}

func validClusterIPs(s *v1.ServiceSpec, spec *field.Path) (list field.ErrorList) {
	if s.ClusterIP == v1.ClusterIPNone {
		return nil
	}
	path := spec.Child("clusterIPs")
	if len(s.ClusterIPs) > 0 && s.ClusterIPs[0] != s.ClusterIP {
		list = append(list, invalid(path.Index(0), s.ClusterIPs[0], "%s differs from spec.clusterIP %s", brief.Quote(s.ClusterIPs[0]), brief.Quote(s.ClusterIP)))
	}
	if len(s.ClusterIPs) > 2 {
		list = append(list, invalid(path, s.ClusterIPs, "has %d entries: at most one for each family", len(s.ClusterIPs)))
	}
	for i, f := range s.IPFamilies {
		at := spec.Child("ipFamilies").Index(i)
		list = append(list, oneOf(at, f, v1.IPv4Protocol, v1.IPv6Protocol)...)
		if slices.Contains(s.IPFamilies[:i], f) {
			list = append(list, invalid(at, f, "%s is given twice", f))
		}
	}
	for i, text := range s.ClusterIPs {
		at := path.Index(i)
		if len(s.ClusterIPs) == 1 {
			at = spec.Child("clusterIP")
		}
		a, errs := validReachable(at, text)
		list = append(list, errs...)
		if errs != nil {
			continue
		}
		if i < len(s.IPFamilies) && string(s.IPFamilies[i]) != k8s.FamilyOf(a).String() {
			list = append(list, invalid(at, text, "%s is not an %s address, but spec.ipFamilies[%d] is %s", a, s.IPFamilies[i], i, s.IPFamilies[i]))
		}
		if len(s.IPFamilies) == 0 && i == 1 {
			list = append(list, invalid(at, text, "spec.ipFamilies is missing"))
		}
	}
	return list
}

func validServicePorts(s *v1.ServiceSpec, path *field.Path) (list field.ErrorList) {
	if len(s.Ports) == 0 && s.ClusterIP != v1.ClusterIPNone {
		return field.ErrorList{required(path)}
	}
	type key struct {
		port     int32
		protocol k8s.Protocol
	}
	names, ports, nodePorts := map[string]int{}, map[key]int{}, map[key]int{}
	for i := range s.Ports {
		p, at := &s.Ports[i], path.Index(i)
		if p.Name != "" {
			list = append(list, validName(at.Child("name"), p.Name, validation.IsDNS1123Label)...)
		} else if len(s.Ports) > 1 {
			list = append(list, field.Required(at.Child("name"), "is required where there are several ports"))
		}
		if j, ok := names[p.Name]; ok && p.Name != "" {
			list = append(list, invalid(at.Child("name"), p.Name, "%s is also the name of ports[%d]", brief.Quote(p.Name), j))
		}
		names[p.Name] = i
		list = append(list, validPort(at.Child("port"), p.Port)...)
		list = append(list, validProtocol(at.Child("protocol"), p.Protocol)...)
		if j, ok := ports[key{p.Port, p.Protocol}]; ok {
			list = append(list, invalid(at, p.Port, "%d/%s is also in ports[%d]", p.Port, p.Protocol, j))
		}
		ports[key{p.Port, p.Protocol}] = i
		if p.NodePort == 0 {
			continue
		}
		list = append(list, validPort(at.Child("nodePort"), p.NodePort)...)
		if j, ok := nodePorts[key{p.NodePort, p.Protocol}]; ok {
			list = append(list, invalid(at.Child("nodePort"), p.NodePort, "%d/%s is also in ports[%d]", p.NodePort, p.Protocol, j))
		}
		nodePorts[key{p.NodePort, p.Protocol}] = i
	}
	return list
}

// serviceHints tells what a Service says that has no effect, or not the one that was probably meant.
func serviceHints(o *v1.Service) (hints []k8s.Warning) {
	hint := func(path *field.Path, format string, args ...any) {
		hints = append(hints, k8s.Warning{Field: path.String(), Text: fmt.Sprintf(format, args...)})
	}
	s, spec := &o.Spec, field.NewPath("spec")
	if s.Type == v1.ServiceTypeExternalName || s.ClusterIP == v1.ClusterIPNone {
		return nil
	}
	for i, p := range s.Ports {
		if p.NodePort != 0 && s.Type == v1.ServiceTypeClusterIP {
			hint(spec.Child("ports").Index(i).Child("nodePort"), "an API server refuses it for type ClusterIP; it is served all the same")
		}
	}
	if len(s.LoadBalancerSourceRanges) > 0 && !slices.ContainsFunc(s.LoadBalancerSourceRanges, func(text string) bool {
		_, ok := k8s.ParsePrefix(strings.TrimSpace(text))
		return ok
	}) {
		hint(spec.Child("loadBalancerSourceRanges"), "has no valid CIDR: clients are not restricted")
	}
	return hints
}
