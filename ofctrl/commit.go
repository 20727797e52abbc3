package ofctrl

import (
	"context"
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
	return res, c.deleteMeters(ctx, d.DelMeters)
}

// setMeters adds meters, and modifies those that exist.
func (c *Conn) setMeters(ctx context.Context, ms []flow.Meter) error {
	tx := &TxError{Stage: StageMeters}
	exist, err := c.meterMods(ctx, tx, meterAdd, ms)
	if err == nil {
		_, err = c.meterMods(ctx, tx, meterModify, exist)
	}
	if err != nil {
		return err
	}
	return tx.orNil()
}

// deleteMeters deletes meters once no flow that is in force uses them.
func (c *Conn) deleteMeters(ctx context.Context, ids []uint32) error {
	ms := make([]flow.Meter, 0, len(ids))
	for _, id := range ids {
		ms = append(ms, flow.Meter{ID: id})
	}
	tx := &TxError{Stage: StageAfter}
	if _, err := c.meterMods(ctx, tx, meterDelete, ms); err != nil && len(tx.Rejected) == 0 {
		tx.Cause = err
	}
	return tx.orNil()
}

// meterMods sends one command for each meter, and adds those that are refused to tx. exist are the meters
// that meterAdd finds on the switch. The error is tx if a meter cannot be sent, else the connection's or the
// context's.
func (c *Conn) meterMods(
	ctx context.Context, tx *TxError, command int, ms []flow.Meter,
) (exist []flow.Meter, err error) {
	if len(ms) == 0 {
		return nil, nil
	}
	reject := func(m flow.Meter, cause error) {
		r := Rejection{Op: OpSet, Object: m, Cause: cause}
		if command == meterDelete {
			r.Op, r.Object = OpDel, MeterID(m.ID)
		}
		tx.Rejected = append(tx.Rejected, r)
	}

	n := len(ms)
	errs, err := c.doBatch(ctx, "changes of meters", n, func(b []byte, i int, xid uint32) ([]byte, error) {
		b, err := meterMod(b, xid, command, ms[i])
		if err != nil {
			reject(ms[i], err)
			err = tx
		}
		return b, err
	})
	if err != nil {
		return nil, err
	}

	for i, m := range ms {
		switch e := errs[i]; {
		case e == nil:
		case command == meterAdd && e.Type == errMeterFailed && e.Code == codeMeterExists:
			exist = append(exist, m)
		default:
			reject(m, e)
		}
	}
	return exist, nil
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
