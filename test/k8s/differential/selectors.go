package differential

import (
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/kubernetes/pkg/proxy/apis"
)

// The selectors of kube-proxy's informers (cmd/kube-proxy/app/server.go): what does not match, it never sees.
var (
	noProxyName = absent(apis.LabelServiceProxyName)
	noHeadless  = absent(v1.IsHeadlessService)
	hasCluster  = fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone)
)

func absent(label string) labels.Selector {
	r, err := labels.NewRequirement(label, selection.DoesNotExist, nil)
	if err != nil {
		panic(err)
	}
	return labels.NewSelector().Add(*r)
}

func seesService(o *v1.Service) bool {
	return noProxyName.Matches(labels.Set(o.Labels)) && hasCluster.Matches(fields.Set{"spec.clusterIP": o.Spec.ClusterIP})
}

func seesSlice(o *discoveryv1.EndpointSlice) bool { return noHeadless.Matches(labels.Set(o.Labels)) }
