//go:build linux

package fallback

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	nft "github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/latency"
	"github.com/nkp-proxy/nkp/k8s"
)

// nftWorker keeps the nftables table of one family in step. All its fields belong to the goroutine that calls run.
type nftWorker struct {
	family k8s.Family
	opts   *Options
	log    *slog.Logger
	in     *dataplane.Inbox
	loop   *dataplane.Loop
	report func(func(*FamilyStatus))
	group  *netlink.Group // of all families' sockets
	conn   *netlink.Conn
	watch  *netlink.Watch
	broken bool // the last step failed: the sockets are opened again, because an answer to it may still come

	want      map[k8s.PortName]*k8s.ServicePort
	dirty     map[k8s.PortName]bool // Service ports that may differ from what is installed
	compiler  *nft.Compiler         // nil until the first update
	nodeAddrs []netip.Addr          // addresses that serve NodePorts
	refused   *dataplane.Refusals[k8s.PortName]
	have      nftTable
	stale     staleForgetter
	localnet  nftLocalnet
	flowtable nftFlowtable

	due      todo           // fullReadBack or nothing
	since    time.Time      // arrival of the oldest change that is not in force; zero: all are
	changes  latency.Recent // from arrival to being in force
	pause    time.Duration  // after a failure; 0: the last attempt succeeded
	notUntil time.Time      // earliest time of the next transaction
	checkAt  time.Time      // when to compare the installed table
	lookFrom time.Time      // the earliest time to compare it because of a notification
}

// newNFTWorker returns a worker with an open socket.
func newNFTWorker(f k8s.Family, o *Options, g *netlink.Group, in *dataplane.Inbox, loop *dataplane.Loop, report func(func(*FamilyStatus))) (*nftWorker, error) {
	w := &nftWorker{
		family: f, opts: o, log: o.Log.With("family", f), in: in, loop: loop, report: report, group: g,
		want: map[k8s.PortName]*k8s.ServicePort{}, dirty: map[k8s.PortName]bool{}, refused: dataplane.NewRefusals[k8s.PortName](),
	}
	if err := w.connect(); err != nil {
		return nil, err
	}
	var err error
	if w.flowtable.lacking, err = o.lacksFlowtable(w.conn, f); err != nil {
		w.close()
		return nil, err
	}
	w.have.reset()
	w.stale = staleForgetter{kernel: &committer{family: f, opts: o, log: w.log, report: report}, waiting: map[k8s.PortName]staleUDP{},
		wanted: func() iter.Seq[*k8s.ServicePort] { return maps.Values(w.want) }}
	if f == k8s.IPv4 {
		w.localnet.setting = routeLocalnet{}
	}
	w.localnet.log = w.log
	return w, nil
}

// connect opens the sockets, and closes those that were open. Changes by others may have been missed.
func (w *nftWorker) connect() error {
	conn, err := w.group.Open()
	if err != nil {
		return err
	}
	watch, err := w.group.Watch(w.family, conn.Port())
	if err != nil {
		conn.Close()
		return err
	}
	w.close()
	w.conn, w.watch, w.due, w.broken = conn, watch, fullReadBack, false
	return nil
}

// close closes the sockets.
func (w *nftWorker) close() {
	if w.conn != nil {
		w.watch.Close()
		w.conn.Close()
	}
}

// run works until the context ends.
func (w *nftWorker) run(ctx context.Context) error {
	defer w.close()
	w.stale.forget = func(s *staleSet) (int, error) { return conntrack.Forget(ctx, w.family, 0, s.stale) } // other zones are Open vSwitch's
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.in.Signal:
		case <-w.watch.Changed:
			w.checkAt = w.lookFrom
		case <-timer.C:
		}
		w.loop.Work("bringing the table in step")
		w.takeUpdates()
		if w.compiler == nil {
			w.loop.Rest()
			continue
		}
		next := w.step(ctx)
		w.loop.Rest()
		timer.Reset(max(0, time.Until(next)))
	}
}

// takeUpdates applies the queued changes of the model to the desired state.
func (w *nftWorker) takeUpdates() {
	u := w.in.Take()
	if u == nil {
		return
	}
	if w.since.IsZero() {
		w.since = u.Arrived
	}
	for n, sp := range u.Ports {
		w.stale.note(n, item{port: w.want[n]}, item{port: sp})
		if sp == nil {
			delete(w.want, n)
		} else {
			w.want[n] = sp
		}
		w.dirty[n] = true
		if w.refused.Has(n) {
			w.due = fullReadBack // what is installed of it is not known
			w.refused.Forget(n)
		}
	}
	if !u.Node {
		return
	}
	first := w.compiler == nil
	w.compiler = nft.NewCompiler(w.opts.tableConfig(w.flowtable.lacking), w.family, &u.Facts)
	w.nodeAddrs = append(slices.Clone(u.Facts.Node.IPs), u.Facts.Node.Local...)
	if !first {
		w.due = fullReadBack
	}
}

// step does the work that is due and returns when it must be called again.
func (w *nftWorker) step(ctx context.Context) (next time.Time) {
	now := time.Now()
	if now.Before(w.notUntil) {
		return w.notUntil
	}
	var err error
	if w.broken {
		err = w.connect()
	}
	if err == nil {
		err = w.check()
	}
	start, runs, full := time.Now(), w.have.transactions, w.due == fullReadBack
	if err == nil {
		err = w.program(ctx)
	}
	if ctx.Err() != nil {
		return time.Now().Add(time.Hour) // the loop ends
	}
	if err == nil {
		if w.have.transactions > runs {
			w.opts.Hooks.Synced(dataplane.Sync{Families: []k8s.Family{w.family}, Full: full, Took: time.Since(start)})
		}
		w.stale.run(w.nodeAddrs)
		err = w.forgetClients()
	}
	if err == nil {
		err = w.keepDevices()
	}
	now = time.Now()
	if err != nil {
		w.failed(err)
		w.notUntil, w.broken = now.Add(w.pause), true
		return w.notUntil
	}
	w.pause = 0
	w.inStep()
	// Under a stream of changes, half of the time is left to other programs.
	w.notUntil = now.Add(max(w.opts.MinSyncPeriod, min(now.Sub(start), nftRestMax)))
	next = w.checkAt
	for _, t := range []time.Time{w.stale.due(), w.refused.Next(), w.flowtable.lookAt} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	if next.Before(w.notUntil) {
		next = w.notUntil
	}
	return next
}

// inStep updates the status, and reports the family in step unless an update is queued.
func (w *nftWorker) inStep() {
	if !w.since.IsZero() {
		w.changes.Add(time.Since(w.since))
		w.since = time.Time{}
	}
	programming := w.changes.Programming()
	w.report(func(s *FamilyStatus) {
		s.Programming = programming
		s.Pending = 0
		s.refuse(w.refused.All())
		s.Services, s.Elements = len(w.have.ports), w.have.elements
		if len(s.Refused) == 0 {
			s.LastError, s.LastErrorAt = "", time.Time{}
		}
	})
	w.in.WhileIdle(func() {
		w.report(func(s *FamilyStatus) { s.InStep = true })
		w.opts.Hooks.InStep(w.family)
	})
}

// failed records a failure that pauses the worker.
func (w *nftWorker) failed(err error) {
	w.pause = backOff(w.pause)
	w.log.Error("nftables failed; trying again", "in", w.pause, "error", err)
	w.report(func(s *FamilyStatus) {
		s.InStep, s.Pending = false, len(w.dirty)
		s.failed(err)
		s.refuse(w.refused.All())
	})
}

// check compares the installed table with what nkp has installed, if that is due or another program changed the table. The step
// that follows repairs differences.
func (w *nftWorker) check() error {
	now := time.Now()
	if w.due == fullReadBack || now.Before(w.checkAt) {
		return nil
	}
	drift, err := w.drifted()
	took := time.Since(now)
	w.checkAt, w.lookFrom = time.Now().Add(max(w.opts.SyncPeriod, idleShare*took)), time.Now().Add(lookShare*took)
	switch {
	case errors.Is(err, netlink.ErrInterrupted):
		w.checkAt = time.Now().Add(retryMin) // another program is at work
		return nil
	case err != nil:
		return err
	case drift == "":
		w.report((*FamilyStatus).audited)
		return nil
	}
	w.log.Warn("another program changed nkp's table: repairing", "what", drift)
	w.due = fullReadBack
	w.report(func(s *FamilyStatus) { s.repairing(drift); s.InStep = false })
	return nil
}

// drifted returns a difference between the installed table and what nkp has installed; "": there is none.
func (w *nftWorker) drifted() (string, error) {
	t, err := readNFT(w.conn, w.family)
	if err != nil {
		return "", err
	} else if t == nil {
		return "+ table " + nft.TableName, nil
	}
	w.loop.Progress()
	lines := compareTable(t, w.have.ruleset(w.compiler))
	if len(lines) == 0 {
		return "", nil
	}
	return lines[0], nil
}

// forgetClients deletes clients of session affinity whose endpoint no longer serves them.
func (w *nftWorker) forgetClients() error {
	for set, slots := range w.have.staleClients {
		for range clientTries {
			clients, err := w.conn.Clients(w.family, set)
			if err != nil {
				return err
			}
			stale := slots.StaleClients(clients)
			if len(stale) == 0 {
				delete(w.have.staleClients, set)
				break
			}
			b := netlink.NewBatch(w.family)
			b.DeleteClients(set, stale)
			if err := w.conn.Commit(b); err != nil && !isGone(err) { // some had expired meanwhile: the next try leaves them out
				return err
			}
		}
	}
	return nil
}

// nftRestMax bounds the pause between transactions, unless MinSyncPeriod is longer. Other programs wait for one transaction, of 1 MB at
// most, not for a whole sync.
const nftRestMax = 10 * time.Millisecond

// lookShare bounds the time that comparing takes when notifications do not stop: to one part in lookShare+1.
const lookShare = 4

// clientTries bounds how often a map of clients is listed after a change. The last client that the old endpoint served may be recorded
// while the change is committed.
const clientTries = 5
