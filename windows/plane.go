package windows

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/reconcile"
)

// Plane keeps HNS in step with the model. Its methods are safe for concurrent use.
type Plane struct {
	opts   Options
	inbox  *dataplane.Inbox
	status statusRecord
	calls  calls
	loop   *dataplane.Loop // whether Run makes progress
	// background has what does not hold up a sync. Run waits for it.
	background sync.WaitGroup

	mu sync.Mutex // protects all below: one goroutine at a time talks to HNS
	// The model that was received last. ports is nil until there is one.
	node   k8s.Node
	ports  map[k8s.PortName]*k8s.ServicePort
	checks map[k8s.ServiceName]k8s.HealthCheck
	since  time.Time // arrival of the oldest change that is not programmed; zero: all are
	// host is nil until HNS could be opened.
	host   hns.Host
	engine *reconcile.Engine
	// fullRead is when a read of every object began last; rereading is set while it goes on.
	fullRead  time.Time
	rereading bool
	// statesRead is when the States of load balancers were read last.
	statesRead time.Time
	// portsRead is when the free port blocks were counted last.
	portsRead time.Time
	// enumerated is when the network was read and HNS's objects were enumerated last. The zero Time: the next sync must do that,
	// because the last one left work.
	enumerated time.Time
	// network is the pods' network as it was read last, named the addresses of its endpoints that were looked up by name.
	network hns.Network
	named   map[string]netip.Addr
	watch   watch
	// notReady counts the consecutive checks that found the CNI plugin not ready.
	notReady int
}

// New returns a Plane. It does not touch HNS before Run or Diff.
func New(opts Options) (*Plane, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	p := &Plane{opts: opts, loop: dataplane.NewLoop("HNS"), named: map[string]netip.Addr{}, watch: watch{signal: make(chan struct{}, 1)}}
	p.calls.loop = p.loop
	p.inbox = dataplane.NewInbox(func(fs ...k8s.Family) {
		p.status.queued(p.opts.now())
		p.opts.Hooks.Queued(fs...)
	})
	p.status.init(opts.NetworkName)
	return p, nil
}

// Loops returns what the plane's goroutines work on and since when.
func (p *Plane) Loops() []*dataplane.Loop { return []*dataplane.Loop{p.loop} }

// Update takes the model of the Services; the first call must carry everything in changes. It does not block on HNS, and the model
// may change once it has returned.
func (p *Plane) Update(model *k8s.Model, changes k8s.Changes) { p.inbox.Put(model, changes) }

// Run waits for the first Update, and keeps HNS in step with the model until the context ends; HNS is left unchanged then. Errors are
// reported in Status, and what failed is tried again. It returns nil when the context has ended.
func (p *Plane) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer p.background.Wait()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.watch.unregister()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.inbox.Signal:
		case <-p.watch.signal:
			p.mu.Lock()
			p.notReady = 0 // the CNI plugin is at work: its other objects follow soon
			p.mu.Unlock()
		case <-timer.C:
		}
		began := p.opts.now()
		p.loop.Work("a sync with HNS")
		next := p.sync(ctx)
		p.loop.Rest()
		// Changes that arrive while HNS is at work, or right after, go into one sync.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(0, p.opts.MinSync-p.opts.now().Sub(began))):
		}
		timer.Reset(max(0, next.Sub(p.opts.now())))
	}
}

// takeUpdates applies what has arrived in the inbox, and reports whether there is a model by now. p.mu is held.
func (p *Plane) takeUpdates() (ready bool) {
	u := p.inbox.Take()
	if u == nil {
		return p.ports != nil
	}
	if p.ports == nil {
		p.ports, p.checks = map[k8s.PortName]*k8s.ServicePort{}, map[k8s.ServiceName]k8s.HealthCheck{}
	}
	p.node = u.Facts.Node
	if p.since.IsZero() {
		p.since = u.Arrived
	}
	for name, sp := range u.Ports {
		if sp == nil {
			delete(p.ports, name)
		} else {
			p.ports[name] = sp
		}
	}
	for name, c := range u.HealthChecks {
		if c == nil {
			delete(p.checks, name)
		} else {
			p.checks[name] = *c
		}
	}
	return true
}
