package bridge

import (
	"maps"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// inbox collects the model's changes until the loop takes them. Who brings them never waits for the switch.
type inbox struct {
	mu     sync.Mutex // protects next, and orders what queued and whileEmpty tell
	next   *update    // nil: nothing new
	queued func()     // told of each change
	token  chan struct{}
}

// update is what is new since the loop last looked.
type update struct {
	facts   k8s.Model // without its maps
	ports   map[k8s.PortName]*k8s.ServicePort
	node    bool
	arrived time.Time // of the oldest change in it
}

func newInbox(queued func()) *inbox { return &inbox{queued: queued, token: make(chan struct{}, 1)} }

func (b *inbox) put(m *k8s.Model, c k8s.Changes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = &update{ports: map[k8s.PortName]*k8s.ServicePort{}, arrived: time.Now()}
	}
	b.next.facts = k8s.Model{Node: m.Node, Detector: m.Detector, ServiceCIDRs: m.ServiceCIDRs}
	maps.Copy(b.next.ports, c.Ports)
	b.next.node = b.next.node || c.Node
	b.queued()
	select {
	case b.token <- struct{}{}:
	default:
	}
}

// take gives what has come in since the last call, nil if nothing has.
func (b *inbox) take() *update {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.next
	b.next = nil
	return u
}

// whileEmpty calls f if nothing waits; nothing comes in meanwhile.
func (b *inbox) whileEmpty(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		f()
	}
}
