package oracle

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// stored returns the object as an API server hands it out: with the defaults of the fields that the model reads
// (pkg/apis/core/v1 and pkg/apis/discovery/v1 of Kubernetes, SetObjectDefaults).
func stored(o k8s.Object) k8s.Object {
	switch o := o.(type) {
	case *v1.Service:
		o = o.DeepCopy()
		setServiceDefaults(&o.Spec)
		return o
	case *discoveryv1.EndpointSlice:
		o = o.DeepCopy()
		_, keep := o.Annotations[KeepNilNames]
		for i := range o.Ports {
			p := &o.Ports[i]
			if p.Name == nil && !keep {
				p.Name = new(string)
			}
			if p.Protocol == nil {
				tcp := v1.ProtocolTCP
				p.Protocol = &tcp
			}
		}
		return o
	}
	return o
}

func setServiceDefaults(s *v1.ServiceSpec) {
	s.Type = cmp.Or(s.Type, v1.ServiceTypeClusterIP)
	for i := range s.Ports {
		s.Ports[i].Protocol = cmp.Or(s.Ports[i].Protocol, v1.ProtocolTCP)
	}

	s.SessionAffinity = cmp.Or(s.SessionAffinity, v1.ServiceAffinityNone)
	switch c := s.SessionAffinityConfig; {
	case s.SessionAffinity == v1.ServiceAffinityNone:
		s.SessionAffinityConfig = nil
	case c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil:
		seconds := v1.DefaultClientIPServiceAffinitySeconds
		s.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}

	external := s.Type == v1.ServiceTypeNodePort || s.Type == v1.ServiceTypeLoadBalancer
	if external && s.ExternalTrafficPolicy == "" {
		s.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
	}
	if s.InternalTrafficPolicy == nil && (external || s.Type == v1.ServiceTypeClusterIP) {
		policy := v1.ServiceInternalTrafficPolicyCluster
		s.InternalTrafficPolicy = &policy
	}
}
