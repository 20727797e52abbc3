package fallback

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/latency"
	"github.com/nkp-proxy/nkp/k8s"
)

// RetryMin and retryMax bound the pause after a failure.
const (
	RetryMin = time.Second
	retryMax = time.Minute
)

// IdleShare bounds the time of work that can wait (deleting unreferenced chains, checking the installed rules): it takes at most one in
// IdleShare parts.
const IdleShare = 20

// Steps are what a Worker does in its own way with iptables and with nftables.
type Steps interface {
	// Take applies changes of the model to the desired state. The first ones have the node.
	Take(u *dataplane.Update)
	// Changed has an item when another program may have changed what is installed: it is compared from LookFrom on. nil: nothing tells.
	Changed() <-chan struct{}
	// Step does the work that is due; it calls Begin before it writes, then Synced and InStep.
	Step(ctx context.Context) error
	// Next returns when Step is due without an update.
	Next() time.Time
}

// Worker keeps the rules of one family in step: it is what workers of iptables and nftables have in common. All its fields belong to the
// goroutine that calls Run.
type Worker struct {
	Name   string // of the plane
	Family k8s.Family
	Opts   *Options
	Log    *slog.Logger
	In     *dataplane.Inbox
	Loop   *dataplane.Loop // nil in tests
	Report func(func(*FamilyStatus))

	Dirty   map[k8s.PortName]bool // what may differ from what is installed
	Refused *dataplane.Refusals[k8s.PortName]
	Stale   StaleForgetter

	NotUntil   time.Time     // earliest time of the next transaction
	CheckAt    time.Time     // when to compare what is installed
	LookFrom   time.Time     // the earliest time to compare it because of a notification
	RestMax    time.Duration // bounds the pause between transactions, unless MinSyncPeriod is longer
	Runs       int           // transactions
	Unverified error         // why the last check failed, where changes are programmed all the same

	ready   bool           // the node is known
	since   time.Time      // arrival of the oldest change that is not in force; zero: all are
	changes latency.Recent // from arrival to being in force
	pause   time.Duration  // after a failure; 0: the last attempt succeeded
	start   time.Time      // of the round
	before  int            // Runs at start
	full    bool           // the round is over everything
}

// NewWorker returns a Worker of a plane.
func NewWorker(plane string, f k8s.Family, o *Options, in *dataplane.Inbox) *Worker {
	w := &Worker{
		Name: plane, Family: f, Opts: o, Log: o.Log.With("family", f), In: in,
		Dirty: map[k8s.PortName]bool{}, Refused: dataplane.NewRefusals[k8s.PortName](),
	}
	w.Stale = StaleForgetter{worker: w, waiting: map[k8s.PortName]staleUDP{}}
	return w
}

// Run works until the context ends. doing is what it does, in words.
func (w *Worker) Run(ctx context.Context, s Steps, doing string) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.In.Signal:
		case <-s.Changed():
			w.CheckAt = w.LookFrom
		case <-timer.C:
		}
		w.Loop.Work(doing)
		if w.TakeUpdates(s); w.ready {
			next := w.Round(ctx, s)
			timer.Reset(max(0, time.Until(next)))
		}
		w.Loop.Rest()
	}
}

// TakeUpdates applies the queued changes of the model.
func (w *Worker) TakeUpdates(s Steps) {
	u := w.In.Take()
	if u == nil {
		return
	}
	if w.since.IsZero() {
		w.since = u.Arrived
	}
	s.Take(u)
	if u.Node {
		w.ready, w.Stale.node = true, append(slices.Clone(u.Facts.Node.IPs), u.Facts.Node.Local...)
	}
}

// Round does the work that is due, and returns when it must be called again unless an update arrives earlier.
func (w *Worker) Round(ctx context.Context, s Steps) (next time.Time) {
	if time.Now().Before(w.NotUntil) {
		return w.NotUntil
	}
	w.Begin(false)
	err := s.Step(ctx)
	if ctx.Err() != nil {
		return time.Now().Add(time.Hour) // the loop ends
	}
	now := time.Now()
	if err != nil {
		w.failed(err)
		w.NotUntil = now.Add(w.pause)
	} else {
		w.pause = 0
		// Under a stream of changes, half of the time is left to other programs.
		w.NotUntil = now.Add(max(w.Opts.MinSyncPeriod, min(now.Sub(w.start), w.RestMax)))
	}
	if next = s.Next(); next.Before(w.NotUntil) {
		return w.NotUntil
	}
	return next
}

// Begin notes when a round begins to write, and whether it is over everything.
func (w *Worker) Begin(full bool) { w.start, w.before, w.full = time.Now(), w.Runs, full }

// Synced tells that all that was due is written, if there was something.
func (w *Worker) Synced() {
	if w.Runs > w.before {
		w.Opts.Hooks.Synced(dataplane.Sync{Families: []k8s.Family{w.Family}, Full: w.full, Took: time.Since(w.start)})
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
	now := time.Now()
	r := w.Refused.Refuse(n, dataplane.Refusal{Port: n, Reason: why.Error()}, now)
	w.Log.Error(w.Name+" refused a Service and will retry it; other Services are not affected",
		"service", n, "protocol", n.Protocol, "error", why, "retryIn", r.RetryAt.Sub(now))
	w.Report(func(s *FamilyStatus) { s.Failed(why) })
	w.Opts.Hooks.Refused(r)
}

// InStep updates the status with counts, and reports the family in step unless an update is queued. held is how many rules are still to be
// added.
func (w *Worker) InStep(held int, counts func(*FamilyStatus)) {
	if !w.since.IsZero() {
		w.changes.Add(time.Since(w.since))
		w.since = time.Time{}
	}
	programming := w.changes.Programming()
	w.Report(func(s *FamilyStatus) {
		s.Programming, s.Pending = programming, 0
		s.refuse(w.Refused.All())
		counts(s)
		if len(s.Refused)+held == 0 && w.Unverified == nil {
			s.LastError, s.LastErrorAt = "", time.Time{}
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
func (w *Worker) failed(err error) {
	w.pause = BackOff(w.pause)
	w.Log.Error(w.Name+" failed; trying again", "in", w.pause, "error", err)
	w.Report(func(s *FamilyStatus) {
		s.InStep, s.Pending = false, len(w.Dirty)
		s.Failed(err)
		s.refuse(w.Refused.All())
	})
}

// BackOff returns the pause that follows a pause after which the work failed again.
func BackOff(pause time.Duration) time.Duration { return min(max(2*pause, RetryMin), retryMax) }
