package windows

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
	"github.com/nkp-proxy/nkp/windows/reconcile"
)

// sync brings HNS in step with the model and returns when to run again if nothing changes.
func (p *Plane) sync(ctx context.Context) (next time.Time) {
	began := p.opts.now()
	p.status.update(func(b *statusRecord) { b.s.Begun, b.s.Busy = began, true })
	p.register()
	p.readPorts(ctx, began)
	result, err := p.trySync(ctx, began)
	p.status.end(p.opts.now(), result, p.counts(), err)
	if err == nil && result.Steps > 0 {
		p.opts.Hooks.Synced(dataplane.Sync{Families: result.Families, Took: p.opts.now().Sub(began)})
	}

	switch _, notReady := errors.AsType[*notReady](err); {
	case notReady:
		p.opts.Log.Info("nothing is changed in HNS", "reason", err)
	case err != nil:
		p.opts.Log.Warn("cannot sync with HNS; what it has stays as it is", "error", err)
	case result.Steps > 0:
		p.opts.Log.Info("synced with HNS", "steps", result.Steps, "failures", len(result.Refused),
			"took", p.opts.now().Sub(began).Round(time.Millisecond))
	}

	if err != nil || len(result.Waiting) > 0 {
		next = began.Add(min(waitPollMost, p.opts.AuditPeriod, p.notReady.Failed()))
	} else {
		p.notReady = 0
		next = cmp.Or(p.enumerated, began).Add(p.opts.AuditPeriod)
	}
	next = dataplane.Earliest(next, result.Retry())
	if err == nil && p.reread(ctx, began) {
		next = p.opts.now()
	}
	return next
}

// reread reads every object again once every FullAuditPeriod, after the changes were programmed and in parts:
// until the next change arrives, and for at most rereadSlice. It reports whether to sync again at once: to go
// on, or to program what was found.
func (p *Plane) reread(ctx context.Context, now time.Time) (again bool) {
	if !p.rereading && now.Sub(p.fullRead) >= p.opts.FullAuditPeriod {
		p.fullRead, p.rereading = now, true
		p.engine.RereadAll()
	}
	if !p.rereading {
		return false
	}
	end := time.Now().Add(rereadSlice)
	p.rereading = p.engine.Reread(func() bool {
		return ctx.Err() != nil || len(p.runner.In.Signal) > 0 || time.Now().After(end)
	})
	return true
}

func (p *Plane) counts() reconcile.Counts {
	if p.engine == nil {
		return reconcile.Counts{}
	}
	return p.engine.Counts()
}

func (p *Plane) trySync(ctx context.Context, now time.Time) (r reconcile.Result, err error) {
	facts, w := p.undisturbed(now)
	if w == nil {
		if facts, err = p.observe(now); err != nil {
			return r, err
		}
		w = plan.New(p.ports, p.checks, facts)
	}
	p.report(w)
	features := hns.FeaturesOf(facts.Version)
	r, err = p.engine.Sync(ctx, w, features)
	p.status.observed(facts, p.engine.CanModify(features))
	if err != nil || len(r.Refused) > 0 || len(r.Waiting) > 0 {
		p.enumerated = time.Time{}
	}
	if err == nil && ctx.Err() == nil {
		programming := p.runner.InForce()
		p.runner.In.WhileIdle(func() {
			// All changes received are in HNS now.
			p.status.update(func(b *statusRecord) { b.done, b.s.Programming = true, programming })
			p.opts.Hooks.InStep(dataplane.Families...)
		})
	}
	return r, err
}

// undisturbed returns the facts and the plan for a change that arrived less than AuditPeriod after everything
// was enumerated, if HNS still has the endpoints that nkp knows: then the network exists, and no pod has come
// or gone. Else it returns nil. That takes 1 call, observe 5.
func (p *Plane) undisturbed(now time.Time) (*plan.Facts, *plan.Wanted) {
	if !p.runner.Pending() || now.Sub(p.enumerated) >= p.opts.AuditPeriod {
		return nil, nil
	}
	facts, err := p.facts()
	if err != nil {
		return nil, nil // observe returns the error
	}
	w := plan.New(p.ports, p.checks, facts)
	if !p.engine.Undisturbed(w, &facts.Network) {
		return nil, nil
	}
	return facts, w
}

// observe reads the facts and what HNS has.
func (p *Plane) observe(now time.Time) (*plan.Facts, error) {
	p.enumerated = time.Time{}
	for _, read := range []func() error{p.open, p.readVersion, p.readNetwork} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	if now.Sub(p.fullRead) >= p.opts.FullAuditPeriod {
		// Finding that one takes a read of all endpoints.
		maps.DeleteFunc(p.named, func(name string, _ netip.Addr) bool { return name != proxysSource })
	}

	facts, err := p.facts()
	if err != nil {
		return nil, err
	}
	if p.engine == nil {
		p.engine = reconcile.New(p.host, p.opts.store(), p.opts.Hooks.Refused, p.opts.Log, p.opts.now)
		if p.opts.TakeOver {
			p.engine.TakeOver()
		}
	}

	if err := p.engine.Observe(facts.Network.ID); err != nil {
		return nil, err
	}
	p.enumerated = now
	if p.fullRead.IsZero() {
		p.fullRead = now
	}

	switch {
	case p.statesRead.IsZero(): // first read at the first audit, so that a start takes fewer calls
		p.statesRead = now.Add(p.opts.AuditPeriod - statePeriod)
	case now.Sub(p.statesRead) >= statePeriod || p.engine.Sick():
		p.statesRead = now
		p.engine.ObserveStates()
	}
	return facts, nil
}

// report logs and reports the unsupported settings that are new.
func (p *Plane) report(w *plan.Wanted) {
	for _, u := range p.status.unsupported(w.Unsupported) {
		p.opts.Log.Warn("a Service asks for what HNS cannot do", "service", u.Service.String(), "reason", u.Reason)
		p.opts.Hooks.Unsupported(noticeOf(u))
	}
}

func noticeOf(u plan.Unsupported) dataplane.Notice {
	return dataplane.Notice{Port: k8s.PortName{ServiceName: u.Service}, Text: u.Reason}
}

// Counters returns none, and why.
func (p *Plane) Counters(context.Context) (map[k8s.PortName]k8s.Counters, string, error) {
	return nil, "n/a: HNS does not count what its load balancers forward", nil
}

// List adds the load balancers of a Service port, or all of nkp's, as HNS had them when nkp read them last.
// While HNS is being programmed, which can take long, it returns an error.
func (p *Plane) List(_ context.Context, of k8s.PortName, to *dataplane.Listing) error {
	if !p.runner.TryLock() {
		return errors.New("HNS is being programmed: try again")
	}
	defer p.runner.Unlock()
	if p.engine == nil {
		return errUnknown
	}
	for _, l := range p.engine.LoadBalancers() {
		if of == (k8s.PortName{}) || serves(p.ports[of], l) {
			text, _ := json.Marshal(l) // cannot fail
			to.Add(string(text))
		}
	}
	return nil
}

// serves reports whether a load balancer has a frontend of a Service port, which may be nil.
func serves(sp *k8s.ServicePort, l *hns.LoadBalancer) bool {
	return sp != nil && slices.ContainsFunc(plan.FrontendsOf(l), func(at plan.Frontend) bool {
		return hns.ProtocolName(at.Protocol) == string(sp.Name.Protocol) && at.Family == sp.Name.Family &&
			slices.ContainsFunc(sp.Frontends, func(f k8s.Frontend) bool { return f.Address == at.VIP && f.Port == at.Port })
	})
}

var errUnknown = errors.New("the Services are not known yet")

// Diff returns the steps that would bring HNS in step, one a line; "": it is in step. It writes nothing.
// Update must have been called. A call into HNS cannot be cancelled: the context is checked before the first
// one.
func (p *Plane) Diff(ctx context.Context) (string, error) {
	p.runner.Lock()
	defer p.runner.Unlock()
	if err := ctx.Err(); err != nil {
		return "", err
	}

	ready := p.runner.TakeUpdates(&steps{Plane: p})
	for !p.runner.In.Idle() { // a large Service comes in portions
		ready = p.runner.TakeUpdates(&steps{Plane: p})
	}
	if !ready {
		return "", errUnknown
	}

	facts, err := p.observe(p.opts.now())
	if err != nil {
		return "", err
	}

	var text strings.Builder
	steps, conflicts := p.engine.Diff(plan.New(p.ports, p.checks, facts), hns.FeaturesOf(facts.Version))
	for i := range steps {
		text.WriteString(steps[i].String() + "\n")
	}
	for _, c := range conflicts {
		fmt.Fprintf(&text, "%s of %s: %s\n", c.Object, c.Port, c.Reason)
	}
	return text.String(), nil
}

// Owned returns the number of nkp's objects in HNS according to the state file.
func Owned(opts Options) (endpoints, loadBalancers int, err error) {
	setDefault(&opts.StateFile, DefaultStateFile())
	o, err := opts.store().Load()
	if err != nil {
		return 0, 0, err
	}
	return len(o.Endpoints), len(o.LoadBalancers), nil
}

// Cleanup removes nkp's objects from HNS according to the state file, and nothing else. It returns their
// number. The agent must not be running. When the context ends, the remaining objects stay in the state file.
func Cleanup(ctx context.Context, opts Options) (removed int, err error) {
	setDefault(&opts.StateFile, DefaultStateFile())
	if opts.Open == nil {
		opts.Open = hns.Open
	}
	host, err := opts.Open()
	if err != nil {
		return 0, err
	}
	return reconcile.Cleanup(ctx, host, opts.store(), opts.network())
}
