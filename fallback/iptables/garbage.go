package iptables

import (
	"context"
	"errors"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// delete deletes garbage, chains of Services in table nat to which no rule of nkp's jumps any more. One to
// which another program's rule jumps stays; the others are deleted.
func (w *worker) delete(ctx context.Context, names []string) error {
	in := newInput(rules.NAT)
	for _, n := range names {
		in.chain(n)
		in.drop(n)
	}

	err := w.restore(ctx, in)
	switch {
	case err == nil:
		for _, n := range names {
			delete(w.have.garbage, n)
			delete(w.have.chains, n)
		}
		return nil
	case ctx.Err() != nil || errors.Is(err, restore.ErrBusy):
		return err
	case len(names) == 1:
		w.Log.Warn("cannot delete a chain that no Service uses; it stays until the next start",
			"chain", names[0], "error", err)
		delete(w.have.garbage, names[0])
		return nil
	}

	half := len(names) / 2
	if err := w.delete(ctx, names[:half]); err != nil {
		return err
	}
	return w.delete(ctx, names[half:])
}
