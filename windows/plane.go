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
	runner dataplane.Runner // locked while something talks to HNS
	status statusRecord
	calls  calls
	// background has what does not hold up a sync. Run waits for it.
	background sync.WaitGroup

	// The runner's lock protects all below.

	// The model that was received last. ports is nil until there is one.
	node   k8s.Node
	ports  map[k8s.PortName]*k8s.ServicePort
	checks map[k8s.ServiceName]k8s.HealthCheck
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
	// enumerated is when the network was read and HNS's objects were enumerated last. The zero Time: the next
	// sync must do that, because the last one left work.
	enumerated time.Time
	// network is the pods' network as it was read last, named the addresses of its endpoints that were looked
	// up by name.
	network  hns.Network
	named    map[string]netip.Addr
	watch    watch
	notReady dataplane.Backoff // after syncs that failed, or left work for the CNI plugin
}

// New returns a Plane. It does not touch HNS before Run or Diff.
func New(opts Options) (*Plane, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	p := &Plane{opts: opts, named: map[string]netip.Addr{}, watch: watch{signal: dataplane.NewSignal()}}
	r := &p.runner
	r.Loop, r.Now = dataplane.NewLoop("HNS"), opts.now
	r.Rest = func(now time.Time) time.Duration { return opts.MinSync - now.Sub(r.Start) }
	r.In = dataplane.NewInbox(func(fs ...k8s.Family) {
		now := p.opts.now()
		p.status.update(func(b *statusRecord) { b.s.Queued, b.done = now, false })
		p.opts.Hooks.Queued(fs...)
	})
	p.calls.loop = r.Loop
	p.status.s.Network = opts.NetworkName
	return p, nil
}

// Loops returns what the plane's goroutines work on and since when.
func (p *Plane) Loops() []*dataplane.Loop { return []*dataplane.Loop{p.runner.Loop} }

// Update takes the model of the Services; the first call must carry everything in changes. It does not block
// on HNS, and the model may change once it has returned.
func (p *Plane) Update(model *k8s.Model, changes k8s.Changes) { p.runner.In.Put(model, changes) }

// Run waits for the first Update, and keeps HNS in step with the model until the context ends; HNS is left
// unchanged then. Errors are reported in Status, and what failed is tried again. It returns nil when the
// context has ended.
func (p *Plane) Run(ctx context.Context) error {
	p.runner.Run(ctx, &steps{Plane: p}, "a sync with HNS")
	p.background.Wait()
	p.runner.Lock()
	defer p.runner.Unlock()
	p.watch.unregister()
	return nil
}

// steps is the Plane as its runner sees it.
type steps struct {
	*Plane
	next time.Time // when to sync again if nothing changes
}

// Take is part of dataplane.Steps.
func (p *steps) Take(u *dataplane.Update) {
	if p.ports == nil {
		p.ports, p.checks = map[k8s.PortName]*k8s.ServicePort{}, map[k8s.ServiceName]k8s.HealthCheck{}
	}
	p.node = u.Facts.Node
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
}

// Changed is part of dataplane.Steps.
func (p *steps) Changed() <-chan struct{} { return p.watch.signal }

// Step is part of dataplane.Steps.
func (p *steps) Step(ctx context.Context) error {
	if p.runner.Noticed {
		p.runner.Noticed, p.notReady = false, 0 // the CNI plugin is at work: its other objects follow soon
	}
	p.next = p.sync(ctx)
	return nil
}

// Next is part of dataplane.Steps.
func (p *steps) Next() time.Time { return p.next }
