package apiserver

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/nkp-proxy/nkp/k8s"
)

// resource is one kind of object at the API server, and which of its objects count.
type resource struct {
	kind    k8s.Kind
	plural  string // as it ends the path
	labels  string // selector
	fields  string // selector
	client  rest.Interface
	newList func() runtime.Object
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	missing bool // servers may not know the kind
}

func servicesOf(client kubernetes.Interface, selector string) resource {
	return resource{
		kind: k8s.KindService, plural: "services",
		labels: selector, fields: fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String(),
		client: client.CoreV1().RESTClient(), newList: func() runtime.Object { return &v1.ServiceList{} },
		watch: client.CoreV1().Services(metav1.NamespaceAll).Watch,
	}
}

// slicesOf does not select by proxy name: a slice that belongs to no Service here is ignored anyway.
func slicesOf(client kubernetes.Interface, selector string) resource {
	return resource{
		kind: k8s.KindEndpointSlice, plural: "endpointslices", labels: selector,
		client: client.DiscoveryV1().RESTClient(), newList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		watch: client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).Watch,
	}
}

func nodesOf(client kubernetes.Interface, selector string) resource {
	return resource{
		kind: k8s.KindNode, plural: "nodes", fields: selector,
		client: client.CoreV1().RESTClient(), newList: func() runtime.Object { return &v1.NodeList{} },
		watch: client.CoreV1().Nodes().Watch,
	}
}

// cidrRecheck is how often a server without ServiceCIDRs is asked whether it has them now.
const cidrRecheck = 10 * time.Minute

// serviceCIDRsOf takes a server that does not know the kind (before Kubernetes 1.33) for one without such objects.
func serviceCIDRsOf(client kubernetes.Interface) resource {
	c := client.NetworkingV1().ServiceCIDRs()
	return resource{
		kind: k8s.KindServiceCIDR, plural: "servicecidrs", missing: true,
		client: client.NetworkingV1().RESTClient(), newList: func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := c.Watch(ctx, o)
			if apierrors.IsNotFound(err) {
				silent := watch.NewFake()
				time.AfterFunc(cidrRecheck, silent.Stop)
				return silent, nil
			}
			return w, err
		},
	}
}

// list gives the objects trimmed. The server is asked not to compress them: that costs it several times the CPU time of all the
// rest, and client-go's streamed lists are not compressed either.
func (r *resource) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	answer, err := r.client.Get().Resource(r.plural).VersionedParams(&o, scheme.ParameterCodec).SetHeader("Accept-Encoding", "identity").Stream(ctx)
	if r.missing && apierrors.IsNotFound(err) {
		return &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: "0"}}, nil
	}
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	return r.decodeList(answer)
}

// listWatch gives what a reflector needs. Calls do not return while the server is away, so that the reflector's own
// pauses, which grow to a minute, do not apply.
func (r *resource) listWatch(h *health) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			r.selectIn(&o)
			err = h.try(ctx, r.kind, func() error {
				list, err = r.list(ctx, o)
				return err
			})
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (w watch.Interface, err error) {
			r.selectIn(&o)
			err = h.try(ctx, r.kind, func() error {
				w, err = r.watch(ctx, o)
				return err
			})
			return w, err
		},
	}, notStreamed{})
}

// notStreamed tells reflectors to list first and to watch then (k8s.io/client-go/util/watchlist). As a stream of events, one
// flushed after the other, the same objects cost server and client twice the time; the server's memory, for which streams were
// invented, it keeps by writing lists item by item since Kubernetes 1.33.
type notStreamed struct{}

// IsWatchListSemanticsUnSupported is what the reflector asks.
func (notStreamed) IsWatchListSemanticsUnSupported() bool { return true }

func (r *resource) selectIn(o *metav1.ListOptions) {
	o.LabelSelector, o.FieldSelector = r.labels, r.fields
}
