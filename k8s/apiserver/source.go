package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/nkp-proxy/nkp/k8s"
)

// How long to wait for the first list of Nodes and of ServiceCIDRs, once Services and EndpointSlices are
// listed.
const (
	nodeTimeout = 30 * time.Second
	cidrTimeout = 5 * time.Second
)

// Options select the API server and the objects to follow.
type Options struct {
	// Kubeconfig is a file; Master is the URL of the API server and overrides the file's. Both "": the
	// service account of the pod that this process runs in.
	Kubeconfig, Master string
	// TokenFile, CAFile, CertFile and KeyFile override the kubeconfig's credentials and its CA certificates.
	TokenFile, CAFile, CertFile, KeyFile string
	// NodeName is the name of the only Node that is followed.
	NodeName string
	// ServiceProxyName selects the Services whose label service.kubernetes.io/service-proxy-name has this
	// value; "": those without the label.
	ServiceProxyName string
	// UserAgent is what the API server logs about this client.
	UserAgent string
	// QPS and Burst bound requests per second; 0: kube-proxy's defaults, 5 and 10.
	QPS   float32
	Burst int
	// ContentType is the encoding of objects on the wire; "": protobuf.
	ContentType string
}

// Source implements k8s.Source for an API server, with kube-proxy's selectors.
//
// It keeps the last known state: while the server is unreachable nothing changes. Once the server answers
// again (Run never gives up), exactly the differences are reported, deletions too. Its methods may be called
// from any goroutine, but Run only once.
type Source struct {
	url       string
	http      *http.Client
	client    kubernetes.Interface
	resources []resource
	health    *health
	transport transport
	lists     firstLists
}

// NewSource reads the configuration and prepares a client. It does not connect: a server that is unreachable
// is no error.
func NewSource(opts Options) (*Source, error) {
	services, err := serviceSelector(opts.ServiceProxyName)
	if err != nil {
		return nil, err
	}
	cfg, url, err := restConfig(opts)
	if err != nil {
		return nil, err
	}
	health := newHealth(url, opts.NodeName)
	s := &Source{url: url, health: health}
	s.transport.health = health
	cfg.Wrap(s.transport.wrap)
	hc, client, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	s.http, s.client = hc, client
	s.resources = resourcesOf(client, services, opts.NodeName)
	return s, nil
}

// serviceSelector returns kube-proxy's label selector: Services without the label, or those with proxyName as
// its value.
func serviceSelector(proxyName string) (string, error) {
	op, values := selection.DoesNotExist, []string(nil)
	if proxyName != "" {
		op, values = selection.Equals, []string{proxyName}
	}
	r, err := labels.NewRequirement(k8s.LabelServiceProxyName, op, values)
	if err != nil {
		return "", fmt.Errorf("%q cannot be the value of label %s: %w",
			proxyName, k8s.LabelServiceProxyName, err)
	}
	return r.String(), nil
}

// URL is the API server's address.
func (s *Source) URL() string { return s.url }

// Answers reports whether the API server answered the most recent request for each resource.
func (s *Source) Answers() bool { return s.AwaySince().IsZero() }

// AwaySince returns when the API server stopped answering; the zero Time: it answers.
func (s *Source) AwaySince() time.Time { return s.health.awaySince() }

// Run is part of Source. It ends with the context, and so does every goroutine that it started.
func (s *Source) Run(ctx context.Context, sink k8s.Sink) error {
	s.lists.start = time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer utilnet.CloseIdleConnectionsFor(s.http.Transport)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	// Each kind has a reflector, and a store that passes the differences on.
	to := &relay{health: s.health, sink: sink}
	s.health.onChange(to.report)
	listed := make(map[k8s.Kind]<-chan struct{}, len(s.resources))
	for i := range s.resources {
		r := &s.resources[i]
		store := newStore(r, to, func(objects int) {
			s.lists.record(r.kind, objects, s.transport.bytes(r.plural))
		})
		listed[r.kind] = store.listed
		reflector := cache.NewReflectorWithOptions(r.listWatch(s.health), r.kind.New(), store,
			cache.ReflectorOptions{Name: string(r.kind)})
		wg.Go(func() { followAlways(ctx, reflector) })
	}

	if awaitAll(ctx, listed) {
		to.synced()
	}
	<-ctx.Done()
	return nil
}

// How long a reflector waits before it starts over after an invalid response. An unreachable server is
// handled elsewhere (health.try). The numbers are those of client-go's reflectors (defaultBackoffInit and
// others).
var reflectorBackoff = wait.Backoff{
	Duration: 800 * time.Millisecond,
	Cap:      30 * time.Second,
	Steps:    38,
	Factor:   2,
	Jitter:   1,
}

// followAlways lists and watches until the context ends. It drops errors because health has already recorded
// them: the reflector's own Run would log them a second time.
func followAlways(ctx context.Context, r *cache.Reflector) {
	delay := reflectorBackoff.DelayWithReset(clock.RealClock{}, 2*time.Minute)
	_ = delay.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		_ = r.ListAndWatchWithContext(ctx)
		return false, nil
	})
}

// awaitAll waits for the first complete state: Services and EndpointSlices without limit, the rest up to a
// timeout. It returns false if the context ended.
func awaitAll(ctx context.Context, listed map[k8s.Kind]<-chan struct{}) bool {
	for _, w := range []struct {
		kind  k8s.Kind
		limit time.Duration // 0: no limit
	}{
		{k8s.KindService, 0},
		{k8s.KindEndpointSlice, 0},
		{k8s.KindNode, nodeTimeout},
		{k8s.KindServiceCIDR, cidrTimeout},
	} {
		var timeout <-chan time.Time
		if w.limit > 0 {
			timeout = time.After(w.limit)
		}
		select {
		case <-ctx.Done():
			return false
		case <-listed[w.kind]:
		case <-timeout:
		}
	}
	return true
}
