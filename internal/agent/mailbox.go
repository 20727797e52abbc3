package agent

import (
	"sync"

	"github.com/nkp-proxy/nkp/k8s"
)

// mailbox is the k8s.Sink of the agent: it collects what the source reports until the loop takes it. The source
// never waits for the switch.
type mailbox struct {
	mu       sync.Mutex // protects all below
	changes  []k8s.Change
	synced   bool
	problems k8s.Problems

	arrived chan struct{} // holds one token while there is something to take
}

func newMailbox() *mailbox { return &mailbox{arrived: make(chan struct{}, 1)} }

// Apply implements k8s.Sink.
func (m *mailbox) Apply(changes []k8s.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changes == nil {
		m.changes = changes
	} else {
		m.changes = append(m.changes, changes...)
	}
	m.ring()
}

// Synced implements k8s.Sink.
func (m *mailbox) Synced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.synced = true
	m.ring()
}

// Problems implements k8s.Sink.
func (m *mailbox) Problems(p k8s.Problems) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems = p
	m.ring()
}

func (m *mailbox) ring() {
	select {
	case m.arrived <- struct{}{}:
	default:
	}
}

// take returns what has come in since the last call.
func (m *mailbox) take() (changes []k8s.Change, synced bool, problems k8s.Problems) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changes, m.changes = m.changes, nil
	return changes, m.synced, m.problems
}
