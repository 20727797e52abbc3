//go:build linux

package nftables

import (
	"context"
	"errors"
	"iter"
	"maps"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// worker keeps the table of one family in step. All its fields belong to the goroutine that calls serve.
type worker struct {
	*fallback.Worker
	settings rules.Settings
	group    *netlink.Group // of all families' sockets
	conn     *netlink.Conn
	watch    *netlink.Watch
	// the last step failed: the sockets are opened again, because an answer to it may still come
	broken bool

	want      map[k8s.PortName]*k8s.ServicePort
	compiler  *rules.Compiler // nil until the first update
	have      installed
	flowtable flowtable

	// the earliest time to compare what is installed because another program changed the table
	lookFrom time.Time
	unknown  bool   // what is installed is not known: it is read back first
	sweep    *sweep // the check that is under way; nil: none is
}

// newWorker returns a worker with open sockets.
func newWorker(of *fallback.Worker, s rules.Settings, g *netlink.Group) (*worker, error) {
	w := &worker{Worker: of, settings: s, group: g, want: map[k8s.PortName]*k8s.ServicePort{}}
	if err := w.connect(); err != nil {
		return nil, err
	}
	var err error
	if w.flowtable.lacking, err = w.options().lacksFlowtable(w.conn, of.Family); err != nil {
		w.close()
		return nil, err
	}
	w.have.reset()
	w.In.SetPortion(portion)
	w.RestMax = restMax
	w.Stale.Wanted = func() iter.Seq[*k8s.ServicePort] { return maps.Values(w.want) }
	return w, nil
}

// options returns the settings in force.
func (w *worker) options() *Options { return &Options{*w.Opts, w.settings} }

// connect opens the sockets, and closes those that were open. Changes by others may have been missed.
func (w *worker) connect() error {
	conn, err := w.group.Open()
	if err != nil {
		return err
	}
	watch, err := w.group.Watch(w.Family, conn.Port())
	if err != nil {
		conn.Close()
		return err
	}
	w.close()
	w.conn, w.watch, w.unknown, w.broken = conn, watch, true, false
	return nil
}

// close closes the sockets.
func (w *worker) close() {
	w.endSweep()
	if w.conn != nil {
		w.watch.Close()
		w.conn.Close()
	}
}

// serve works until the context ends.
func (w *worker) serve(ctx context.Context) {
	defer w.close()
	w.Run(ctx, w, "bringing the table in step")
}

// Changed is part of dataplane.Steps.
func (w *worker) Changed() <-chan struct{} { return w.watch.Changed }

// Take is part of dataplane.Steps.
func (w *worker) Take(u *dataplane.Update) {
	for n, sp := range u.Ports {
		w.Stale.Note(n, w.want[n], sp)
		if sp == nil {
			delete(w.want, n)
		} else {
			w.want[n] = sp
		}
		w.Dirty[n] = true
		if w.Refused.Has(n) {
			w.unknown = true // what is installed of it is not known
			w.Refused.Forget(n)
		}
	}
	if !u.Node {
		return
	}
	first := w.compiler == nil
	w.compiler = rules.NewCompiler(w.options().config(w.flowtable.lacking), w.Family, &u.Facts)
	if !first {
		w.unknown = true
	}
}

// Step is part of dataplane.Steps.
func (w *worker) Step(ctx context.Context) (err error) {
	defer func() { w.broken = err != nil }()
	if w.broken {
		err = w.connect()
	}
	if err == nil {
		err = w.check(ctx)
	}

	w.Begin(w.unknown)
	if err == nil {
		err = w.program(ctx)
	}
	if err == nil && ctx.Err() == nil {
		w.Synced()
		w.Stale.Run()
		err = w.forgetClients()
	}
	if err == nil {
		err = w.keepDevices()
	}
	if err == nil && ctx.Err() == nil {
		w.InStep(0, func(s *fallback.FamilyStatus) {
			s.Services, s.Elements = len(w.have.ports), w.have.elements
			if w.Opts.Canary {
				s.Services--
			}
		})
	}
	return err
}

// Next is part of dataplane.Steps.
func (w *worker) Next() time.Time {
	if w.sweep != nil {
		return w.NotUntil
	}
	checkAt := w.CheckAt
	if w.Noticed { // during the last check, which may have read before that what has changed
		checkAt = w.lookFrom
	}
	return dataplane.Earliest(checkAt, w.Stale.Due(), w.Refused.Next(), w.flowtable.lookAt)
}

// check reads the installed table back in portions, if that is due or another program changed the table: one,
// and then more until there is an update to program. A later call goes on. The step that follows repairs a
// difference.
func (w *worker) check(ctx context.Context) error {
	if w.sweep == nil {
		if w.Noticed {
			w.CheckAt, w.Noticed = w.lookFrom, false
		}
		if w.unknown || time.Now().Before(w.CheckAt) {
			return nil
		}
		var err error
		if w.sweep, err = newSweep(w); err != nil {
			return err
		}
	}
	for {
		start := time.Now()
		done, drift, err := w.sweep.portion()
		w.sweep.took += time.Since(start)
		w.Loop.Progress()
		switch {
		case done || drift != "" || err != nil:
			return w.checked(drift, err)
		case ctx.Err() != nil || w.Pending() || !w.In.Idle():
			return nil
		}
	}
}

// checked ends the check, which has found a difference ("": none) or failed.
func (w *worker) checked(drift string, err error) error {
	now, took := time.Now(), w.sweep.took
	w.endSweep()
	w.CheckAt, w.lookFrom = now.Add(max(w.Opts.SyncPeriod, fallback.IdleShare*took)), now.Add(lookShare*took)
	switch {
	case errors.Is(err, netlink.ErrInterrupted):
		w.CheckAt = now.Add(dataplane.RetryFirst) // another program is at work
		return nil
	case err != nil:
		return err
	case drift == "":
		w.Report(func(s *fallback.FamilyStatus) { s.Audited() })
		w.openLocalnet()
		return nil
	}
	w.Log.Warn("another program changed nkp's table: repairing", "what", drift)
	w.unknown = true
	w.Drifted(drift)
	return nil
}

// endSweep abandons the sweep, if there is one.
func (w *worker) endSweep() {
	if w.sweep != nil {
		w.sweep.conn.Close()
		w.sweep = nil
	}
}

// forgetClients deletes clients of session affinity whose endpoint no longer serves them.
func (w *worker) forgetClients() error {
	for set, slots := range w.have.staleClients {
		for range clientTries {
			clients, err := w.conn.Clients(w.Family, set)
			if err != nil {
				return err
			}
			stale := slots.StaleClients(clients)
			if len(stale) == 0 {
				delete(w.have.staleClients, set)
				break
			}
			b := netlink.NewBatch(w.Family)
			b.DeleteClients(set, stale)
			// Some may have expired meanwhile: the next try leaves them out.
			if err := w.conn.Commit(b); err != nil && !isGone(err) {
				return err
			}
		}
	}
	return nil
}

// portion is what takes the place of dataplane.Portion: compiling and committing so many elements takes some
// 20 ms.
const portion = 4000

// restMax bounds the pause between transactions. Other programs wait for one transaction, of 1 MB at
// most, not for a whole sync.
const restMax = 10 * time.Millisecond

// lookShare bounds the time that comparing takes when notifications do not stop: to one part in lookShare+1.
const lookShare = 4

// clientTries bounds how often a map of clients is listed after a change. The last client that the old
// endpoint served may be recorded while the change is committed.
const clientTries = 5
