package dataplane

import (
	"sync"
	"time"
)

// Loop records the progress of one goroutine that handles events. The goroutine is at rest while it waits for
// something to do, however long that takes; while it works it must make progress. All methods may be called
// from any goroutine and never block. The methods of a nil Loop do nothing.
type Loop struct {
	name string

	mu    sync.Mutex // protects all below
	doing string     // "": at rest
	marks uint64     // number of signs of progress
	last  time.Time  // of the last mark

	// The Watch sets the fields below.
	seen   uint64 // marks at the last check
	silent int    // checks in a row without progress
}

// NewLoop returns a Loop at rest. name is what an operator reads: "bridge", "iptables IPv4".
func NewLoop(name string) *Loop { return &Loop{name: name} }

// Work must be called when the goroutine begins work. doing describes the work.
func (l *Loop) Work(doing string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doing = doing
	l.mark()
}

// Progress must be called whenever a step of the work is done: a transaction, an answer, one call into the
// system. A step that failed is done, too. At rest it does nothing.
func (l *Loop) Progress() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.doing != "" {
		l.mark()
	}
}

// Rest must be called before the goroutine waits for something to do.
func (l *Loop) Rest() { l.Work("") }

// stallTime is how long a loop may work without progress before its last reported state becomes unreliable.
const stallTime = 10 * time.Second

// Stalled reports whether the goroutine has worked for stallTime or longer without progress. A status must
// not claim then that all is well.
func (l *Loop) Stalled() bool {
	if l == nil {
		return false
	}
	s, working := l.state(0)
	return working && s.For >= stallTime
}

// mark is called with the lock held.
func (l *Loop) mark() {
	l.marks++
	l.last = time.Now()
}

// look is called at each check of a Watch. It returns how many checks in a row found no progress.
func (l *Loop) look() (silent int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.doing == "" || l.marks != l.seen {
		l.seen, l.silent = l.marks, 0
	} else {
		l.silent++
	}
	return l.silent
}

// state returns the loop's current state; ok reports whether it works.
func (l *Loop) state(patience int) (s State, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s = State{Loop: l.name, Doing: l.doing}
	if l.doing == "" {
		return s, false
	}
	s.Since, s.For = l.last, time.Since(l.last)
	s.Stuck = l.marks == l.seen && l.silent >= patience
	return s, true
}

// State describes a working loop.
type State struct {
	Loop  string        `json:"loop"`
	Doing string        `json:"doing"`
	Since time.Time     `json:"since"` // the last progress
	For   time.Duration `json:"forNanoseconds"`
	Stuck bool          `json:"stuck"`
}
