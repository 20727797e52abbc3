package manifest

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// setDefaults sets the API server's defaults without which the model would be another.
func setDefaults(o k8s.Object) {
	switch o := o.(type) {
	case *v1.Service:
		o.Namespace = cmp.Or(o.Namespace, v1.NamespaceDefault)
		if o.Spec.Type != v1.ServiceTypeExternalName {
			setClusterIPDefaults(&o.Spec)
		}
	case *discoveryv1.EndpointSlice:
		o.Namespace = cmp.Or(o.Namespace, v1.NamespaceDefault)
		name, protocol := "", v1.ProtocolTCP
		for i := range o.Ports {
			o.Ports[i].Name = cmp.Or(o.Ports[i].Name, &name)
			o.Ports[i].Protocol = cmp.Or(o.Ports[i].Protocol, &protocol)
		}
	default:
		o.SetNamespace("")
	}
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
	for _, text := range s.ClusterIPs {
		a, ok := k8s.ParseAddr(text)
		if !ok {
			return // validate reports it
		}
		s.IPFamilies = append(s.IPFamilies, v1.IPFamily(k8s.FamilyOf(a).String()))
	}
}
