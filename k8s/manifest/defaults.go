package manifest

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// setDefaults sets the API server's defaults of the fields that the model reads.
func setDefaults(o k8s.Object) {
	switch o := o.(type) {
	case *v1.Service:
		setServiceDefaults(o)
	case *discoveryv1.EndpointSlice:
		if o.Namespace == "" {
			o.Namespace = v1.NamespaceDefault
		}
		name, protocol := "", v1.ProtocolTCP
		for i := range o.Ports {
			if o.Ports[i].Name == nil {
				o.Ports[i].Name = &name
			}
			if o.Ports[i].Protocol == nil {
				o.Ports[i].Protocol = &protocol
			}
		}
	default:
		o.SetNamespace("")
	}
}

func setServiceDefaults(o *v1.Service) {
	if o.Namespace == "" {
		o.Namespace = v1.NamespaceDefault
	}
	s := &o.Spec
	if s.Type == "" {
		s.Type = v1.ServiceTypeClusterIP
	}
	for i := range s.Ports {
		s.Ports[i].Protocol = cmp.Or(s.Ports[i].Protocol, v1.ProtocolTCP)
	}
	if s.SessionAffinity == "" {
		s.SessionAffinity = v1.ServiceAffinityNone
	}
	if s.SessionAffinity == v1.ServiceAffinityClientIP {
		if c := s.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			seconds := v1.DefaultClientIPServiceAffinitySeconds
			s.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}
	}
	if s.Type == v1.ServiceTypeExternalName {
		return
	}
	if s.InternalTrafficPolicy == nil {
		policy := v1.ServiceInternalTrafficPolicyCluster
		s.InternalTrafficPolicy = &policy
	}
	if s.ExternalTrafficPolicy == "" && (s.Type != v1.ServiceTypeClusterIP || len(s.ExternalIPs) > 0) {
		s.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
	}
	setClusterIPDefaults(s)
}

// setClusterIPDefaults completes clusterIP, clusterIPs and ipFamilies from each other.
func setClusterIPDefaults(s *v1.ServiceSpec) {
	if s.ClusterIP == "" && len(s.ClusterIPs) > 0 {
		s.ClusterIP = s.ClusterIPs[0]
	}
	if len(s.ClusterIPs) == 0 && s.ClusterIP != "" {
		s.ClusterIPs = []string{s.ClusterIP}
	}
	if len(s.IPFamilies) > 0 || s.ClusterIP == v1.ClusterIPNone {
		return
	}
	var families []v1.IPFamily
	for _, text := range s.ClusterIPs {
		a, ok := k8s.ParseAddr(text)
		if !ok {
			return // validation reports it
		}
		families = append(families, v1.IPFamily(k8s.FamilyOf(a).String()))
	}
	s.IPFamilies = families
}
