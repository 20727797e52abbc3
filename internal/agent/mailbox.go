package agent

import (
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// How a burst of changes is batched: each batch costs the data plane a transaction, and Open vSwitch a
// revalidation of its cached flows. The first change after a quiet period is passed on at once.
const (
	burstGap  = 5 * time.Millisecond  // this long without a change ends a burst
	burstMost = 50 * time.Millisecond // longest burst
)

// mailbox is the k8s.Sink of the agent: it collects what the source reports until the loop takes it. The
// source never waits for the switch.
type mailbox struct {
	arrived dataplane.Signal // has a token when the loop is to call take

	mu       sync.Mutex // protects all below
	changes  []k8s.Change
	synced   bool
	problems k8s.Problems
	taken    time.Time   // when changes were last taken, or the loop was told to
	first    time.Time   // when the oldest change of a burst came; the zero Time: there is no burst
	burst    *time.Timer // runs until the burst is passed on
}

func newMailbox() *mailbox {
	m := &mailbox{arrived: dataplane.NewSignal()}
	m.burst = time.AfterFunc(time.Hour, m.arrived.Notify)
	m.burst.Stop()
	return m
}

// Apply implements k8s.Sink.
func (m *mailbox) Apply(changes []k8s.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changes == nil {
		m.changes = changes
	} else {
		m.changes = append(m.changes, changes...)
	}
	now := time.Now()
	if m.first.IsZero() && now.Sub(m.taken) >= burstGap {
		m.taken = now
		m.arrived.Notify()
		return
	}
	if m.first.IsZero() {
		m.first = now
	}
	m.burst.Reset(min(burstGap, max(0, m.first.Add(burstMost).Sub(now))))
}

// Synced implements k8s.Sink.
func (m *mailbox) Synced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.synced = true
	m.arrived.Notify()
}

// Problems implements k8s.Sink.
func (m *mailbox) Problems(p k8s.Problems) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems = p
	m.arrived.Notify()
}

// empty reports whether all that the source has reported was taken.
func (m *mailbox) empty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.changes) == 0
}

// take returns what has come in since the last call. It ends a burst.
func (m *mailbox) take() (changes []k8s.Change, synced bool, problems k8s.Problems) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changes, m.changes = m.changes, nil
	if len(changes) > 0 {
		m.taken, m.first = time.Now(), time.Time{}
		m.burst.Stop()
	}
	return changes, m.synced, m.problems
}
