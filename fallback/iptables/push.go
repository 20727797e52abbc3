package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// maxRefused bounds the items that one round isolates when transactions fail. With more, the items are not
// the cause.
const maxRefused = 32

// errManyRefused ends a round in which iptables refuses almost everything.
var errManyRefused = errors.New("iptables refused too many Services in one round")

// round is one pass over the dirty items.
type round struct {
	looked  bool // the rules were read back after the first failure, and had not changed
	refused int  // items isolated so far
}

// pushDirty programs the dirty items in bounded transactions, in the order of their names, so that a
// Service's ports come together. Between transactions it takes new updates. While one commits, the next are
// planned and parsed (batch.go).
func (w *worker) pushDirty(ctx context.Context) error {
	var r round
	var next queue
	defer next.abandon()

	for names, _ := w.Due(); len(names) > 0; {
		b := next.take()
		if b == nil {
			b = w.batch(names)
		}
		names = names[len(b.names):]

		err := w.commitBatch(ctx, b, func() {
			if w.limits.ahead {
				w.fill(ctx, &next, b, names)
			}
		})
		if err != nil {
			next.abandon()
			if err := w.blame(ctx, b.change, err, &r); err != nil {
				return err
			}
		}

		if err := w.keepGuard(ctx); err != nil {
			return err
		}

		if !w.In.Idle() {
			next.abandon()
			w.TakeUpdates(w)
			if w.due > finish {
				return nil // the next round must write the fixed chains first
			}
			names, _ = w.Due()
		}
	}

	w.Stale.Run()
	return w.addDeferred(ctx)
}

// blame handles the result of committing a change, which is err. If the change was refused, it puts the items
// at fault into backoff, found by bisection, and commits the others.
func (w *worker) blame(ctx context.Context, c *change, err error, r *round) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, restore.ErrBusy) {
		return err
	}

	w.due = max(w.due, finish) // a part may be installed: the next round sweeps up
	if w.Opts.Hooks.Split != nil {
		w.Opts.Hooks.Split(w.Family)
	}

	if !r.looked {
		// Another program may have changed the rules.
		if drift, lookErr := w.drifted(ctx); lookErr != nil {
			return errors.Join(err, lookErr)
		} else if drift != "" {
			w.due = fullReadBack
			return fmt.Errorf("%w (%s): %w", errDrift, drift, err)
		}
		r.looked = true
		if err = w.commit(ctx, c); err == nil { // another program's change had interfered
			return nil
		}
	}

	if len(c.names) == 1 {
		w.Refuse(c.names[0], err)
		if r.refused++; r.refused > maxRefused {
			return fmt.Errorf("%w: %w", errManyRefused, err)
		}
		return nil
	}

	half := len(c.names) / 2
	for _, names := range [][]k8s.PortName{c.names[:half], c.names[half:]} {
		part := &change{shared: delta{}}
		for _, n := range names {
			w.plan(part, n)
		}
		if err := w.blame(ctx, part, w.commit(ctx, part), r); err != nil {
			return err
		}
	}
	return nil
}

// collect deletes unreferenced chains, at most one transaction of them at a time. Deleting costs as much as a
// change does, so it waits until the plane has been idle for a while.
func (w *worker) collect(ctx context.Context) error {
	now := time.Now()
	if len(w.have.garbage) == 0 {
		w.gcAt = time.Time{}
		return nil
	}
	if w.gcAt.IsZero() {
		w.gcAt = now.Add(fallback.IdleShare * w.took)
	}
	if now.Before(w.gcAt) {
		return nil
	}
	// Each chain comes after the chains that jump to it.
	names := slices.SortedFunc(maps.Keys(w.have.garbage), rules.CompareServiceChains)
	names = names[:min(len(names), w.limits.chains)]
	err := w.delete(ctx, names)
	w.gcAt = time.Time{}
	if err != nil {
		return err
	}
	if len(w.have.garbage) > 0 {
		w.gcAt = now.Add(time.Since(now) * 2)
	}
	return nil
}
