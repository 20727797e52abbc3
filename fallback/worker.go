package fallback

import (
	"log/slog"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// IdleShare bounds the time of work that can wait (deleting unreferenced chains, checking the installed
// rules): it takes at most one in IdleShare parts.
const IdleShare = 20

// Worker keeps the rules of one family in step: it is what workers of iptables and nftables have in common,
// and part of their dataplane.Steps. All its fields belong to the goroutine that calls Run.
type Worker struct {
	dataplane.Runner
	Name   string // of the plane
	Family k8s.Family
	Opts   *Options
	Log    *slog.Logger
	Report func(func(*FamilyStatus))

	Dirty   map[k8s.PortName]bool // what may differ from what is installed
	Refused *dataplane.Refusals[k8s.PortName]
	Stale   StaleForgetter
	// Localnet keeps the setting that NodePorts at 127.0.0.1 need; nil: the family is IPv6.
	Localnet *Localnet

	CheckAt    time.Time     // when to compare what is installed
	RestMax    time.Duration // bounds the pause between transactions, unless MinSyncPeriod is longer
	Runs       int           // transactions
	Unverified error         // why the last check failed, where changes are programmed all the same

	before int  // Runs when the round began to write
	full   bool // the round is over everything
}

// NewWorker returns a Worker of a plane.
func NewWorker(plane string, f k8s.Family, o *Options, in *dataplane.Inbox) *Worker {
	w := &Worker{
		Name: plane, Family: f, Opts: o, Log: o.Log.With("family", f), Dirty: map[k8s.PortName]bool{},
	}
	w.In, w.Rest, w.Failed = in, w.rest, w.failed
	w.Refused = dataplane.NewRefusals[k8s.PortName](plane, w.Log, o.Hooks.Refused)
	w.Stale = StaleForgetter{
		worker: w, waiting: map[k8s.PortName]staleUDP{}, closing: newClosing(),
		pings: stalePings{all: o.AnswerPing},
	}
	return w
}

// Changed is part of dataplane.Steps: nothing tells of a change, unless the plane's own worker has another
// Changed.
func (w *Worker) Changed() <-chan struct{} { return nil }

// rest returns the pause after a round. Under a stream of changes, half of the time is left to other
// programs. Portions of one change do not wait for MinSyncPeriod each.
func (w *Worker) rest(now time.Time) time.Duration {
	rest := min(now.Sub(w.Start), w.RestMax)
	if w.In.Divided() {
		return rest
	}
	return max(w.Opts.MinSyncPeriod, rest)
}

// Begin notes when a round begins to write, and whether it is over everything.
func (w *Worker) Begin(full bool) { w.Start, w.before, w.full = time.Now(), w.Runs, full }

// Synced tells that all that was due is written, if there was something.
func (w *Worker) Synced() {
	if w.Runs > w.before {
		w.Opts.Hooks.Synced(dataplane.Sync{
			Families: []k8s.Family{w.Family},
			Full:     w.full,
			Took:     time.Since(w.Start),
		})
	}
}

// Committed records the result of a transaction.
func (w *Worker) Committed(r dataplane.Restore) error {
	w.Loop.Progress()
	if w.Opts.Hooks.Restored != nil {
		r.Family = w.Family
		w.Opts.Hooks.Restored(r)
	}
	if r.Err != nil {
		return r.Err
	}
	w.Report(func(s *FamilyStatus) {
		s.LastSync, s.LastTook = time.Now(), r.Took
		s.Transactions++
		s.Rules += r.Rules
	})
	return nil
}

// Due returns the dirty Service ports: those that are due, sorted, and those in backoff.
func (w *Worker) Due() (names, waiting []k8s.PortName) {
	now := time.Now()
	for n := range w.Dirty {
		if w.Refused.Waits(n, now) {
			waiting = append(waiting, n)
		} else {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, k8s.PortName.Compare)
	return names, waiting
}

// Settled reports whether every dirty Service port is in backoff, or none is dirty.
func (w *Worker) Settled() bool {
	names, _ := w.Due()
	return len(names) == 0
}

// Refuse puts a Service port into backoff that the kernel refuses.
func (w *Worker) Refuse(n k8s.PortName, why error) {
	w.Report(func(s *FamilyStatus) { s.Failed(why) })
	w.Refused.Refuse(n, dataplane.Refusal{Port: n, Reason: why.Error()}, time.Now())
}

// InStep updates the status with counts, and reports the family in step unless an update is queued. held is
// how many rules are still to be added.
func (w *Worker) InStep(held int, counts func(*FamilyStatus)) {
	closing := w.Stale.unclosed()
	w.Report(func(s *FamilyStatus) { s.closing = closing }) // before a change is called in force
	programming := w.InForce()
	w.Report(func(s *FamilyStatus) {
		s.Programming, s.Pending = programming, 0
		s.refuse(w.Refused.All())
		counts(s)
		if len(s.Refused)+held == 0 && w.Unverified == nil {
			s.Recovered()
		}
	})
	w.In.WhileIdle(func() {
		w.Report(func(s *FamilyStatus) { s.InStep = w.Unverified == nil })
		w.Opts.Hooks.InStep(w.Family)
	})
}

// Drifted records that another program has changed the rules.
func (w *Worker) Drifted(what string) {
	w.Report(func(s *FamilyStatus) { s.Repairing(what); s.InStep = false })
}

// failed records a failure that pauses the worker.
func (w *Worker) failed(err error, pause time.Duration) {
	w.Log.Error(w.Name+" failed; trying again", "in", pause, "error", err)
	w.Report(func(s *FamilyStatus) {
		s.InStep, s.Pending = false, len(w.Dirty)
		s.Failed(err)
		s.refuse(w.Refused.All())
	})
}
