package dataplane

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Bound is how long a loop may work without progress. The longest step that ends well is one
// iptables-restore: some 10 s for the rules of 10,000 Services over nf_tables, several times that on a busy
// machine. The longest one that ends in a timeout is a request to a switch that does not answer, after 30 s
// (ofctrl.Options.AnswerTimeout). kube-proxy counts as unhealthy after twice its sync period, 60 s by
// default; twice that is late enough for a restart to be the smaller harm.
const Bound = 2 * time.Minute

// looks is how many checks in a row without progress make a loop stuck.
const looks = 24

// Watch finds the loops that are stuck. It counts its own checks, not the time, so that no loop counts as
// stuck because the machine was suspended or the process was stopped. Make it with NewWatch; run it once with
// Run. The other methods may be called from any goroutine.
type Watch struct {
	bound time.Duration
	log   *slog.Logger

	mu    sync.Mutex // protects loops
	loops []*Loop
}

// NewWatch returns a Watch without loops. bound is how long a loop may work without progress; 0: Bound.
func NewWatch(bound time.Duration, log *slog.Logger) *Watch {
	if bound <= 0 {
		bound = Bound
	}
	return &Watch{bound: bound, log: log}
}

// Add has the loops watched from now on.
func (w *Watch) Add(loops ...*Loop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loops = append(w.loops, loops...)
}

func (w *Watch) all() []*Loop {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loops[:len(w.loops):len(w.loops)]
}

// Run looks at the loops until the context ends, and returns nil then.
func (w *Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(w.bound / looks)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.look()
		}
	}
}

// look looks at each loop once.
func (w *Watch) look() {
	for _, l := range w.all() {
		if l.look() == looks { // and not again
			s, _ := l.state(looks)
			w.log.Error("a loop makes no progress; /livez fails and the service manager's watchdog is not "+
				"fed until it does",
				"loop", s.Loop, "doing", s.Doing, "since", s.Since.UTC().Format(time.RFC3339))
		}
	}
}

// Working returns the loops that work now, in the order in which they were added.
func (w *Watch) Working() (list []State) {
	for _, l := range w.all() {
		if s, ok := l.state(looks); ok {
			list = append(list, s)
		}
	}
	return list
}

// Stuck returns the loops that have made no progress for the bound.
func (w *Watch) Stuck() (list []State) {
	for _, s := range w.Working() {
		if s.Stuck {
			list = append(list, s)
		}
	}
	return list
}

// Names returns the names of all loops.
func (w *Watch) Names() (names []string) {
	for _, l := range w.all() {
		names = append(names, l.name)
	}
	return names
}

// String returns since when a loop has made no progress, and with what.
func (s State) String() string {
	return fmt.Sprintf("%s has made no progress since %s (%v): %s",
		s.Loop, s.Since.UTC().Format(time.RFC3339), s.For.Round(time.Second), s.Doing)
}
