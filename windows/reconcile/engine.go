package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// Retries of a failed step wait this long at first, twice as long each time, and at most that long.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
)

// maxPasses bounds one Sync: an endpoint that is made anew takes two passes.
const maxPasses = 3

// Engine holds what it knows of HNS between one Sync and the next. It is not safe for concurrent use.
type Engine struct {
	host  hns.Host
	store StateFile
	log   *slog.Logger
	now   func() time.Time

	owned  *Ownership
	saved  []byte   // the state file as written last
	have   observed // valid if read
	read   bool
	failed map[string]*failure // by Step.key
	// brokenModify is set when HNS accepted a modification and did not apply it.
	brokenModify bool
	counts       Counts
	ctx          context.Context // of the Sync under way

	// HNS may make something else of what it is asked for: asked holds, by id, the bodies that load balancers were asked to
	// have, asIs the endpoints that are good as they are.
	asked map[string]*hns.LoadBalancer
	asIs  map[string]bool
}

// failure is a step that failed, and when to try again.
type failure struct {
	Failure
	attempts int
	wanted   string // what was tried; something else is tried at once
}

// Failure is something that could not be done.
type Failure struct {
	Object  string // "load balancer 10.0.0.1:80/TCP"
	Service string // the Service port it is for; ""
	Text    string
	RetryAt time.Time // the zero Time: whenever something changes
}

// Counts are running totals since the start.
type Counts struct {
	Created, Modified, Replaced, Deleted, Failed uint64 // objects
}

// Result is what a Sync came to.
type Result struct {
	Steps    int       // done
	Failures []Failure // sorted by object; not done
	// Waiting is what somebody else has to do first.
	Waiting []string
	// Endpoints and LoadBalancers count nkp's objects, Foreign the load balancers that are somebody else's.
	Endpoints, LoadBalancers, Foreign int
}

// Retry gives when to call Sync again for what failed; the zero Time: no need to.
func (r *Result) Retry() (at time.Time) {
	for _, f := range r.Failures {
		if !f.RetryAt.IsZero() && (at.IsZero() || f.RetryAt.Before(at)) {
			at = f.RetryAt
		}
	}
	return at
}

// New gives an engine; now is the clock. A state file that cannot be read is reported in the log.
func New(host hns.Host, store StateFile, log *slog.Logger, now func() time.Time) *Engine {
	e := &Engine{host: host, store: store, log: log, now: now, failed: map[string]*failure{},
		asked: map[string]*hns.LoadBalancer{}, asIs: map[string]bool{}}
	var err error
	if e.owned, err = store.Load(); err != nil {
		log.Warn("cannot use the state file: load balancers of Services that are gone may stay; remove them by hand", "error", err)
	}
	return e
}

// Observe brings what is known of HNS up to date: by enumeration, which is cheap, or with full by reading every object.
// If it fails, nothing is known to have changed.
func (e *Engine) Observe(network string, full bool) error {
	if full || !e.read || e.have.network != network {
		e.read = false
		if err := e.have.read(e.host, network); err != nil {
			return err
		}
		e.read = true
	} else if err := e.have.follow(e.host); err != nil {
		return err
	}
	e.settle()
	return nil
}

// settle brings ownership in line with what was observed: what was pending has its id now, what is gone is nobody's.
func (e *Engine) settle() {
	e.owned.identify(&e.have)
	maps.DeleteFunc(e.owned.LoadBalancers, func(id string, _ bool) bool { return e.have.loadBalancers[id] == nil })
	maps.DeleteFunc(e.owned.Endpoints, func(id string, _ bool) bool { return e.have.endpoints[id] == nil })
	maps.DeleteFunc(e.asked, func(id string, _ *hns.LoadBalancer) bool { return e.have.loadBalancers[id] == nil })
	maps.DeleteFunc(e.asIs, func(id string, _ bool) bool { return e.have.endpoints[id] == nil })
}

// Counts gives the running totals.
func (e *Engine) Counts() Counts { return e.counts }

// CanModify reports whether load balancers are modified in place, given that HNS says it can.
func (e *Engine) CanModify(features hns.Features) bool {
	return features.ModifyLoadbalancer && !e.brokenModify
}

// Diff gives the steps that Sync would take. Nothing is written. Observe must have succeeded.
func (e *Engine) Diff(w *plan.Wanted, features hns.Features) ([]Step, []Failure) {
	d := e.difference(w, features)
	steps := d.createEndpoints()
	d.fresh = map[netip.Addr]string{}
	for _, s := range steps {
		d.fresh[s.Endpoint.Addr] = "new " + s.Endpoint.Addr.String()
	}
	return slices.Concat(steps, d.loadBalancers(), d.deleteEndpoints()), d.conflicts
}

func (e *Engine) difference(w *plan.Wanted, features hns.Features) *difference {
	return &difference{w: w, have: &e.have, owned: e.owned, asked: e.asked, asIs: e.asIs, modify: e.CanModify(features)}
}

// Sync makes HNS have what is wanted, as far as it can. Observe must have succeeded. An error is of the state file; all
// others are in the result.
//
// When the context ends, no further step is begun.
func (e *Engine) Sync(ctx context.Context, w *plan.Wanted, features hns.Features) (r Result, err error) {
	e.ctx = ctx
	var d *difference
	tried := map[string]bool{}
	for range maxPasses {
		d = e.difference(w, features)
		if err := e.announce(w, features); err != nil {
			return r, err
		}
		done := e.pass(d, tried)
		r.Steps += done
		if done == 0 {
			break
		}
	}
	maps.DeleteFunc(e.failed, func(key string, _ *failure) bool { return !tried[key] })
	if err := e.save(); err != nil {
		return r, err
	}
	r.Failures = d.conflicts
	for _, f := range e.failed {
		r.Failures = append(r.Failures, f.Failure)
	}
	slices.SortFunc(r.Failures, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Service, b.Service))
	})
	slices.Sort(d.waiting)
	r.Waiting = slices.Compact(d.waiting)
	r.Endpoints, r.LoadBalancers = len(e.owned.Endpoints), len(e.owned.LoadBalancers)
	r.Foreign = len(e.have.loadBalancers) - r.LoadBalancers
	return r, nil
}

// pass does what can be done now: first the endpoints that load balancers need, last those that none needs any more.
func (e *Engine) pass(d *difference, tried map[string]bool) (done int) {
	for _, id := range d.rightEndpoints() {
		e.owned.Endpoints[id] = true
	}
	for _, s := range d.createEndpoints() {
		done += e.try(d, &s, tried)
	}
	steps := d.loadBalancers()
	for id := range d.adopted {
		e.owned.LoadBalancers[id] = true
	}
	for _, s := range steps {
		done += e.try(d, &s, tried)
	}
	needed := e.have.needed()
	for _, s := range d.deleteEndpoints() {
		if !needed[s.ID] && !needed[s.addr.String()] { // else a load balancer that could not be changed yet, or a foreign one, needs it
			done += e.try(d, &s, tried)
		}
	}
	return done
}

// announce writes down what is about to be created.
func (e *Engine) announce(w *plan.Wanted, features hns.Features) error {
	steps, _ := e.Diff(w, features)
	for _, s := range steps {
		switch s.Op {
		case CreateEndpoint:
			e.owned.PendingEndpoints[s.Endpoint.Addr.String()] = true
		case CreateLoadBalancer, ReplaceLoadBalancer:
			e.owned.PendingLoadBalancers[s.LoadBalancer.Frontend.String()] = true
		}
	}
	return e.save()
}

// save writes the state file if it would differ.
func (e *Engine) save() error {
	text, err := e.owned.text()
	if err != nil || bytes.Equal(text, e.saved) {
		return err
	}
	if err := e.store.Save(e.owned); err != nil {
		return fmt.Errorf("cannot write the state file, so nothing is created: %w", err)
	}
	e.saved = text
	return nil
}

// try runs a step unless it failed a moment ago; it gives 1 if it was done.
func (e *Engine) try(d *difference, s *Step, tried map[string]bool) int {
	key, wanted := s.key(), e.signature(d, s)
	f := e.failed[key]
	again := tried[key] && f != nil || e.ctx.Err() != nil
	tried[key] = true
	if again || f != nil && (f.wanted == wanted && e.now().Before(f.RetryAt)) {
		return 0
	}
	err := e.run(d, s)
	if err == nil {
		delete(e.failed, key)
		e.log.Debug("done", "step", s.String())
		return 1
	}
	e.counts.Failed++
	if f == nil || f.wanted != wanted {
		f = &failure{wanted: wanted}
		e.failed[key] = f
	}
	delay := min(retryMost, retryFirst<<min(f.attempts, 10))
	f.attempts++
	f.Failure = Failure{Object: s.Object(), Service: s.Service(), Text: err.Error(), RetryAt: e.now().Add(delay)}
	e.log.Warn("HNS did not do it; it is tried again", "step", s.String(), "error", err, "after", delay)
	return 0
}

// signature tells one attempt from another.
func (e *Engine) signature(d *difference, s *Step) string {
	switch {
	case s.LoadBalancer != nil:
		return fmt.Sprint(*d.body(s.LoadBalancer))
	case s.Endpoint != nil:
		return fmt.Sprint(s.Endpoint.Body)
	}
	return s.ID
}
