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

	"golang.org/x/sync/errgroup"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	nft "github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// Plane keeps the node's iptables in step with the model. Make it with New, run it once with Run; the other methods may be
// called from any goroutine, before and while it runs.
type Plane struct {
	opts Options
	log  *slog.Logger

	inbox   map[k8s.Family]*dataplane.Inbox
	loops   map[k8s.Family]*dataplane.Loop
	counted counterCache
	node    nodeCounterCache
	dropped atomic.Pointer[map[k8s.DropReason]uint64] // at the last listing

	// mu protects the fields below, which Plan, Diff and Status read. It is not held while rules are written.
	mu       sync.Mutex
	model    *k8s.Model // nil until the first Update; a clone of our own
	status   Status
	families map[k8s.Family]*FamilyStatus
}

// New returns a Plane. It changes nothing on the node.
func New(o Options) (*Plane, error) {
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
		opts: o, log: o.Log,
		counted:  counterCache{asks: make(chan struct{}, 1)},
		inbox:    map[k8s.Family]*dataplane.Inbox{},
		loops:    map[k8s.Family]*dataplane.Loop{},
		status:   Status{Scope: o.Scope.String()},
		families: map[k8s.Family]*FamilyStatus{},
	}
	for _, f := range o.families() {
		p.inbox[f] = dataplane.NewInbox(func(fs ...k8s.Family) { p.queue(fs...) }, f)
		p.loops[f] = dataplane.NewLoop(o.name() + " " + f.String())
		p.families[f] = &FamilyStatus{Family: f.String()}
	}
	return p, nil
}

// Loops returns the Loop of each of the plane's goroutines, one for each family.
func (p *Plane) Loops() (list []*dataplane.Loop) {
	for _, f := range p.opts.families() {
		list = append(list, p.loops[f])
	}
	return list
}

// name returns what serves Services.
func (o *Options) name() string {
	if o.NFTables {
		return backendNFTables
	}
	return "iptables"
}

// backendNFTables is the name of nftables where iptables has its back ends.
const backendNFTables = "nftables"

// familyWorker keeps one family in step.
type familyWorker interface {
	// run works until the context ends.
	run(ctx context.Context) error
}

func (o *Options) families() []k8s.Family {
	if len(o.Families) > 0 {
		return o.Families
	}
	return []k8s.Family{k8s.IPv4, k8s.IPv6}
}

// Update queues changes of the model; those of the first call must contain all of it. It never waits for iptables and does
// not keep the model.
func (p *Plane) Update(m *k8s.Model, c k8s.Changes) {
	p.mu.Lock()
	first := p.model == nil
	if first {
		p.model = &k8s.Model{Ports: map[k8s.PortName]*k8s.ServicePort{}}
	}
	p.model.Node, p.model.Detector, p.model.ServiceCIDRs = m.Node, m.Detector, m.ServiceCIDRs
	apply(p.model, c)
	p.mu.Unlock()
	if first { // or a family that is done before the next one has its update would be in step with all there is
		p.queue(p.opts.families()...)
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

// Run keeps the rules in step until the context ends, then returns nil; the installed rules stay. Any error that it returns
// is permanent: this node has no iptables, or none for the requested families.
func (p *Plane) Run(ctx context.Context) error {
	for _, l := range p.loops {
		l.Work("opening " + p.opts.name())
		defer l.Rest()
	}
	release, err := p.own(ctx)
	var opened []familyWorker
	if err == nil {
		defer release()
		opened, err = p.open(ctx)
	}
	for _, l := range p.loops {
		l.Rest()
	}
	if ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, w := range opened {
		g.Go(func() error { return w.run(ctx) })
	}
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Status returns the current state; its Detail is a *Status. It never blocks.
func (p *Plane) Status(ctx context.Context) (dataplane.Status, error) {
	d := p.Detail()
	s := dataplane.Status{InStep: len(d.Families) > 0, Detail: &d}
	for i := range d.Families {
		f := &d.Families[i]
		s.Refusals = append(s.Refusals, f.refusals...)
		if f.Programming.Changes >= s.Programming.Changes {
			s.Programming = f.Programming // of the family with most changes
		}
		switch {
		case !f.InStep:
			s.InStep, s.Why = false, cmp.Or(f.LastError, f.Family+": the rules are not in step yet")
		case len(f.refusals) > 0:
			s.InStep, s.Why = false, fmt.Sprintf("%s: %s refuses %s", f.Family, p.opts.name(), dataplane.CountPorts(len(f.refusals)))
		}
	}
	return s, ctx.Err()
}

// Detail returns the part of the status that is specific to iptables.
func (p *Plane) Detail() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
		if fs := p.families[f]; fs != nil {
			now := *fs
			now.InStep = now.InStep && !p.loops[f].Doubtful() // not if it hangs while it checks the rules
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
	switch {
	case m == nil:
		return ""
	case p.opts.NFTables:
		return nft.Plan(m, p.opts.nftConfig(config))
	}
	return rules.Plan(m, config)
}

// Diff returns the differences between the installed rules and those that the model calls for; "" if there are none.
func (p *Plane) Diff(ctx context.Context) (string, error) {
	m, _ := p.snapshot()
	if m == nil {
		return "", errors.New("the model is not complete yet: nothing to compare with")
	}
	return Diff(ctx, m, p.Options())
}

// Options returns the settings in force.
func (p *Plane) Options() Options {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.opts
	o.Backend = p.status.Backend
	o.Families = slices.Sorted(maps.Keys(p.families))
	return o
}

// snapshot returns a copy of the model and the settings in force.
func (p *Plane) snapshot() (*k8s.Model, serving.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.opts.Config
	if p.status.Backend != "" {
		c.RandomFully = p.status.RandomFully
	}
	if p.model == nil {
		return nil, c
	}
	return p.model.Clone(), c
}

// report updates the status of a family.
func (p *Plane) report(f k8s.Family, change func(*FamilyStatus)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.families[f]; s != nil { // nil: the kernel does not support the family
		change(s)
	}
}
