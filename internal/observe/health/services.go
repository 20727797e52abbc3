package health

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/httpguard"
	"github.com/nkp-proxy/nkp/k8s"
)

// ServicesOptions are the settings of Services.
type ServicesOptions struct {
	// NodePortAddresses restricts the addresses that are listened on, per family, as k8s.Options has it: to
	// those of the node inside these prefixes. NodePortPrimary adds the first of the node's IPs of each
	// family.
	NodePortAddresses []netip.Prefix
	NodePortPrimary   bool

	// Healthy reports whether nkp itself is healthy (Proxy.Healthy). It is called for every request, on any
	// goroutine.
	Healthy func() bool
	// OnFailure, if not nil, is called, once for each distinct error, when a Service's health check cannot
	// listen: kube-proxy writes the Event FailedToStartServiceHealthcheck then.
	OnFailure func(name k8s.ServiceName, at netip.AddrPort, err error)
	Log       *slog.Logger

	retry time.Duration // before the second attempt to listen; retryFirst but in tests
}

// Services serves the health check node ports: each family and port has a listener of its own at every
// address that NodePorts are served at. Make it with NewServices and start Run once; Update and Failures may
// be called before, after and meanwhile, from any goroutine.
type Services struct {
	opts  ServicesOptions
	guard *httpguard.Guard
	news  dataplane.Signal // has a token while there is something to do

	mu     sync.Mutex // protects all below; never held while listening
	checks map[k8s.ServiceName]k8s.HealthCheck
	node   k8s.Node
	failed map[listenKey]error
}

// NewServices returns Services that listen nowhere yet.
func NewServices(opts ServicesOptions) *Services {
	if opts.retry == 0 {
		opts.retry = retryFirst
	}
	return &Services{
		opts:   opts,
		guard:  httpguard.New(limits, opts.Log),
		news:   dataplane.NewSignal(),
		checks: map[k8s.ServiceName]k8s.HealthCheck{},
	}
}

// Update takes the model's changes. Endpoint counts are in force when it returns; Run opens and closes ports
// soon after. It never blocks, and does not keep the maps of model.
func (s *Services) Update(model *k8s.Model, changes k8s.Changes) {
	if s.update(model, changes) {
		s.news.Notify()
	}
}

// update reports whether Run may have to listen somewhere else than before.
func (s *Services) update(model *k8s.Model, changes k8s.Changes) (moved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.node.IPs, model.Node.IPs) || !slices.Equal(s.node.Local, model.Node.Local) {
		s.node, moved = model.Node, true
	}
	for name, h := range changes.HealthChecks {
		if h == nil {
			delete(s.checks, name)
			moved = true
			continue
		}
		before, had := s.checks[name]
		s.checks[name] = *h
		moved = moved || !had || before.Port != h.Port || (before.Local4 < 0) != (h.Local4 < 0) ||
			(before.Local6 < 0) != (h.Local6 < 0)
	}
	return moved
}

// wanted returns all ports that should be listened on.
func (s *Services) wanted() map[listenKey]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[listenKey]struct{}{}
	for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
		addrs := listenAddrs(f, &s.node, &s.opts)
		for name, h := range s.checks {
			if localEndpoints(h, f) < 0 {
				continue
			}
			for _, a := range addrs {
				want[listenKey{name, netip.AddrPortFrom(a, h.Port)}] = struct{}{}
			}
		}
	}
	return want
}

// check returns the state of a Service in one family; ok is false if it has no health check there.
func (s *Services) check(name k8s.ServiceName, f k8s.Family) (local int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.checks[name]
	local = localEndpoints(h, f)
	return local, ok && local >= 0
}

func localEndpoints(h k8s.HealthCheck, f k8s.Family) int {
	if f == k8s.IPv6 {
		return h.Local6
	}
	return h.Local4
}

// Failures describes the ports that cannot be listened on now, sorted; for status.
func (s *Services) Failures() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	texts := make([]string, 0, len(s.failed))
	for k, err := range s.failed {
		texts = append(texts, k.String()+": "+err.Error())
	}
	slices.Sort(texts)
	return texts
}
