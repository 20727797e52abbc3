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

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// maxPasses bounds one Sync: an endpoint that is recreated takes two passes.
const maxPasses = 3

// Engine brings HNS in step with plans, and keeps its observation of HNS between Syncs. It is not safe for concurrent use.
type Engine struct {
	host    hns.Host
	store   StateFile
	refused func(dataplane.Refusal) // called for each try that failed
	log     *slog.Logger
	now     func() time.Time

	owned  *Ownership
	saved  []byte   // the state file as written last
	have   observed // valid if read
	read   bool
	failed *dataplane.Refusals[string] // by Step.key
	tried  map[string]string           // signature of the failed attempt, by Step.key; an attempt with a different one is not delayed
	// conflicts are those that the last Sync found.
	conflicts map[dataplane.Refusal]bool
	// brokenModify is set when HNS accepted a modification and did not apply it.
	brokenModify bool
	counts       Counts

	// HNS may normalize a request, so that a read-back differs from it: asked holds the bodies that were requested last, by the id of
	// the load balancer; asIs the ids of endpoints that are accepted although they differ.
	asked map[string]*hns.LoadBalancer
	asIs  map[string]bool
}

// Counts are running totals since the start.
type Counts struct {
	Created, Modified, Replaced, Deleted, Failed uint64 // objects
}

// Result is the outcome of a Sync.
type Result struct {
	Steps    int                 // done
	Families []k8s.Family        // of the objects of these steps
	Refused  []dataplane.Refusal // sorted by Service port; without RetryAt: tried again whenever something changes
	// Waiting lists what must happen outside nkp before the rest can be programmed.
	Waiting []string
	// Endpoints and LoadBalancers count nkp's objects, Foreign the load balancers that are somebody else's.
	Endpoints, LoadBalancers, Foreign int
}

// Retry returns when to call Sync again for what failed; the zero Time: no need to.
func (r *Result) Retry() (at time.Time) {
	for _, f := range r.Refused {
		if !f.RetryAt.IsZero() && (at.IsZero() || f.RetryAt.Before(at)) {
			at = f.RetryAt
		}
	}
	return at
}

// New returns an engine; refused is called for each try that failed, now is the clock. A state file that cannot be read is
// reported in the log.
func New(host hns.Host, store StateFile, refused func(dataplane.Refusal), log *slog.Logger, now func() time.Time) *Engine {
	e := &Engine{host: host, store: store, refused: refused, log: log, now: now, failed: dataplane.NewRefusals[string](), tried: map[string]string{},
		asked: map[string]*hns.LoadBalancer{}, asIs: map[string]bool{}}
	var err error
	if e.owned, err = store.Load(); err != nil {
		log.Warn("cannot use the state file: load balancers of Services that are gone may stay; remove them by hand", "error", err)
	}
	return e
}

// Observe updates the observation of HNS: by enumeration, which is cheap, or with full by reading every object.
// An error keeps the previous observation; an error of a full read discards it.
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

// settle updates ownership to what was observed: pending objects get the id that HNS gave them, objects that no longer exist are dropped.
func (e *Engine) settle() {
	e.owned.identify(&e.have)
	maps.DeleteFunc(e.owned.LoadBalancers, func(id string, _ bool) bool { return e.have.loadBalancers[id] == nil })
	maps.DeleteFunc(e.owned.Endpoints, func(id string, _ bool) bool { return e.have.endpoints[id] == nil })
	maps.DeleteFunc(e.asked, func(id string, _ *hns.LoadBalancer) bool { return e.have.loadBalancers[id] == nil })
	maps.DeleteFunc(e.asIs, func(id string, _ bool) bool { return e.have.endpoints[id] == nil })
}

// Counts returns the running totals.
func (e *Engine) Counts() Counts { return e.counts }

// CanModify reports whether load balancers are modified in place: HNS claims to support it, and no attempt has disproved it.
func (e *Engine) CanModify(features hns.Features) bool {
	return features.ModifyLoadbalancer && !e.brokenModify
}

// Diff returns the steps that Sync would take. Nothing is written. Observe must have succeeded.
func (e *Engine) Diff(w *plan.Wanted, features hns.Features) ([]Step, []dataplane.Refusal) {
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

// Sync brings HNS in step with w, as far as it can. Observe must have succeeded. The error returned concerns only the state file; all
// others are in the result.
//
// When the context ends, no further step is begun.
func (e *Engine) Sync(ctx context.Context, w *plan.Wanted, features hns.Features) (r Result, err error) {
	var d *difference
	tried := map[string]bool{}
	for range maxPasses {
		d = e.difference(w, features)
		if err := e.announce(w, features); err != nil {
			return r, err
		}
		done := e.pass(ctx, d, tried, &r)
		r.Steps += done
		if done == 0 {
			break
		}
	}
	e.failed.ForgetIf(func(key string) bool { return !tried[key] })
	maps.DeleteFunc(e.tried, func(key, _ string) bool { return !e.failed.Has(key) })
	if err := e.save(); err != nil {
		return r, err
	}
	e.noteConflicts(d.conflicts)
	r.Refused = append(d.conflicts, e.failed.All()...)
	slices.SortFunc(r.Refused, func(a, b dataplane.Refusal) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), a.Port.Compare(b.Port))
	})
	slices.Sort(d.waiting)
	r.Waiting = slices.Compact(d.waiting)
	r.Endpoints, r.LoadBalancers = len(e.owned.Endpoints), len(e.owned.LoadBalancers)
	r.Foreign = len(e.have.loadBalancers) - r.LoadBalancers
	return r, nil
}

// pass does what can be done now: first the endpoints that load balancers need, last those that none needs any more.
func (e *Engine) pass(ctx context.Context, d *difference, tried map[string]bool, r *Result) (done int) {
	for _, id := range d.rightEndpoints() {
		e.owned.Endpoints[id] = true
	}
	for _, s := range d.createEndpoints() {
		done += e.try(ctx, d, &s, tried, r)
	}
	steps := d.loadBalancers()
	for id := range d.adopted {
		e.owned.LoadBalancers[id] = true
	}
	for _, s := range steps {
		done += e.try(ctx, d, &s, tried, r)
	}
	needed := e.have.needed()
	for _, s := range d.deleteEndpoints() {
		if !needed[s.ID] && !needed[s.addr.String()] { // else a load balancer that could not be changed yet, or a foreign one, needs it
			done += e.try(ctx, d, &s, tried, r)
		}
	}
	return done
}

// announce records in the state file which objects are about to be created.
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

// try runs a step unless it has failed in this Sync already or its retry is not due. It returns 1 if the step succeeded, else 0.
func (e *Engine) try(ctx context.Context, d *difference, s *Step, tried map[string]bool, r *Result) int {
	key, wanted := s.key(), e.signature(d, s)
	again := tried[key] && e.failed.Has(key)
	tried[key] = true
	if again || ctx.Err() != nil {
		return 0
	}
	if e.tried[key] != wanted {
		e.failed.Forget(key)
	}
	now := e.now()
	if e.failed.Waits(key, now) {
		return 0
	}
	err := e.run(d, s)
	if err == nil {
		e.failed.Forget(key)
		if f := s.family(); !slices.Contains(r.Families, f) {
			r.Families = append(r.Families, f)
		}
		e.log.Debug("HNS step applied", "step", s.String())
		return 1
	}
	e.counts.Failed++
	e.tried[key] = wanted
	refusal := e.failed.Refuse(key, dataplane.Refusal{Port: s.Port(), Object: s.Object(), Reason: err.Error()}, now)
	e.refused(refusal)
	e.log.Warn("HNS rejected a step; will retry", "step", s.String(), "error", err, "retryIn", refusal.RetryAt.Sub(now))
	return 0
}

// noteConflicts reports the conflicts that the last Sync did not find.
func (e *Engine) noteConflicts(list []dataplane.Refusal) {
	before := e.conflicts
	e.conflicts = map[dataplane.Refusal]bool{}
	for _, c := range list {
		e.conflicts[c] = true
		if !before[c] {
			e.refused(c)
		}
	}
}

// signature returns a string that differs between two attempts with the same key but different content.
func (e *Engine) signature(d *difference, s *Step) string {
	switch {
	case s.LoadBalancer != nil:
		return fmt.Sprint(*d.body(s.LoadBalancer))
	case s.Endpoint != nil:
		return fmt.Sprint(s.Endpoint.Body)
	}
	return s.ID
}
