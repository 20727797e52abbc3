package iptables

import (
	"context"
	"errors"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// restMax bounds the pause between transactions.
const restMax = time.Second

// worker keeps the rules of one family in step: it compares the desired state with the installed one, plans a
// change and commits it. All its fields belong to the goroutine that calls run.
type worker struct {
	*fallback.Worker

	want desired
	have installed

	backend string // for measurements
	tables  tables
	limits  limits
	took    time.Duration // the last transaction

	due         todo              // what to do before Services
	guardAt     time.Time         // when to check the rules that protect 127.0.0.0/8
	gcAt        time.Time         // when to delete garbage; zero: nothing there
	fullCheckAt time.Time         // when to check every rule; CheckAt is when to check the canaries
	verifyPause dataplane.Backoff // after the last check, or the last repair of the guard, failed
}

func newWorker(of *fallback.Worker, t tables, l limits) *worker {
	w := &worker{Worker: of, tables: t, limits: l, due: fullReadBack}
	w.RestMax, w.Stale.Wanted = restMax, w.want.ports
	w.want.items = map[k8s.PortName]item{}
	w.have.deferred = map[ruleKey]bool{}
	w.have.reset()
	return w
}

// todo is the first step that is due. Each step implies those listed above it.
type todo int

const (
	nothing      todo = iota
	finish            // shared rules that come last, hooks
	fixedChains       // fixed chains
	fullReadBack      // read back what is there
)

// Take is part of dataplane.Steps.
func (w *worker) Take(u *dataplane.Update) {
	for n, it := range itemsOf(u, w.Family) {
		w.Stale.Note(n, w.want.items[n].port, it.port)
		if it.empty() {
			delete(w.want.items, n)
		} else {
			w.want.items[n] = it
		}
		w.Dirty[n] = true
		w.Refused.Forget(n)
	}
	if !u.Node {
		return
	}
	first := w.want.compiler == nil
	c := w.Opts.Config
	c.BriefEndpoints = w.want.omitsComments()
	w.want.compiler = rules.NewCompiler(c, w.Family, &u.Facts)
	w.want.fixed = w.want.compiler.Fixed()
	if !first {
		w.due = max(w.due, fixedChains)
		w.allDirty()
	}
}

// Step is part of dataplane.Steps.
func (w *worker) Step(ctx context.Context) (err error) {
	w.verify(ctx)
	full := w.due >= fixedChains
	w.Begin(full)

	if full {
		w.guardAt = time.Time{} // before anything else is installed
		err = w.keepGuard(ctx)
	}
	if err == nil {
		err = w.prepare(ctx)
	}
	if err == nil {
		err = w.pushDirty(ctx)
	}
	if err == nil && w.Settled() && w.due == finish {
		err = w.complete(ctx)
	}
	if err != nil {
		return err
	}

	w.Synced()
	if !w.Settled() {
		return nil
	}

	w.InStep(len(w.have.deferred), func(s *fallback.FamilyStatus) {
		s.Services, s.Chains = w.have.counts()
		if w.Opts.Canary {
			s.Services--
		}
	})
	return w.collect(ctx)
}

// Next is part of dataplane.Steps.
func (w *worker) Next() time.Time {
	if !w.Settled() || w.due > nothing {
		return w.NotUntil
	}
	return dataplane.Earliest(w.CheckAt, w.guardAt, w.Stale.Due(), w.gcAt, w.Refused.Next())
}

// prepare does the work that must precede Services.
func (w *worker) prepare(ctx context.Context) error {
	if w.due == fullReadBack {
		if err := w.adopt(ctx); err != nil {
			return err
		}
		w.due = fixedChains
	}
	if w.due == fixedChains {
		if err := w.installFixed(ctx); err != nil {
			return err
		}
		if !w.have.hooked && w.fitsOneTransaction() {
			if err := w.hook(ctx); err != nil {
				return err
			}
		}
		w.due = finish
	}
	return nil
}

// fitsOneTransaction reports whether all Services fit into one transaction. Then the hooks may be installed
// before it, because that transaction puts all Services in force at once.
func (w *worker) fitsOneTransaction() bool {
	chains := 0
	for _, it := range w.want.items {
		if it.port != nil {
			chains += len(it.port.ClusterEndpoints) + 4
		}
	}
	return chains <= w.limits.chains
}

var errDrift = errors.New("another program changed the rules")
