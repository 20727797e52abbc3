package fallback

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/latency"
	"github.com/nkp-proxy/nkp/k8s"
)

// tables is what a worker needs of package xtables.
type tables interface {
	// Restore commits input for iptables-restore to one table, wholly or not at all.
	Restore(ctx context.Context, input []byte) error
	// Begin starts a transaction that is committed later.
	Begin(ctx context.Context, input []byte) (xtables.Transaction, error)
	// Rules gives the rules of one chain; ok is false if there is no such chain.
	Rules(ctx context.Context, table, chain string) (list []string, ok bool, err error)
	// Save calls f for each chain (with rule "") and rule of a table.
	Save(ctx context.Context, table string, f func(chain, rule string)) error
	// ChainNames gives the chains of a table.
	ChainNames(ctx context.Context, table string) ([]string, error)
}

// limits fit transactions to the back end.
type limits struct {
	// chains is how many chains one transaction writes or deletes. iptables-nft takes time that grows with the square of
	// it, while the kernel visits all chains of the network namespace at each commit, twice; legacy replaces the whole
	// table with each transaction, so that few are best.
	chains int
	// live is the same while Services are in force: the kernel then follows all jumps of the table at each commit
	// (0.3 s for 110,000 chains), so that somewhat fewer are better.
	live int
	// deferred is how many deferred rules one transaction adds to a shared chain: for 10,000, four take two thirds of
	// the time of one.
	deferred int
	// save is from how many chains on a table is not read back rule by rule: iptables-nft-save takes time that grows
	// with the square of it (1.8.9: 1.5 s for 11,000 chains, 2 min for 110,000).
	save int
	// ahead tells whether iptables-restore may read one transaction while another commits: legacy's holds the lock.
	ahead bool
}

var (
	nftLimits    = limits{chains: 1800, live: 3000, deferred: 2500, save: 8000, ahead: true}
	legacyLimits = limits{chains: 200_000, live: 200_000, deferred: 2500, save: 10_000_000}
)

// Pauses of a worker.
const (
	retryMin = time.Second
	retryMax = time.Minute
	restMax  = time.Second // between transactions, if the settings ask for no more
	// idleShare: what can wait (deleting chains that nothing leads to, looking whether all is still there) takes at most
	// this part of the time.
	idleShare = 20
)

// worker keeps the rules of one family in step. Everything in it belongs to the goroutine that calls run.
type worker struct {
	family  k8s.Family
	backend string // for measurements
	opts    *Options
	log     *slog.Logger
	tables  tables
	limits  limits
	in      *dataplane.Inbox
	report  func(func(*FamilyStatus))
	forget  func(*staleSet) (int, error) // stale UDP connections
	life    *dataplane.Loop              // of run; nil in tests

	localnet    setting       // route_localnet; nil: not this family's
	setLocalnet bool          // nkp has set it
	said        string        // why it cannot be written
	guardAt     time.Time     // when to look at the guard
	forgetPause time.Duration // after stale UDP connections could not be deleted
	forgetAt    time.Time     // when to try again; zero: at once

	compiler  *rules.Compiler // nil until the first update
	nodeAddrs []netip.Addr    // where NodePorts are
	fixed     rules.Fixed
	wanted    map[k8s.PortName]item
	dirty     map[k8s.PortName]bool // wanted may differ from installed
	refused   *dataplane.Refusals[k8s.PortName]
	stale     map[k8s.PortName]staleUDP // connections to look at once the rules are in

	installed map[k8s.PortName]installation
	links     linkSet
	last      []rules.Link     // those that came last
	deferred  map[linkKey]bool // those that wait until all Services are in
	chains    map[string]chain // Services' own chains, as far as known
	garbage   map[string]bool  // chains to delete: nothing leads there any more

	must     todo           // what to do before Services
	hooked   bool           // the kernel's chains lead to ours
	pause    time.Duration  // after a failure; 0: the last try went well
	took     time.Duration  // the last transaction
	runs     int            // of iptables-restore
	since    time.Time      // arrival of the oldest change that is not in force; zero: all are
	changes  latency.Recent // from arrival to being in force
	notUntil time.Time      // no transaction before
	gcAt     time.Time      // when to delete garbage; zero: nothing there
	checkAt  time.Time      // when to look whether all is still there
	deepAt   time.Time      // and when to look closely
}

// todo is what must be done before Services, each including the next.
type todo int

const (
	nothing todo = iota
	finish       // links that come last, hooks
	ground       // fixed chains
	look         // read back what is there
)

// installation is an item as it is installed, and by which rules.
type installation struct {
	item     item
	compiler *rules.Compiler
}

// chain is what is known of an installed chain.
type chain struct {
	digest uint64 // of its rules; 0: not known
	used   bool   // an installed item has it
}

func newWorker(f k8s.Family, o *Options, t tables, l limits, in *dataplane.Inbox) *worker {
	return &worker{
		family: f, opts: o, log: o.Log.With("family", f), tables: t, limits: l, in: in,
		wanted: map[k8s.PortName]item{}, dirty: map[k8s.PortName]bool{}, refused: dataplane.NewRefusals[k8s.PortName](),
		installed: map[k8s.PortName]installation{}, links: linkSet{}, deferred: map[linkKey]bool{}, chains: map[string]chain{}, garbage: map[string]bool{}, stale: map[k8s.PortName]staleUDP{},
		must: look,
	}
}

// run works until the context ends.
func (w *worker) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.in.Bell:
		case <-timer.C:
		}
		w.life.Work("bringing the rules in step")
		w.takeUpdates()
		if w.compiler == nil {
			w.life.Rest()
			continue
		}
		next := w.step(ctx)
		w.life.Rest()
		timer.Reset(max(0, time.Until(next)))
	}
}

// takeUpdates brings wanted and compiler in step with the model.
func (w *worker) takeUpdates() {
	u := w.in.Take()
	if u == nil {
		return
	}
	if w.since.IsZero() {
		w.since = u.Arrived
	}
	for n, it := range itemsOf(u, w.family) {
		w.noteStale(n, w.wanted[n], it)
		if it.empty() {
			delete(w.wanted, n)
		} else {
			w.wanted[n] = it
		}
		w.dirty[n] = true
		w.refused.Forget(n)
	}
	if !u.Node {
		return
	}
	first := w.compiler == nil
	c := w.opts.Config
	c.BriefEndpoints = w.brief()
	w.compiler = rules.NewCompiler(c, w.family, &u.Facts)
	w.fixed = w.compiler.Fixed()
	w.nodeAddrs = append(slices.Clone(u.Facts.Node.IPs), u.Facts.Node.Local...)
	if !first {
		w.must = max(w.must, ground)
		w.allDirty()
	}
}

// brief reports whether there are so many endpoints that their rules go without comments.
func (w *worker) brief() bool {
	n := 0
	for _, it := range w.wanted {
		if it.port != nil {
			n += len(it.port.ClusterEndpoints)
		}
	}
	return n > briefAbove
}

func (w *worker) allDirty() {
	for n := range w.wanted {
		w.dirty[n] = true
	}
	for n := range w.installed {
		w.dirty[n] = true
	}
}

// step does what is due now and gives the time of the next.
func (w *worker) step(ctx context.Context) (next time.Time) {
	now := time.Now()
	if now.Before(w.notUntil) {
		return w.notUntil
	}
	if !w.checkAt.IsZero() && !now.Before(w.checkAt) {
		w.check(ctx)
	}
	start, runs, full := time.Now(), w.runs, w.must >= ground
	if full {
		w.guardAt = time.Time{} // before anything else is installed
	}
	err := w.keepGuard(ctx)
	if err == nil {
		err = w.prepare(ctx)
	}
	if err == nil {
		err = w.pushDirty(ctx)
	}
	if err == nil && w.settled() && w.must == finish {
		err = w.complete(ctx)
	}
	if err == nil && w.runs > runs {
		w.opts.Hooks.Synced(dataplane.Sync{Families: []k8s.Family{w.family}, Full: full, Took: time.Since(start)})
	}
	if err == nil && w.settled() {
		w.inStep()
		err = w.collect(ctx)
	}
	if ctx.Err() != nil {
		return time.Now().Add(time.Hour) // the loop ends
	}
	now = time.Now()
	if err != nil {
		w.failed(err)
		w.notUntil = now.Add(w.pause)
	} else {
		w.pause = 0
		// Under a stream of changes, half of the time stays for others.
		w.notUntil = now.Add(max(w.opts.MinSyncPeriod, min(now.Sub(start), restMax)))
	}
	return w.next()
}

// settled reports whether nothing is left to program but what waits.
func (w *worker) settled() bool {
	now := time.Now()
	for n := range w.dirty {
		if !w.refused.Waits(n, now) {
			return false
		}
	}
	return true
}

// next gives the time when there is something to do again, if no update comes before.
func (w *worker) next() time.Time {
	next := w.checkAt
	if !w.settled() || w.must > nothing {
		return w.notUntil
	}
	for _, t := range []time.Time{w.guardAt, w.forgetAt, w.gcAt, w.refused.Next()} {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if next.Before(w.notUntil) {
		next = w.notUntil
	}
	return next
}

// prepare does what Services need first.
func (w *worker) prepare(ctx context.Context) error {
	if w.must == look {
		if err := w.adopt(ctx); err != nil {
			return err
		}
		w.must = ground
	}
	if w.must == ground {
		if err := w.installFixed(ctx); err != nil {
			return err
		}
		if !w.hooked && w.fitsOnce() {
			if err := w.hook(ctx); err != nil {
				return err
			}
		}
		w.must = finish
	}
	return nil
}

// fitsOnce reports whether all Services fit into one transaction. Then the kernel's chains may lead to ours before: nothing
// is served, and in one moment all is.
func (w *worker) fitsOnce() bool {
	chains := 0
	for _, it := range w.wanted {
		if it.port != nil {
			chains += len(it.port.ClusterEndpoints) + 4
		}
	}
	return chains <= w.limits.chains
}

// inStep tells others that everything is programmed, if nothing new has come meanwhile.
func (w *worker) inStep() {
	if !w.since.IsZero() {
		w.changes.Add(time.Since(w.since))
		w.since = time.Time{}
		programming := w.changes.Programming()
		w.report(func(s *FamilyStatus) { s.Programming = programming })
	}
	w.report(func(s *FamilyStatus) {
		s.Pending = 0
		s.refuse(w.refused.All())
		s.Services, s.Chains = w.counts()
		if len(s.Refused)+len(w.deferred) == 0 {
			s.LastError = ""
		}
	})
	w.in.WhileIdle(func() {
		w.report(func(s *FamilyStatus) { s.InStep = true })
		w.opts.Hooks.InStep(w.family)
	})
}

func (w *worker) counts() (services, chains int) {
	for _, i := range w.installed {
		if i.item.port != nil {
			services++
		}
	}
	for _, c := range w.chains {
		if c.used {
			chains++
		}
	}
	return services, chains
}

// failed notes a failure that stops everything for a while.
func (w *worker) failed(err error) {
	w.pause = min(max(2*w.pause, retryMin), retryMax)
	w.log.Error("iptables failed; trying again", "in", w.pause, "error", err)
	w.report(func(s *FamilyStatus) {
		s.InStep, s.Pending, s.LastError = false, len(w.dirty), err.Error()
		s.refuse(w.refused.All())
		s.Failures++
	})
}

// restore commits one transaction.
func (w *worker) restore(ctx context.Context, in *input) error {
	if in.empty() {
		return nil
	}
	start := time.Now()
	err := w.tables.Restore(ctx, in.bytes())
	return w.committed(in, time.Since(start), err)
}

// committed notes how a transaction went.
func (w *worker) committed(in *input, took time.Duration, err error) error {
	w.life.Progress()
	w.took = took
	w.runs++
	if w.opts.Hooks.Restored != nil {
		w.opts.Hooks.Restored(dataplane.Restore{Backend: w.backend, Family: w.family, Table: string(in.table), Rules: in.rules, Took: took, Err: err})
	}
	if err != nil {
		return err
	}
	w.log.Debug("committed", "table", in.table, "chains", in.declared, "rules", in.rules, "took", took)
	w.report(func(s *FamilyStatus) {
		s.LastSync, s.LastTook = time.Now(), took
		s.Transactions++
		s.Rules += in.rules
	})
	return nil
}

var errDrift = errors.New("somebody else has changed the rules")
