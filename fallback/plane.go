package fallback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// Kernel is what iptables and nftables each do in their own way. o are the settings in force, and backend is
// Status.Backend.
type Kernel interface {
	// Name returns iptables or nftables.
	Name() string
	// Open finds out what the node has, tells it to [Plane.Chosen], and returns what serves each family until
	// its context ends. A family without is not served.
	Open(ctx context.Context, p *Plane) (map[k8s.Family]func(context.Context), error)
	// Plan returns all rules as input for iptables-restore or nft -f, IPv4 first.
	Plan(m *k8s.Model, c serving.Config) string
	// Diff returns how the installed rules differ from those that a model calls for.
	Diff(ctx context.Context, m *k8s.Model, o Options, backend string) (string, error)
	// Count adds what the rules have counted: to all, for each Service port of the model, and to dropped.
	Count(
		ctx context.Context, m *k8s.Model, o Options, backend string,
		all map[k8s.PortName]k8s.Counters, dropped map[dataplane.DropKey]uint64,
	) error
	// Uncounted says why there are no packets and bytes in what Count adds; "": there are.
	Uncounted() string
	// List adds what is installed of the Service ports of a model.
	List(ctx context.Context, m *k8s.Model, o Options, backend string, to *dataplane.Listing) error
	// CountNode returns what the rules have counted for the node as a whole.
	CountNode(ctx context.Context, o Options, backend string) (NodeCounters, error)
}

// Plane keeps the node's iptables or nftables in step with the model. Make it with New of package iptables or
// nftables, run it once with Run; the other methods may be called from any goroutine, before and while it
// runs.
type Plane struct {
	kernel Kernel
	opts   Options
	Log    *slog.Logger

	inbox    map[k8s.Family]*dataplane.Inbox
	loops    map[k8s.Family]*dataplane.Loop
	counted  *dataplane.Cache[map[k8s.PortName]k8s.Counters]
	drops    dataplane.Drops                           // of counters
	dropped  atomic.Pointer[map[k8s.DropReason]uint64] // at the last listing
	counting singleflight.Group                        // of NodeCounters
	lastNode atomic.Pointer[nodeCount]                 // nil: there is none yet
	canary   atomic.Pointer[dataplane.Canary]          // nil: none are sent, or not yet

	// mu protects the fields below, which Plan, Diff and Status read. It is not held while rules are written.
	mu       sync.Mutex
	model    *k8s.Model // nil until the first Update; a clone of our own
	status   Status
	families map[k8s.Family]*FamilyStatus
}

// New returns a Plane. It changes nothing on the node.
func New(k Kernel, o Options) (*Plane, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.SyncPeriod <= 0 {
		return nil, fmt.Errorf("sync period %v: must be positive", o.SyncPeriod)
	}
	o.Hooks.Hooks = o.Hooks.WithDefaults()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Plane{
		kernel: k, opts: o, Log: o.Log,
		counted:  dataplane.NewCache[map[k8s.PortName]k8s.Counters](countersAge),
		inbox:    map[k8s.Family]*dataplane.Inbox{},
		loops:    map[k8s.Family]*dataplane.Loop{},
		status:   Status{Scope: o.Scope.String()},
		families: map[k8s.Family]*FamilyStatus{},
	}
	for _, f := range o.ToServe() {
		p.inbox[f] = dataplane.NewInbox(func(fs ...k8s.Family) { p.queue(fs...) }, f)
		p.loops[f] = dataplane.NewLoop(k.Name() + " " + f.String())
		p.families[f] = &FamilyStatus{Family: f.String()}
	}
	return p, nil
}

// Loops returns the Loop of each of the plane's goroutines, one for each family.
func (p *Plane) Loops() (list []*dataplane.Loop) {
	for _, f := range p.opts.ToServe() {
		list = append(list, p.loops[f])
	}
	return list
}

// Update queues changes of the model; those of the first call must contain all of it. It never waits for the
// kernel and does not keep the model.
func (p *Plane) Update(m *k8s.Model, c k8s.Changes) {
	p.mu.Lock()
	first := p.model == nil
	if first {
		p.model = &k8s.Model{Ports: map[k8s.PortName]*k8s.ServicePort{}}
	}
	p.model.Node, p.model.Detector, p.model.ServiceCIDRs = m.Node, m.Detector, m.ServiceCIDRs
	apply(p.model, c)
	p.mu.Unlock()
	if first {
		// Else a family that is done before the next one has its update would be in step with all there is.
		p.queue(p.opts.ToServe()...)
	}
	if first && p.opts.Canary {
		c.Ports = maps.Clone(c.Ports)
		for f := range p.inbox {
			sp := serving.CanaryOf(f).Service()
			c.Ports[sp.Name] = sp
		}
	}
	for _, in := range p.inbox {
		in.Put(m, c)
	}
}

// queue notes that there is something to program in families, of those that are served.
func (p *Plane) queue(fs ...k8s.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range fs {
		if s := p.families[f]; s != nil {
			s.InStep = false
			p.opts.Hooks.Queued(f)
		}
	}
}

// drop takes a family out that this node cannot serve: nothing of it is waited for.
func (p *Plane) drop(f k8s.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.families, f)
	if p.model != nil { // it was queued
		p.opts.Hooks.InStep(f)
	}
}

// apply brings a model's maps up to date.
func apply(m *k8s.Model, c k8s.Changes) {
	for n, sp := range c.Ports {
		if sp == nil {
			delete(m.Ports, n)
		} else {
			m.Ports[n] = sp
		}
	}
	for n, h := range c.HealthChecks {
		switch {
		case h == nil:
			delete(m.HealthChecks, n)
		case m.HealthChecks == nil:
			m.HealthChecks = map[k8s.ServiceName]k8s.HealthCheck{n: *h}
		default:
			m.HealthChecks[n] = *h
		}
	}
}

// Run keeps the rules in step until the context ends, then returns nil; the installed rules stay. Any error
// that it returns is permanent: this node has no iptables, or none for the requested families.
func (p *Plane) Run(ctx context.Context) error {
	for _, l := range p.loops {
		l.Work("opening " + p.Name())
		defer l.Rest()
	}

	release, err := p.own(ctx)
	var serve map[k8s.Family]func(context.Context)
	if err == nil {
		defer release()
		p.lookAtKernel()
		serve, err = p.kernel.Open(ctx, p)
	}

	for _, l := range p.loops {
		l.Rest()
	}
	if ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}

	var all sync.WaitGroup
	var served []k8s.Family
	for _, f := range p.opts.ToServe() {
		if run := serve[f]; run != nil {
			all.Go(func() { run(ctx) })
			served = append(served, f)
		} else {
			p.drop(f)
		}
	}
	if p.opts.Canary {
		canary := p.newCanary(served)
		p.canary.Store(canary)
		all.Go(func() { canary.Run(ctx) })
	}
	all.Wait()
	return nil
}

// Name returns iptables or nftables.
func (p *Plane) Name() string { return p.kernel.Name() }

// Chosen records how the plane serves. For Kernel.Open.
func (p *Plane) Chosen(backend, reason, version string, randomFully bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opts.RandomFully = randomFully
	p.status.Backend, p.status.Reason = backend, reason
	p.status.Version, p.status.RandomFully = version, randomFully
}

// Failed records why no family is served yet. For Kernel.Open.
func (p *Plane) Failed(err error) {
	for f := range p.inbox {
		p.report(f, func(s *FamilyStatus) { s.Failed(err) })
	}
}

// Worker returns a Worker for a family, which works until the context ends. For Kernel.Open.
func (p *Plane) Worker(ctx context.Context, f k8s.Family) *Worker {
	w := NewWorker(p.Name(), f, &p.opts, p.inbox[f])
	w.Loop, w.Report = p.loops[f], func(change func(*FamilyStatus)) { p.report(f, change) }
	if f == k8s.IPv4 {
		var kernel RouteLocalnet
		w.Localnet = NewLocalnet(kernel, kernel.Recorded(), w.Log)
	}
	w.Stale.Forget = func(stale func(*dpctl.Connection) bool) (int, error) {
		return conntrack.Forget(ctx, f, 0, stale) // other zones are Open vSwitch's
	}
	return w
}

// lookAtKernel reads how strict connection tracking is about TCP windows.
func (p *Plane) lookAtKernel() {
	if IsLiberal() {
		p.mu.Lock()
		p.opts.KeepInvalid = true
		p.mu.Unlock()
		p.Log.Info("packets in conntrack state INVALID are not dropped", "because", TCPBeLiberal+" is set")
	}
}

// Status returns the current state; its Detail is a *Status. It never blocks.
func (p *Plane) Status(ctx context.Context) (dataplane.Status, error) {
	d := p.Detail()
	s := dataplane.Status{InStep: len(d.Families) > 0, Canary: p.Canary(), Detail: &d}
	for i := range d.Families {
		f := &d.Families[i]
		s.Refusals = append(s.Refusals, f.refusals...)
		if f.Programming.Changes >= s.Programming.Changes {
			s.Programming = f.Programming // of the family with most changes
		}
		switch {
		case !f.InStep || f.closing != "":
			s.InStep, s.Why = false, f.notInStep()
		case len(f.refusals) > 0:
			s.InStep, s.Why = false, fmt.Sprintf("%s: %s refuses %s",
				f.Family, p.Name(), dataplane.Count(len(f.refusals), "Service port"))
		}
	}
	return s, ctx.Err()
}

// Behind is part of dataplane.Plane. It does not wait. Of two families that are behind it names IPv4.
func (p *Plane) Behind(_ context.Context, by time.Time, closing bool) string {
	for _, f := range dataplane.Families {
		// First the Inbox: what is in force may leave connections to be deleted, which the status has by
		// then. It must not be asked under p.mu, because its own lock comes first.
		waits := p.inbox[f] != nil && p.inbox[f].Waits(by)
		for _, s := range p.Detail().Families {
			if s.Family == f.String() && (waits || closing && s.closing != "") {
				return s.notInStep()
			}
		}
	}
	return ""
}

func (s *FamilyStatus) notInStep() string {
	closing := s.closing
	if closing != "" && s.LastForgetError != "" {
		closing += ": " + s.LastForgetError
	}
	return cmp.Or(s.LastError, closing, s.Family+": the rules are not in step yet")
}

// Detail returns the part of the status that is specific to iptables or nftables.
func (p *Plane) Detail() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
		if fs := p.families[f]; fs != nil {
			now := *fs
			now.InStep = now.InStep && !p.loops[f].Stalled() // not if it hangs while it checks the rules
			s.Families = append(s.Families, now)
		}
	}
	return s
}

// Tried reports whether each family is in step, or has failed since it last was.
func (p *Plane) Tried() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.families {
		if !s.InStep && s.LastError == "" {
			return false
		}
	}
	return true
}

// Plan returns all rules as input for iptables-restore or nft -f, IPv4 first; "" before the first Update.
func (p *Plane) Plan() string {
	m, config := p.snapshot()
	if m == nil {
		return ""
	}
	return p.kernel.Plan(m, config)
}

// Diff returns the differences between the installed rules and those that the model calls for; "" if there
// are none.
func (p *Plane) Diff(ctx context.Context) (string, error) {
	m, _ := p.snapshot()
	if m == nil {
		return "", errors.New("the model is not complete yet: nothing to compare with")
	}
	o, backend := p.Options()
	return p.kernel.Diff(ctx, m, o, backend)
}

// Options returns the settings in force, and Status.Backend.
func (p *Plane) Options() (o Options, backend string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o = p.opts
	o.Families = slices.Sorted(maps.Keys(p.families))
	return o, p.status.Backend
}

// snapshot returns a copy of the model and the settings in force.
func (p *Plane) snapshot() (*k8s.Model, serving.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.model == nil {
		return nil, p.opts.Config
	}
	return p.model.Clone(), p.opts.Config
}

// report updates the status of a family.
func (p *Plane) report(f k8s.Family, change func(*FamilyStatus)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.families[f]; s != nil { // nil: the kernel does not support the family
		change(s)
	}
}
