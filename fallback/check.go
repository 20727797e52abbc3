package fallback

import (
	"context"
	"time"

	"github.com/nkp-proxy/nkp/fallback/rules"
)

// check looks whether what was installed is still there: each time whether a table was flushed, and as often as it may
// take that long, at every rule. What is missing or too much is repaired by the steps that follow.
func (w *worker) check(ctx context.Context) {
	start := time.Now()
	drift, err := w.flushed()
	if err == nil && drift == "" && !start.Before(w.deepAt) && w.must == nothing {
		drift, err = w.drifted(ctx)
		w.deepAt = time.Now().Add(max(w.opts.SyncPeriod, idleShare*time.Since(start)))
	}
	w.checkAt = time.Now().Add(max(w.opts.SyncPeriod, idleShare*time.Since(start)))
	switch {
	case ctx.Err() != nil:
	case err != nil:
		w.failed(err)
	case drift != "":
		w.log.Warn("somebody else has changed the rules: repairing", "what", drift)
		w.must = look
		w.report(func(s *FamilyStatus) { s.Repairs++; s.InStep = false })
	}
}

// flushed says which table has lost its canary; "" if none has.
func (w *worker) flushed() (string, error) {
	if w.must > finish {
		return "", nil // it is about to be looked at
	}
	for _, t := range canaryTables {
		if _, ok, err := w.tables.Rules(string(t), rules.Canary); err != nil {
			return "", err
		} else if !ok {
			return "table " + string(t) + " was flushed", nil
		}
	}
	return "", nil
}
