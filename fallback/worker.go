package fallback

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/latency"
	"github.com/nkp-proxy/nkp/k8s"
)

// Pauses of a worker.
const (
	retryMin = time.Second
	retryMax = time.Minute
	restMax  = time.Second // between transactions, unless MinSyncPeriod is longer
	// idleShare: work that can wait (deleting unreferenced chains, checking the installed rules) takes at most one in
	// idleShare parts of the time.
	idleShare = 20
)

// worker keeps the rules of one family in step: it compares the desired state with the installed one, plans a change and
// commits it (committer). All its fields belong to the goroutine that calls run.
type worker struct {
	family k8s.Family
	opts   *Options
	log    *slog.Logger
	in     *dataplane.Inbox

	want     desired
	have     installed
	kernel   committer
	localnet localnetGuard
	stale    staleForgetter

	due         todo           // what to do before Services
	since       time.Time      // arrival of the oldest change that is not in force; zero: all are
	changes     latency.Recent // from arrival to being in force
	pause       time.Duration  // after a failure; 0: the last attempt succeeded
	notUntil    time.Time      // earliest time of the next transaction
	gcAt        time.Time      // when to delete garbage; zero: nothing there
	checkAt     time.Time      // when to check the canaries
	fullCheckAt time.Time      // when to check every rule
	// unverified is why the last check, or the last repair of the guard, failed. Changes are programmed all the same.
	unverified  error
	verifyPause time.Duration // after such a failure
}

func newWorker(f k8s.Family, o *Options, t tables, l limits, in *dataplane.Inbox) *worker {
	w := &worker{family: f, opts: o, log: o.Log.With("family", f), in: in, due: fullReadBack}
	w.want = desired{items: map[k8s.PortName]item{}, dirty: map[k8s.PortName]bool{}, refused: dataplane.NewRefusals[k8s.PortName]()}
	w.have.deferred = map[ruleKey]bool{}
	w.have.reset()
	w.kernel = committer{family: f, opts: o, log: w.log, tables: t, limits: l}
	w.localnet.kernel = &w.kernel
	w.stale = staleForgetter{kernel: &w.kernel, wanted: w.want.ports, waiting: map[k8s.PortName]staleUDP{}}
	return w
}

// todo is the first step that is due. Each step implies those listed above it.
type todo int

const (
	nothing      todo = iota
	finish            // shared rules that come last, hooks
	fixedChains       // fixed chains
	fullReadBack      // read back what is there
)

// run works until the context ends.
func (w *worker) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.in.Signal:
		case <-timer.C:
		}
		w.kernel.loop.Work("bringing the rules in step")
		w.takeUpdates()
		if w.want.compiler == nil {
			w.kernel.loop.Rest()
			continue
		}
		next := w.step(ctx)
		w.kernel.loop.Rest()
		timer.Reset(max(0, time.Until(next)))
	}
}

// takeUpdates applies the queued changes of the model to the desired state.
func (w *worker) takeUpdates() {
	u := w.in.Take()
	if u == nil {
		return
	}
	if w.since.IsZero() {
		w.since = u.Arrived
	}
	for n, it := range itemsOf(u, w.family) {
		w.stale.note(n, w.want.items[n], it)
		if it.empty() {
			delete(w.want.items, n)
		} else {
			w.want.items[n] = it
		}
		w.want.dirty[n] = true
		w.want.refused.Forget(n)
	}
	if !u.Node {
		return
	}
	first := w.want.compiler == nil
	c := w.opts.Config
	c.BriefEndpoints = w.want.brief()
	w.want.compiler = rules.NewCompiler(c, w.family, &u.Facts)
	w.want.fixed = w.want.compiler.Fixed()
	w.want.nodeAddrs = append(slices.Clone(u.Facts.Node.IPs), u.Facts.Node.Local...)
	if !first {
		w.due = max(w.due, fixedChains)
		w.want.allDirty(&w.have)
	}
}

// step does the work that is due and returns when it must be called again.
func (w *worker) step(ctx context.Context) (next time.Time) {
	now := time.Now()
	if now.Before(w.notUntil) {
		return w.notUntil
	}
	w.verify(ctx)
	start, runs, full := time.Now(), w.kernel.runs, w.due >= fixedChains
	var err error
	if full {
		w.localnet.next = time.Time{} // before anything else is installed
		err = w.keepGuard(ctx)
	}
	if err == nil {
		err = w.prepare(ctx)
	}
	if err == nil {
		err = w.pushDirty(ctx)
	}
	if err == nil && w.want.settled() && w.due == finish {
		err = w.complete(ctx)
	}
	if err == nil && w.kernel.runs > runs {
		w.opts.Hooks.Synced(dataplane.Sync{Families: []k8s.Family{w.family}, Full: full, Took: time.Since(start)})
	}
	if err == nil && w.want.settled() {
		w.inStep()
		err = w.collect(ctx)
	}
	if ctx.Err() != nil {
		return time.Now().Add(time.Hour) // the loop ends
	}
	now = time.Now()
	if err != nil {
		w.failed(err)
		w.notUntil = now.Add(w.pause)
	} else {
		w.pause = 0
		// Under a stream of changes, half of the time is left to other programs.
		w.notUntil = now.Add(max(w.opts.MinSyncPeriod, min(now.Sub(start), restMax)))
	}
	return w.next()
}

// next returns when the next step is due, unless an update arrives earlier.
func (w *worker) next() time.Time {
	next := w.checkAt
	if !w.want.settled() || w.due > nothing {
		return w.notUntil
	}
	for _, t := range []time.Time{w.localnet.next, w.stale.due(), w.gcAt, w.want.refused.Next()} {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if next.Before(w.notUntil) {
		next = w.notUntil
	}
	return next
}

// prepare does the work that must precede Services.
func (w *worker) prepare(ctx context.Context) error {
	if w.due == fullReadBack {
		if err := w.adopt(ctx); err != nil {
			return err
		}
		w.due = fixedChains
	}
	if w.due == fixedChains {
		if err := w.installFixed(ctx); err != nil {
			return err
		}
		if !w.have.hooked && w.fitsOnce() {
			if err := w.hook(ctx); err != nil {
				return err
			}
		}
		w.due = finish
	}
	return nil
}

// fitsOnce reports whether all Services fit into one transaction. Then the hooks may be installed before it, because that
// transaction puts all Services in force at once.
func (w *worker) fitsOnce() bool {
	chains := 0
	for _, it := range w.want.items {
		if it.port != nil {
			chains += len(it.port.ClusterEndpoints) + 4
		}
	}
	return chains <= w.kernel.limits.chains
}

// inStep updates the status, and reports the family in step unless an update is queued.
func (w *worker) inStep() {
	if !w.since.IsZero() {
		w.changes.Add(time.Since(w.since))
		w.since = time.Time{}
		programming := w.changes.Programming()
		w.kernel.report(func(s *FamilyStatus) { s.Programming = programming })
	}
	w.kernel.report(func(s *FamilyStatus) {
		s.Pending = 0
		s.refuse(w.want.refused.All())
		s.Services, s.Chains = w.have.counts()
		if len(s.Refused)+len(w.have.deferred) == 0 && w.unverified == nil {
			s.LastError, s.LastErrorAt = "", time.Time{}
		}
	})
	w.in.WhileIdle(func() {
		w.kernel.report(func(s *FamilyStatus) { s.InStep = w.unverified == nil })
		w.opts.Hooks.InStep(w.family)
	})
}

// failed records a failure that pauses the worker.
func (w *worker) failed(err error) {
	w.pause = backOff(w.pause)
	w.log.Error("iptables failed; trying again", "in", w.pause, "error", err)
	w.kernel.report(func(s *FamilyStatus) {
		s.InStep, s.Pending = false, len(w.want.dirty)
		s.failed(err)
		s.refuse(w.want.refused.All())
	})
}

// backOff returns the pause that follows a pause after which the work failed again.
func backOff(pause time.Duration) time.Duration { return min(max(2*pause, retryMin), retryMax) }

var errDrift = errors.New("another program changed the rules")
