package dataplane

import (
	"context"
	"sync"
	"time"
)

// Steps are what a plane does in its own way in the rounds of its Runner.
type Steps interface {
	// Take applies changes of the model to the desired state. The first ones have the node.
	Take(u *Update)
	// Changed has an item when another program may have changed what is installed; nil: the plane cannot
	// know.
	Changed() <-chan struct{}
	// Step does the work that is due. It is not called before the node is known.
	Step(ctx context.Context) error
	// Next returns when Step is due without an update, after one that succeeded.
	Next() time.Time
}

// Runner is the loop of a plane that works in rounds: unless the plane rests, it takes the queued updates and
// does a Step. While it is locked, no round goes on; Run and Round lock it. All fields but In and Loop belong
// to the round. In and Rest must be set.
type Runner struct {
	sync.Mutex

	In   *Inbox
	Loop *Loop            // nil in tests
	Now  func() time.Time // nil: time.Now
	// Rest returns the pause after a Step that began, or began to write, at Start and ends now.
	Rest func(now time.Time) time.Duration
	// Failed is called for an error of Step, with the pause that follows it; nil: Step returns none.
	Failed func(err error, pause time.Duration)

	Noticed  bool      // there was an item of Changed; Step may reset it
	Start    time.Time // of the Step
	NotUntil time.Time // earliest time of the next Step

	ready   bool      // the node is known
	since   time.Time // arrival of the oldest change that is not in force; zero: all are
	changes Recent    // from arrival to being in force
	backoff Backoff
}

// Run works in rounds until the context ends. doing is what it does, in words.
func (r *Runner) Run(ctx context.Context, s Steps, doing string) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		noticed := false
		select {
		case <-ctx.Done():
			return
		case <-r.In.Signal:
		case <-s.Changed():
			noticed = true
		case <-timer.C:
		}
		r.Loop.Work(doing)
		next := r.round(ctx, s, noticed)
		r.Loop.Rest()
		timer.Reset(max(0, next.Sub(r.now())))
	}
}

// Round takes the queued updates, does the work that is due, and returns when it must be called again unless
// an update arrives earlier.
func (r *Runner) Round(ctx context.Context, s Steps) (next time.Time) { return r.round(ctx, s, false) }

func (r *Runner) round(ctx context.Context, s Steps, noticed bool) (next time.Time) {
	r.Lock()
	defer r.Unlock()
	r.Noticed = r.Noticed || noticed
	if r.Start = r.now(); r.Start.Before(r.NotUntil) {
		return r.NotUntil // updates wait in the Inbox, which divides them
	}
	if !r.TakeUpdates(s) {
		return r.now().Add(time.Hour) // an update comes first
	}

	err := s.Step(ctx)
	if ctx.Err() != nil {
		return r.now().Add(time.Hour) // the loop ends
	}
	now := r.now()
	if err != nil {
		pause := r.backoff.Failed()
		r.Failed(err, pause)
		r.NotUntil = now.Add(pause)
		return r.NotUntil
	}
	r.backoff = 0
	r.NotUntil = now.Add(r.Rest(now))
	if next = s.Next(); next.Before(r.NotUntil) {
		return r.NotUntil
	}
	return next
}

// TakeUpdates applies the queued changes of the model, and reports whether the node is known by now. The
// Runner must be locked.
func (r *Runner) TakeUpdates(s Steps) (ready bool) {
	if u := r.In.Take(); u != nil {
		if r.since.IsZero() {
			r.since = u.Arrived
		}
		r.ready = r.ready || u.Node
		s.Take(u)
	}
	return r.ready
}

// Pending reports whether there are changes that are not in force.
func (r *Runner) Pending() bool { return !r.since.IsZero() }

// InForce records that all changes taken are in force, and returns how long changes took until they were.
func (r *Runner) InForce() Programming {
	r.In.Settled()
	if r.Pending() {
		r.changes.Add(time.Since(r.since))
		r.since = time.Time{}
	}
	return r.changes.Programming()
}

func (r *Runner) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// Backoff is the pause after failures in a row: it doubles from RetryFirst to RetryMost. The zero Backoff:
// the last attempt succeeded.
type Backoff time.Duration

// Failed records a failure, and returns the pause that follows it.
func (b *Backoff) Failed() time.Duration {
	*b = min(max(2**b, Backoff(RetryFirst)), Backoff(RetryMost))
	return time.Duration(*b)
}

// Earliest returns the first of the times that are set; the zero Time: none is.
func Earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
