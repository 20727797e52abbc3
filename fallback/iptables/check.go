package iptables

import (
	"context"
	"fmt"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// fullCheckPatience is how long updates may delay a check of every rule; after that they no longer interrupt
// it.
const fullCheckPatience = 10 * time.Minute

// verify checks the guard of 127.0.0.0/8 and the installed rules where that is due. A failure is shown and
// tried again, and does not prevent changes from being programmed.
func (w *worker) verify(ctx context.Context) {
	now, err := time.Now(), error(nil)
	guard := w.due < fixedChains && !now.Before(w.guardAt)
	check := !w.CheckAt.IsZero() && !now.Before(w.CheckAt)
	if guard {
		err = w.keepGuard(ctx)
	}
	if check && err == nil {
		err = w.check(ctx)
	}
	switch {
	case ctx.Err() != nil || !guard && !check:
	case err == nil:
		w.Unverified, w.verifyPause = nil, 0
	default:
		w.Unverified = err
		pause := max(w.verifyPause.Failed(), time.Since(now))
		w.CheckAt = time.Now().Add(pause) // both, because success of one says nothing of the other
		w.guardAt = w.CheckAt
		w.Log.Error("iptables failed; trying again", "in", pause, "error", err)
		w.Report(func(s *fallback.FamilyStatus) { s.InStep = false; s.Failed(err) })
	}
}

// check verifies that the installed rules are unchanged. Each time it checks the canaries; it checks every
// rule only as often as fallback.IdleShare allows. The steps that follow repair differences. Reading back a
// large table takes seconds, so that an update that arrives meanwhile interrupts it; the check is then
// repeated later.
func (w *worker) check(ctx context.Context) error {
	start := time.Now()
	drift, err := w.flushed(ctx)
	after := func() time.Time {
		return start.Add(max(w.Opts.SyncPeriod, fallback.IdleShare*time.Since(start)))
	}
	w.CheckAt = after()

	if err == nil && drift == "" && !start.Before(w.fullCheckAt) && w.due == nothing {
		looking, disturbed := ctx, func() bool { return false }
		if start.Sub(w.fullCheckAt) < fullCheckPatience || w.fullCheckAt.IsZero() {
			looking, disturbed = w.In.Undisturbed(ctx)
		}

		drift, err = w.drifted(looking)
		if disturbed() {
			drift, err = "", nil
			if w.fullCheckAt.IsZero() {
				w.fullCheckAt = start
			}
		} else if err != nil {
			w.fullCheckAt = time.Now() // with the next check, which updates may interrupt, too
		} else {
			w.fullCheckAt = after()
			if drift == "" {
				w.Report(func(s *fallback.FamilyStatus) { s.Audited() })
			}
		}
	}

	switch {
	case ctx.Err() != nil:
	case err != nil:
		return fmt.Errorf("cannot read back the installed rules: %w", err)
	case drift != "":
		w.Log.Warn("another program changed the rules: repairing", "what", drift)
		w.due = fullReadBack
		w.Drifted(drift)
	}
	return nil
}

// flushed returns which table was flushed, because its chain rules.Canary is missing; "" if none was.
func (w *worker) flushed(ctx context.Context) (string, error) {
	if w.due > finish {
		return "", nil // prepare is about to read the tables
	}
	for _, t := range canaryTables {
		if _, ok, err := w.tables.Rules(ctx, string(t), rules.Canary); err != nil {
			return "", err
		} else if !ok {
			return "table " + string(t) + " was flushed", nil
		}
	}
	return "", nil
}
