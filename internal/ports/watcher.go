package ports

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

const (
	defaultEvery = 30 * time.Second
	settle       = time.Second // changes of Services come in bursts: one scan for all of them
)

// WatcherOptions are the settings of a Watcher.
type WatcherOptions struct {
	// Every is how often it scans, in addition to after changes of Services; 0: every 30 s.
	Every time.Duration
	// OnConflict, if set, is called once for each conflict when it is found (for UDP: found twice), and again
	// only if it disappears and recurs. It is called on the goroutine of Run.
	OnConflict func(Conflict)
	Log        *slog.Logger
}

// Watcher tracks which Services hide a process's port. Create it with NewWatcher and start Run once; Update
// and Conflicts may be called before, during and after Run, from any goroutine.
type Watcher struct {
	opts WatcherOptions
	news dataplane.Signal // has a token while claims have changed
	scan func() ([]Listener, error)

	mu        sync.Mutex // protects all below; never held while the kernel is asked
	claims    map[k8s.PortName]*k8s.ServicePort
	node      k8s.Node
	conflicts []Conflict

	// fresh are the inodes of UDP sockets that the last scan found for the first time. Only Run uses it.
	fresh map[uint32]bool
}

// NewWatcher returns a Watcher without Services.
func NewWatcher(opts WatcherOptions) *Watcher {
	if opts.Every == 0 {
		opts.Every = defaultEvery
	}
	return &Watcher{
		opts:   opts,
		news:   dataplane.NewSignal(),
		scan:   Scan,
		claims: map[k8s.PortName]*k8s.ServicePort{},
		fresh:  map[uint32]bool{},
	}
}

// Update applies changes; its time depends on their number only. It never blocks, and keeps no map of model.
func (w *Watcher) Update(model *k8s.Model, changes k8s.Changes) {
	w.mu.Lock()
	w.node = model.Node
	changed := changes.Node
	for name, p := range changes.Ports {
		before := w.claims[name]
		if p != nil && slices.ContainsFunc(p.Frontends, func(f k8s.Frontend) bool { return claims(&f) }) {
			w.claims[name] = p
			changed = changed || before == nil || !sameClaims(before, p)
		} else if before != nil {
			delete(w.claims, name)
			changed = true
		}
	}
	w.mu.Unlock()
	if changed {
		w.news.Notify()
	}
}

func sameClaims(a, b *k8s.ServicePort) bool {
	return slices.EqualFunc(a.Frontends, b.Frontends, func(f, g k8s.Frontend) bool {
		return f.Type == g.Type && f.Address == g.Address && f.Port == g.Port && f.ShadowedBy == g.ShadowedBy
	})
}

// Conflicts returns the conflicts that the last scan found, sorted. The caller must not modify the slice.
func (w *Watcher) Conflicts() []Conflict {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conflicts
}

// Run scans until the context ends, and returns nil then. On systems without Scan it only waits.
func (w *Watcher) Run(ctx context.Context) error {
	tick := time.NewTicker(w.opts.Every)
	defer tick.Stop()
	failed := ""

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-w.news:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(settle):
			}
		}

		err := w.look()
		switch {
		case err == nil:
			failed = ""
		case errors.Is(err, errors.ErrUnsupported):
			<-ctx.Done()
			return nil
		case err.Error() != failed:
			failed = err.Error()
			w.opts.Log.Warn("cannot check whether Services hide ports of processes; trying again",
				"error", err)
		}
	}
}

// look scans the listeners once and updates the conflicts.
func (w *Watcher) look() error {
	listeners, err := w.scan()
	if err != nil {
		return err
	}
	w.mu.Lock()
	m := newMatcher(listeners, w.node)
	for _, p := range w.claims {
		m.match(p)
	}
	before := w.conflicts
	w.mu.Unlock()

	now := w.settled(m.sorted(), before)
	known := make(map[key]Conflict, len(before))
	for _, c := range before {
		known[c.key()] = c
	}
	identify(now, known)
	w.mu.Lock()
	w.conflicts = now
	w.mu.Unlock()

	for _, c := range now {
		if _, ok := known[c.key()]; ok {
			continue
		}
		w.opts.Log.Warn(c.String())
		if w.opts.OnConflict != nil {
			w.opts.OnConflict(c)
		}
	}
	return nil
}

// settled drops UDP sockets that the last scan did not find: they may belong to clients, which use any free
// port and exist for one request and its reply.
func (w *Watcher) settled(now, before []Conflict) []Conflict {
	known, fresh := w.fresh, map[uint32]bool{}
	for _, c := range before {
		known[c.Listener.Inode] = true
	}
	w.fresh = fresh
	return slices.DeleteFunc(now, func(c Conflict) bool {
		if c.Listener.Protocol != v1.ProtocolUDP || known[c.Listener.Inode] {
			return false
		}
		fresh[c.Listener.Inode] = true
		return true
	})
}

// identify fills in the processes: those of known sockets are reused, the others are looked up.
func identify(conflicts []Conflict, known map[key]Conflict) {
	unknown := map[uint32]bool{}
	for i := range conflicts {
		c := &conflicts[i]
		if k, ok := known[c.key()]; ok && k.Listener.Inode == c.Listener.Inode && k.Process.PID != 0 {
			c.Process = k.Process
		} else if c.Listener.Inode != 0 {
			unknown[c.Listener.Inode] = true
		}
	}
	found := owners(unknown)
	for i := range conflicts {
		if p, ok := found[conflicts[i].Listener.Inode]; ok {
			conflicts[i].Process = p
		}
	}
}
