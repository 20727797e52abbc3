package fallback

import (
	"context"
	"time"

	"github.com/nkp-proxy/nkp/fallback/rules"
)

// lookPatience is how long a close look may be put off by updates before it is no longer.
const lookPatience = 10 * time.Minute

// check looks whether what was installed is still there: each time whether a table was flushed, and as often as it may
// take that long, at every rule. What is missing or too much is repaired by the steps that follow. Reading back a large
// table takes seconds; an update that comes meanwhile goes first, and the look is taken later.
func (w *worker) check(ctx context.Context) {
	start := time.Now()
	drift, err := w.flushed(ctx)
	w.checkAt = time.Now().Add(max(w.opts.SyncPeriod, idleShare*time.Since(start)))
	if err == nil && drift == "" && !start.Before(w.deepAt) && w.must == nothing {
		looking, disturbed := ctx, func() bool { return false }
		if start.Sub(w.deepAt) < lookPatience || w.deepAt.IsZero() {
			looking, disturbed = w.in.Undisturbed(ctx)
		}
		drift, err = w.drifted(looking)
		if disturbed() {
			drift, err = "", nil
			if w.deepAt.IsZero() {
				w.deepAt = start
			}
		} else {
			w.deepAt = time.Now().Add(max(w.opts.SyncPeriod, idleShare*time.Since(start)))
		}
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		w.failed(err)
	case drift != "":
		w.log.Warn("another program changed the rules: repairing", "what", drift)
		w.must = look
		w.kernel.report(func(s *FamilyStatus) { s.Repairs++; s.InStep = false })
	}
}

// flushed returns which table has lost its canary; "" if none has.
func (w *worker) flushed(ctx context.Context) (string, error) {
	if w.must > finish {
		return "", nil // it is about to be looked at
	}
	for _, t := range canaryTables {
		if _, ok, err := w.kernel.tables.Rules(ctx, string(t), rules.Canary); err != nil {
			return "", err
		} else if !ok {
			return "table " + string(t) + " was flushed", nil
		}
	}
	return "", nil
}
