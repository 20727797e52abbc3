package differential

import (
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	discoveryv1defaults "k8s.io/kubernetes/pkg/apis/discovery/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/oracle"
)

// stored returns the object as an API server hands it out: with its defaults.
func stored(o k8s.Object) k8s.Object {
	switch o := o.(type) {
	case *v1.Service:
		o = o.DeepCopy()
		corev1defaults.SetObjectDefaults_Service(o)
		return o
	case *discoveryv1.EndpointSlice:
		written := o
		o = o.DeepCopy()
		discoveryv1defaults.SetObjectDefaults_EndpointSlice(o)
		for i := range o.Ports {
			if _, keep := o.Annotations[oracle.KeepNilNames]; keep && written.Ports[i].Name == nil {
				o.Ports[i].Name = nil
			}
		}
		return o
	}
	return o
}
