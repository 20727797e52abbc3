package ofctrl

import (
	"context"
	"errors"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Result is what a transaction cost.
type Result struct {
	// Duration is the time from the first message to the reply to the commit; 0 if there was no bundle.
	Duration time.Duration
	Messages int // in the bundle
	Bytes    int // of these messages
}

// Commit applies d. First it sets meters, because a bundle cannot contain them. Then it sends groups and
// flows as one atomic, ordered bundle: none is in force before all are. When the bundle is in force, it
// deletes meters. It leaves d.FlushCT to Flush. An error is a *TxError, or wraps ErrOutcomeUnknown, or is
// that of the connection or context; in the last two cases nothing of the bundle is in force.
//
// The end of ctx ends Commit only until the commit message has been sent. After that Commit waits a moment
// longer for the reply, so that the outcome is known.
func (c *Conn) Commit(ctx context.Context, d *flow.Delta) (Result, error) {
	select {
	case c.commitSem <- struct{}{}:
		defer func() { <-c.commitSem }()
	case <-ctx.Done():
		return Result{}, ctx.Err()
	case <-c.done:
		return Result{}, c.err
	}
	if err := c.setMeters(ctx, d.SetMeters); err != nil {
		return Result{}, err
	}
	res, err := c.commitBundle(ctx, d)
	if err != nil {
		return res, err
	}
	return res, c.afterwards(ctx, d)
}

// setMeters adds meters, and modifies those that exist.
func (c *Conn) setMeters(ctx context.Context, ms []flow.Meter) error {
	if len(ms) == 0 {
		return nil
	}
	errs, err := c.meterMods(ctx, meterAdd, ms)
	if err != nil {
		return err
	}

	var exist []flow.Meter
	tx := &TxError{Stage: StageMeters}
	for i, m := range ms {
		switch e := errs[i]; {
		case e == nil:
		case e.Type == errMeterFailed && e.Code == codeMeterExists:
			exist = append(exist, m)
		default:
			tx.Rejected = append(tx.Rejected, Rejection{Op: OpSet, Object: m, Cause: e})
		}
	}

	if len(exist) > 0 {
		if errs, err = c.meterMods(ctx, meterModify, exist); err != nil {
			return err
		}
		for i, m := range exist {
			if e := errs[i]; e != nil {
				tx.Rejected = append(tx.Rejected, Rejection{Op: OpSet, Object: m, Cause: e})
			}
		}
	}

	return tx.orNil()
}

func (c *Conn) meterMods(ctx context.Context, command int, ms []flow.Meter) (map[int]*SwitchError, error) {
	return c.doBatch(ctx, "changes of meters", len(ms), func(b []byte, i int, xid uint32) ([]byte, error) {
		out, err := meterMod(b, xid, command, ms[i])
		if err != nil {
			return b, &TxError{
				Stage:    StageMeters,
				Rejected: []Rejection{{Op: OpSet, Object: ms[i], Cause: err}},
			}
		}
		return out, nil
	})
}

// orNil returns nil for a transaction without a failure.
func (e *TxError) orNil() error {
	if len(e.Rejected) == 0 && e.Cause == nil {
		return nil
	}
	if n := len(e.Rejected); n > maxRejections {
		e.Rejected, e.More = e.Rejected[:maxRejections], e.More+n-maxRejections
	}
	return e
}

// afterwards deletes meters.
func (c *Conn) afterwards(ctx context.Context, d *flow.Delta) error {
	if len(d.DelMeters) == 0 {
		return nil
	}

	n := len(d.DelMeters)
	errs, err := c.doBatch(ctx, "deletions of meters", n, func(b []byte, i int, xid uint32) ([]byte, error) {
		out, err := meterMod(b, xid, meterDelete, flow.Meter{ID: d.DelMeters[i]})
		if err != nil {
			return b, &TxError{
				Stage:    StageAfter,
				Rejected: []Rejection{{Op: OpDel, Object: MeterID(d.DelMeters[i]), Cause: err}},
			}
		}
		return out, nil
	})

	tx := &TxError{Stage: StageAfter}
	switch {
	case errors.As(err, &tx):
		return err
	case err != nil:
		return &TxError{Stage: StageAfter, Cause: err}
	}

	for i, id := range d.DelMeters {
		if e := errs[i]; e != nil {
			tx.Rejected = append(tx.Rejected, Rejection{Op: OpDel, Object: MeterID(id), Cause: e})
		}
	}
	return tx.orNil()
}
