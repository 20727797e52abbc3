package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// maxRefused bounds how many items are singled out at once when transactions fail: with more, it is not the items' fault.
const maxRefused = 32

// errManyRefused ends a round in which iptables takes almost nothing.
var errManyRefused = errors.New("iptables refuses one Service after the other")

// round is one pass over what is dirty.
type round struct {
	looked  bool // after the first failure: what is there is what it was
	refused int
}

// pushDirty programs what is dirty, in bounded transactions and in the order of names: a Service's ports come together.
// Between two of them it takes what is new. While one commits, the next are planned and read (batch.go).
func (w *worker) pushDirty(ctx context.Context) error {
	var r round
	var next queue
	defer next.abandon()
	for names := w.want.due(); len(names) > 0; {
		b := next.take()
		if b == nil {
			b = w.batch(names)
		}
		names = names[len(b.names):]
		err := w.commitBatch(ctx, b, func() {
			if w.kernel.limits.ahead {
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
		if !w.in.Idle() {
			next.abandon()
			w.takeUpdates()
			if w.must > finish {
				return nil // fixed chains come first: the next round sees to them
			}
			names = w.want.due()
		}
	}
	w.udp.run(w.want.nodeAddrs)
	return w.addDeferred(ctx)
}

// push commits a change. If it is refused, it finds out whose fault that is: those wait, the others go on.
func (w *worker) push(ctx context.Context, c *change, r *round) error {
	return w.blame(ctx, c, w.commit(ctx, c), r)
}

// blame finds out, if a change was refused, whose fault that is.
func (w *worker) blame(ctx context.Context, c *change, err error, r *round) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, xtables.ErrBusy) {
		return err
	}
	w.must = max(w.must, finish) // a part may be in: the next round sweeps up
	if w.opts.Hooks.Split != nil {
		w.opts.Hooks.Split(w.family)
	}
	if !r.looked {
		// What is there may not be what it was.
		if drift, lookErr := w.drifted(ctx); lookErr != nil {
			return errors.Join(err, lookErr)
		} else if drift != "" {
			w.must = look
			return fmt.Errorf("%w (%s): %w", errDrift, drift, err)
		}
		r.looked = true
		if err = w.commit(ctx, c); err == nil { // another program's change came between
			return nil
		}
	}
	if len(c.names) == 1 {
		n := c.names[0]
		now := time.Now()
		refusal := w.want.refused.Refuse(n, dataplane.Refusal{Port: n, Reason: err.Error()}, now)
		w.log.Error("iptables refuses a Service; the others go on", "service", n, "protocol", n.Protocol, "error", err, "retryIn", refusal.RetryAt.Sub(now))
		w.kernel.report(func(s *FamilyStatus) { s.Failures++; s.LastError = err.Error() })
		w.opts.Hooks.Refused(refusal)
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
		if err := w.push(ctx, part, r); err != nil {
			return err
		}
	}
	return nil
}

// collect deletes chains that nothing leads to any more, when it is time: it costs as much as a change, and can wait.
func (w *worker) collect(ctx context.Context) error {
	now := time.Now()
	if len(w.have.garbage) == 0 {
		w.gcAt = time.Time{}
		return nil
	}
	if w.gcAt.IsZero() {
		w.gcAt = now.Add(idleShare * w.kernel.took)
	}
	if now.Before(w.gcAt) {
		return nil
	}
	names := make([]string, 0, len(w.have.garbage))
	for n := range w.have.garbage {
		names = append(names, n)
	}
	slices.SortFunc(names, rules.CompareServiceChains) // none goes before those that lead to it
	names = names[:min(len(names), w.kernel.limits.chains)]
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
