package windows

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
	"github.com/nkp-proxy/nkp/windows/reconcile"
)

// Plane keeps HNS in line with the model. Its methods are safe for concurrent use.
type Plane struct {
	opts   Options
	bell   chan struct{} // holds one token while there is news
	inputs inputs
	board  board
	calls  calls
	life   *dataplane.Loop // of Run

	mu sync.Mutex // protects all below: one goroutine at a time talks to HNS
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

// New gives a Plane. It does not touch HNS before Run, Diff or Plan.
func New(opts Options) (*Plane, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	p := &Plane{opts: opts, bell: make(chan struct{}, 1), life: dataplane.NewLoop("HNS"), named: map[string]netip.Addr{}}
	p.calls.life = p.life
	p.inputs.queued = p.opts.Queued
	p.board.init(opts.NetworkName)
	return p, nil
}

// Loops returns the signs of life of the plane's goroutines.
func (p *Plane) Loops() []*dataplane.Loop { return []*dataplane.Loop{p.life} }

// Update takes the model of the Services; the first call must carry everything in changes. It does not block on HNS, and keeps
// nothing of the model that changes later.
func (p *Plane) Update(model *k8s.Model, changes k8s.Changes) {
	p.inputs.update(model, changes)
	p.board.queued(p.opts.now())
	p.ring()
}

func (p *Plane) ring() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// Run keeps HNS in line until the context ends, and leaves it as it is then. It begins with the first Update. Errors are kept in
// Status and tried again: Run gives none but the context's end, which is nil.
func (p *Plane) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.bell:
		case <-timer.C:
		}
		if !p.inputs.ready() {
			continue
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

// inputs is what the model last said.
type inputs struct {
	queued func() // told of each change

	mu     sync.Mutex // protects all below, and orders what is told; apart from Plane.mu, so that Update never waits for HNS
	have   bool
	news   bool      // something has changed since take
	since  time.Time // arrival of the oldest change that is not programmed; zero: all are
	node   k8s.Node
	ports  map[k8s.PortName]*k8s.ServicePort
	checks map[k8s.ServiceName]k8s.HealthCheck
}

func (in *inputs) ready() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.have
}

func (in *inputs) update(model *k8s.Model, changes k8s.Changes) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.have {
		in.have, in.ports, in.checks = true, map[k8s.PortName]*k8s.ServicePort{}, map[k8s.ServiceName]k8s.HealthCheck{}
	}
	in.node, in.news = model.Node, true
	if in.since.IsZero() {
		in.since = time.Now()
	}
	defer in.queued()
	for name, sp := range changes.Ports {
		if sp == nil {
			delete(in.ports, name)
		} else {
			in.ports[name] = sp
		}
	}
	for name, c := range changes.HealthChecks {
		if c == nil {
			delete(in.checks, name)
		} else {
			in.checks[name] = *c
		}
	}
}

// wanted computes what HNS should have.
func (in *inputs) wanted(facts *plan.Facts) *plan.Wanted {
	in.mu.Lock()
	defer in.mu.Unlock()
	return plan.New(in.ports, in.checks, facts)
}

// take is wanted for somebody who programs it.
func (in *inputs) take(facts *plan.Facts) *plan.Wanted {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.news = false
	return plan.New(in.ports, in.checks, facts)
}

// whileProgrammed calls f if nothing has come in since take; nothing comes in meanwhile. f is told when the oldest change that
// is programmed now arrived; the zero Time: there is none.
func (in *inputs) whileProgrammed(f func(since time.Time)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.news {
		f(in.since)
		in.since = time.Time{}
	}
}

func (in *inputs) nodeNow() k8s.Node {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.node
}
