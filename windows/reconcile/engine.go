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

// Engine brings HNS in step with plans, and keeps its observation of HNS between Syncs. It is not safe for
// concurrent use.
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
	unread []string                    // ids of objects that RereadAll has yet to read
	failed *dataplane.Refusals[string] // by Step.key
	// tried has the signature of the failed attempt, by Step.key. An attempt with a different one is not
	// delayed.
	tried map[string]string
	// conflicts are those that the last Sync found.
	conflicts map[dataplane.Refusal]bool
	// brokenModify is set when HNS accepted a modification and did not apply it, workingModify when it
	// applied one.
	brokenModify, workingModify bool
	counts                      Counts
	health                      health
	takeOver                    bool
	leftovers                   map[string]bool // ids of what TakeOver concerns; nil: not determined yet
	savedAt                     time.Time       // when the state file was written last
	saidAltered                 bool            // the log has a warning about an altered object
}

// Counts are running totals since the start.
type Counts struct {
	Created, Modified, Replaced, Deleted, Failed uint64 // objects

	FailedLoadBalancers map[FailedLoadBalancer]uint64 `json:"-"` // attempts
}

// Result is the outcome of a Sync.
type Result struct {
	Steps    int          // done
	Families []k8s.Family // of the objects of these steps
	// Refused is sorted by object. One without RetryAt is tried again whenever something changes.
	Refused []dataplane.Refusal
	// Waiting lists what must happen outside nkp before the rest can be programmed.
	Waiting []string
	// Endpoints and LoadBalancers count nkp's objects, Altered those that HNS stores differently than
	// requested, Foreign the load balancers of another owner.
	Endpoints, LoadBalancers, Altered, Foreign int
	Stale                                      Stale
}

// Retry returns when to call Sync again for what failed; the zero Time: no need to.
func (r *Result) Retry() (at time.Time) {
	for _, f := range r.Refused {
		at = dataplane.Earliest(at, f.RetryAt)
	}
	return at
}

// New returns an engine; refused is called for each try that failed, now is the clock. A state file that
// cannot be read is reported in the log.
func New(
	host hns.Host, store StateFile, refused func(dataplane.Refusal), log *slog.Logger, now func() time.Time,
) *Engine {
	e := &Engine{
		host: host, store: store, refused: refused, log: log, now: now,
		failed: dataplane.NewRefusals[string]("HNS", log, refused),
		tried:  map[string]string{},
	}
	var err error
	if e.owned, err = store.Load(); err != nil {
		log.Warn("cannot use the state file: load balancers of Services that are gone may stay; "+
			"remove them by hand", "error", err)
	}
	return e
}

// Observe updates the observation of HNS: by reading every object the first time and when the network has
// changed, else by enumeration, which is cheap. An error keeps the previous observation.
func (e *Engine) Observe(network string) error {
	if !e.read || e.have.network != network {
		e.read = false
		if err := e.have.read(e.host, network); err != nil {
			return err
		}
		e.read = true
		e.health.again()
	} else if err := e.have.follow(e.host); err != nil {
		return err
	}
	e.settle()
	return nil
}

// Undisturbed enumerates the endpoints, and reports whether they are the observed ones, so that w can be
// programmed without another look at HNS. It cannot if w has a new endpoint that no node of the network
// holds: the node may have joined since the network was read. false: Observe must be called.
func (e *Engine) Undisturbed(w *plan.Wanted, network *hns.Network) bool {
	ids, err := e.host.EndpointIDs(e.have.network)
	if err != nil || len(ids) == 0 || len(ids) != len(e.have.endpoints) { // none: the network may be gone
		return false
	}
	for _, id := range ids {
		if e.have.endpoints[hns.CanonicalID(id)] == nil {
			return false
		}
	}
	for a, want := range w.Endpoints {
		isNew := want.Purpose == plan.ForBackend && len(e.have.at(a)) == 0
		if isNew && network.Overlay() && !network.Provider(a).IsValid() {
			return false
		}
	}
	return true
}

// RereadAll schedules every object to be read again, by Reread.
func (e *Engine) RereadAll() {
	e.unread = slices.Sorted(maps.Keys(e.have.endpoints))
	e.unread = append(e.unread, slices.Sorted(maps.Keys(e.have.loadBalancers))...)
	e.health.again()
}

// Reread continues what RereadAll began, until stop returns true or all is read. It reports whether objects
// are left. One that cannot be read stays as it was observed before, and the log says so.
func (e *Engine) Reread(stop func() bool) (left bool) {
	for len(e.unread) > 0 && !stop() {
		id := e.unread[0]
		e.unread = e.unread[1:]
		if err := e.have.reread(e.host, id); err != nil {
			e.log.Warn("cannot read an object of HNS again; nkp takes it for unchanged until the next full read",
				"id", id, "error", err)
		}
	}
	return len(e.unread) > 0
}

// settle updates ownership to what was observed: pending objects get the id that HNS gave them, objects that
// no longer exist are dropped.
func (e *Engine) settle() {
	e.owned.identify(&e.have)
	maps.DeleteFunc(e.owned.LoadBalancers, func(id string, _ bool) bool {
		return e.have.loadBalancers[id] == nil
	})
	maps.DeleteFunc(e.owned.Endpoints, func(id string, _ bool) bool {
		return e.have.endpoints[id] == nil
	})
	maps.DeleteFunc(e.owned.Altered, func(id string, _ Alteration) bool {
		return e.have.loadBalancers[id] == nil && e.have.endpoints[id] == nil
	})
}

// Counts returns the running totals.
func (e *Engine) Counts() Counts {
	c := e.counts
	c.FailedLoadBalancers = maps.Clone(c.FailedLoadBalancers)
	return c
}

// LoadBalancers returns nkp's own load balancers as they were read last, by id. They must not be changed.
func (e *Engine) LoadBalancers() (own []*hns.LoadBalancer) {
	for _, id := range slices.Sorted(maps.Keys(e.owned.LoadBalancers)) {
		if l := e.have.loadBalancers[id]; l != nil {
			own = append(own, l)
		}
	}
	return own
}

// CanModify reports whether load balancers are modified in place: HNS claims to support it, and no attempt
// has disproved it.
func (e *Engine) CanModify(features hns.Features) bool {
	return features.ModifyLoadbalancer && !e.brokenModify
}

// Diff returns the steps that Sync would take. Nothing is written. Observe must have succeeded.
func (e *Engine) Diff(w *plan.Wanted, features hns.Features) ([]Step, []dataplane.Refusal) {
	e.findLeftovers(w)
	d := e.difference(w, features)
	steps := d.createEndpoints()
	d.fresh = map[netip.Addr]string{}
	for _, s := range steps {
		d.fresh[s.Endpoint.Addr] = "new " + s.Endpoint.Addr.String()
	}
	return slices.Concat(steps, d.loadBalancers(), d.deleteEndpoints()), d.conflicts
}

func (e *Engine) difference(w *plan.Wanted, features hns.Features) *difference {
	return &difference{
		w:         w,
		have:      &e.have,
		owned:     e.owned,
		leftovers: e.leftovers,
		health:    &e.health,
		modify:    e.CanModify(features),
	}
}

// Sync brings HNS in step with w, as far as it can. Observe must have succeeded. The error returned concerns
// only the state file; all others are in the result.
//
// When the context ends, no further step is begun.
func (e *Engine) Sync(ctx context.Context, w *plan.Wanted, features hns.Features) (r Result, err error) {
	var d *difference
	tried := map[string]bool{}
	e.findLeftovers(w)
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
	r.Altered = len(e.owned.Altered)
	r.Foreign = len(e.have.loadBalancers) - r.LoadBalancers
	r.Stale = e.have.stale(w)
	return r, nil
}

// pass does what can be done now: first the endpoints that load balancers need, last those that none needs
// any more.
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
		// A load balancer that could not be changed yet, or a foreign one, may need it.
		if !needed[s.ID] && !needed[s.addr.String()] {
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
	e.saved, e.savedAt = text, e.now()
	return nil
}

// saveEvery bounds what an agent that dies during a long Sync has not recorded about the objects that it
// created.
const saveEvery = time.Second

// try runs a step unless it has failed in this Sync already or its retry is not due. It returns 1 if the step
// succeeded, else 0.
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
		level := slog.LevelDebug
		if e.leftovers[s.ID] {
			level = slog.LevelInfo
		}
		e.log.Log(ctx, level, "HNS step applied", "step", s.String())
		if now.Sub(e.savedAt) >= saveEvery {
			if err := e.save(); err != nil {
				e.log.Warn("cannot write the state file during a sync", "error", err)
			}
		}
		return 1
	}

	e.countFailed(s, err)
	e.tried[key] = wanted
	e.failed.Refuse(key, dataplane.Refusal{Port: s.Port(), Object: s.Object(), Reason: err.Error()}, now)
	return 0
}

// noteConflicts reports, in the log and to the hook, the conflicts that the last Sync did not find.
func (e *Engine) noteConflicts(list []dataplane.Refusal) {
	before := e.conflicts
	e.conflicts = map[dataplane.Refusal]bool{}
	for _, c := range list {
		e.conflicts[c] = true
		if !before[c] {
			e.log.Warn("a load balancer may not serve its Service",
				"object", c.Object, "service", c.Port.String(), "reason", c.Reason)
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
