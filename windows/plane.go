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

// Plane keeps HNS in line with the model. Its methods are safe for concurrent use.
type Plane struct {
	opts  Options
	inbox *dataplane.Inbox
	board board
	calls calls
	life  *dataplane.Loop // of Run

	mu sync.Mutex // protects all below: one goroutine at a time talks to HNS
	// What the model last said. ports is nil until it has said anything.
	node   k8s.Node
	ports  map[k8s.PortName]*k8s.ServicePort
	checks map[k8s.ServiceName]k8s.HealthCheck
	since  time.Time // arrival of the oldest change that is not programmed; zero: all are
	// host is nil until HNS could be opened.
	host   hns.Host
	engine *reconcile.Engine
	// fullRead is when every object was read last.
	fullRead time.Time
	// network is the id of the network that named is about: the addresses of endpoints that were looked up by name.
	network string
	named   map[string]netip.Addr
	// waits counts the looks in a row that found the CNI plugin not ready.
	waits int
}

// New returns a Plane. It does not touch HNS before Run or Diff.
func New(opts Options) (*Plane, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	p := &Plane{opts: opts, life: dataplane.NewLoop("HNS"), named: map[string]netip.Addr{}}
	p.calls.life = p.life
	p.inbox = dataplane.NewInbox(func(fs ...k8s.Family) {
		p.board.queued(p.opts.now())
		p.opts.Hooks.Queued(fs...)
	})
	p.board.init(opts.NetworkName)
	return p, nil
}

// Loops returns the signs of life of the plane's goroutines.
func (p *Plane) Loops() []*dataplane.Loop { return []*dataplane.Loop{p.life} }

// Update takes the model of the Services; the first call must carry everything in changes. It does not block on HNS, and keeps
// nothing of the model that changes later.
func (p *Plane) Update(model *k8s.Model, changes k8s.Changes) { p.inbox.Put(model, changes) }

// Run keeps HNS in line until the context ends, and leaves it as it is then. It begins with the first Update. Errors are kept in
// Status and tried again: Run gives none but the context's end, which is nil.
func (p *Plane) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.inbox.Bell:
		case <-timer.C:
		}
		began := p.opts.now()
		p.life.Work("a sync with HNS")
		next := p.sync(ctx)
		p.life.Rest()
		// Changes that arrive while HNS is at work, or right after, go into one sync.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(0, p.opts.MinSync-p.opts.now().Sub(began))):
		}
		timer.Reset(max(0, next.Sub(p.opts.now())))
	}
}

// takeUpdates takes up what the model brought, and reports whether it has brought anything so far. p.mu is held.
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
