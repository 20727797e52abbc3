package k8s

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// apiResource is one kind of object at the API server, and which of its objects count.
type apiResource struct {
	kind   Kind
	object runtime.Object
	labels string // selector
	fields string // selector
	list   func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch  func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func servicesOf(client kubernetes.Interface, selector string) apiResource {
	c := client.CoreV1().Services(metav1.NamespaceAll)
	return apiResource{
		kind: KindService, object: &v1.Service{},
		labels: selector, fields: fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String(),
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		watch: c.Watch,
	}
}

// slicesOf does not select by proxy name: a slice that belongs to no Service here is ignored anyway.
func slicesOf(client kubernetes.Interface, selector string) apiResource {
	c := client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	return apiResource{
		kind: KindEndpointSlice, object: &discoveryv1.EndpointSlice{}, labels: selector,
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		watch: c.Watch,
	}
}

func nodesOf(client kubernetes.Interface, selector string) apiResource {
	c := client.CoreV1().Nodes()
	return apiResource{
		kind: KindNode, object: &v1.Node{}, fields: selector,
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		watch: c.Watch,
	}
}

// cidrRecheck is how often a server without ServiceCIDRs is asked whether it has them now.
const cidrRecheck = 10 * time.Minute

// serviceCIDRsOf takes a server that does not know the kind (before Kubernetes 1.33) for one without such objects.
func serviceCIDRsOf(client kubernetes.Interface) apiResource {
	c := client.NetworkingV1().ServiceCIDRs()
	return apiResource{
		kind: KindServiceCIDR, object: &networkingv1.ServiceCIDR{},
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := c.List(ctx, o)
			if apierrors.IsNotFound(err) {
				return &networkingv1.ServiceCIDRList{ListMeta: metav1.ListMeta{ResourceVersion: "0"}}, nil
			}
			return list, err
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := c.Watch(ctx, o)
			if apierrors.IsNotFound(err) && o.SendInitialEvents != nil {
				return nil, apierrors.NewBadRequest("no ServiceCIDRs") // makes the reflector list them
			}
			if apierrors.IsNotFound(err) {
				silent := watch.NewFake()
				time.AfterFunc(cidrRecheck, silent.Stop)
				return silent, nil
			}
			return w, err
		},
	}
}

// listWatch gives what a reflector needs. Calls do not return while the server is away, so that the reflector's own
// pauses, which grow to a minute, do not apply.
func (r *apiResource) listWatch(client kubernetes.Interface, h *health) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			r.selectIn(&o)
			err = h.try(ctx, r.kind, o.SendInitialEvents != nil, func() error {
				list, err = r.list(ctx, o)
				return err
			})
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (w watch.Interface, err error) {
			r.selectIn(&o)
			err = h.try(ctx, r.kind, o.SendInitialEvents != nil, func() error {
				w, err = r.watch(ctx, o)
				return err
			})
			return w, err
		},
	}, client)
}

func (r *apiResource) selectIn(o *metav1.ListOptions) {
	o.LabelSelector, o.FieldSelector = r.labels, r.fields
}
