package apiserver

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
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
	"k8s.io/utils/ptr"

	"github.com/nkp-proxy/nkp/k8s"
)

// resource is one kind of object at the API server, with selectors for the objects to follow.
type resource struct {
	kind   k8s.Kind
	plural string // last element of the URL path
	client rest.Interface
	labels string // selector
	fields string // selector

	kept kept // of all pages of the last list; used by the reflector alone
}

// resourcesOf returns what a Source follows, with kube-proxy's selectors. EndpointSlices are not selected by
// proxy name: a slice that belongs to no Service here is ignored anyway.
func resourcesOf(c kubernetes.Interface, services, node string) []resource {
	core := c.CoreV1().RESTClient()
	notHeadless := fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String()
	thisNode := fields.OneTermEqualSelector("metadata.name", node).String()
	return []resource{
		{kind: k8s.KindService, plural: "services", client: core, labels: services, fields: notHeadless},
		{
			kind: k8s.KindEndpointSlice, plural: "endpointslices",
			client: c.DiscoveryV1().RESTClient(), labels: "!" + v1.IsHeadlessService,
		},
		{kind: k8s.KindNode, plural: "nodes", client: core, fields: thisNode},
		{kind: k8s.KindServiceCIDR, plural: "servicecidrs", client: c.NetworkingV1().RESTClient()},
	}
}

// versioned reports whether the resourceVersions of the kind are followed (k8s.Versions).
func (r *resource) versioned() bool {
	return r.kind == k8s.KindService || r.kind == k8s.KindEndpointSlice
}

// cidrRecheck is how often a server without ServiceCIDRs is asked whether it has them now.
const cidrRecheck = 10 * time.Minute

// unknown reports whether the server lacks an optional kind. A server without ServiceCIDRs (before Kubernetes
// 1.33) is treated as one that has no such objects.
func (r *resource) unknown(err error) bool {
	return r.kind == k8s.KindServiceCIDR && apierrors.IsNotFound(err)
}

func (r *resource) request(o *metav1.ListOptions) *rest.Request {
	o.LabelSelector, o.FieldSelector = r.labels, r.fields
	return r.client.Get().Resource(r.plural).VersionedParams(o, scheme.ParameterCodec)
}

// list returns the objects, trimmed. It asks the server not to compress them, because compression costs the
// server several times the CPU time of everything else. client-go's streamed lists are not compressed either.
// Objects that are left out of all pages so far are in r.kept.
func (r *resource) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Continue == "" {
		r.kept = kept{}
	}
	ctx = context.WithValue(ctx, objectByObject{}, true)
	answer, err := r.request(&o).SetHeader("Accept-Encoding", "identity").Stream(ctx)
	if r.unknown(err) {
		return &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: "0"}}, nil
	}
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	list, err := r.decodeList(answer)
	if err != nil {
		return nil, err // not a nil list in an interface
	}
	return list, nil
}

func (r *resource) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	w, err := r.request(&o).Timeout(time.Duration(ptr.Deref(o.TimeoutSeconds, 0)) * time.Second).Watch(ctx)
	if r.unknown(err) {
		silent := watch.NewFake()
		time.AfterFunc(cidrRecheck, silent.Stop)
		return silent, nil
	}
	return w, err
}

// listWatch returns the ListerWatcher for a reflector. Its calls block while the server is unreachable, so
// that the reflector's own pauses, which grow to a minute, do not apply.
func (r *resource) listWatch(h *health) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(
			ctx context.Context, o metav1.ListOptions,
		) (list runtime.Object, err error) {
			err = h.try(ctx, r.kind, func() error {
				list, err = r.list(ctx, o)
				return err
			})
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (w watch.Interface, err error) {
			err = h.try(ctx, r.kind, func() error {
				w, err = r.watch(ctx, o)
				return err
			})
			return w, err
		},
	}, notStreamed{})
}

// notStreamed makes reflectors list first and then watch (k8s.io/client-go/util/watchlist), because streaming
// the same objects as events costs twice the time and more memory
// (README.md). Streams were invented to save memory on the server; since
// Kubernetes 1.33 it saves that by writing lists item by item.
type notStreamed struct{}

// IsWatchListSemanticsUnSupported is called by the reflector.
func (notStreamed) IsWatchListSemanticsUnSupported() bool { return true }
