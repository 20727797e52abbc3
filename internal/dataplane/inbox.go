package dataplane

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// Signal wakes a goroutine: a channel that holds at most one token.
type Signal chan struct{}

// NewSignal returns a Signal without a token.
func NewSignal() Signal { return make(Signal, 1) }

// Notify leaves a token unless there is one.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Update holds the changes of the model since a plane last called Take. Facts is always set: the model's
// node, detector and Service ranges, without Services. If Changes.Node is set, they have changed.
type Update struct {
	k8s.Changes
	Facts   k8s.Model
	Arrived time.Time // of the oldest change in it
}

// Inbox collects the model's changes until a plane takes them: any number of updates become one. Make it with
// NewInbox. All methods may be called from any goroutine.
type Inbox struct {
	Signal // has a token while an update waits

	families []k8s.Family
	queued   func(...k8s.Family)

	mu       sync.Mutex // protects all below, and orders the calls of queued and of WhileIdle's function
	next     *Update    // nil: nothing is new
	facts    k8s.Model  // Facts of the last update
	begun    bool       // something has come in
	divided  bool       // next has the ports of an earlier update that the last portion left
	fresh    bool       // an update has come in since WhileDivided
	waiting  time.Time  // arrival of the oldest update that is not in force; zero: all are
	portions portions
}

// NewInbox returns an empty Inbox for Services of these families; none: all. queued is called with them for
// each update.
func NewInbox(queued func(...k8s.Family), families ...k8s.Family) *Inbox {
	if len(families) == 0 {
		families = Families
	}
	return &Inbox{Signal: NewSignal(), families: families, queued: queued, portions: newPortions()}
}

// SetPortion sets the cost that takes the place of Portion, before the first update.
func (in *Inbox) SetPortion(cost int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.portions.most = cost
}

// Put adds an update. It leaves out changes of other families than the Inbox's; if none are left, it does
// nothing.
func (in *Inbox) Put(m *k8s.Model, c k8s.Changes) {
	in.mu.Lock()
	defer in.mu.Unlock()

	c.Node = c.Node || !in.begun
	if len(in.families) < len(Families) {
		all := c.Ports
		c.Ports = map[k8s.PortName]*k8s.ServicePort{}
		for n, sp := range all {
			if n.Family == in.families[0] {
				c.Ports[n] = sp
			}
		}
	}

	if len(c.Ports)+len(c.HealthChecks) == 0 && !c.Node {
		return
	}

	in.begun, in.fresh = true, true
	in.facts = k8s.Model{Node: m.Node, Detector: m.Detector, ServiceCIDRs: m.ServiceCIDRs}
	u := in.update()
	u.Node = u.Node || c.Node
	maps.Copy(u.Ports, c.Ports)
	maps.Copy(u.HealthChecks, c.HealthChecks)

	in.queued(in.families...)
	in.Notify()
}

// update returns the update that waits, or begins one. Callers hold mu.
func (in *Inbox) update() *Update {
	if in.next == nil {
		in.next = &Update{
			Changes: k8s.Changes{
				Ports:        map[k8s.PortName]*k8s.ServicePort{},
				HealthChecks: map[k8s.ServiceName]*k8s.HealthCheck{},
			},
			Arrived: time.Now(),
		}
		in.waiting = Earliest(in.waiting, in.next.Arrived)
	}
	in.next.Facts = in.facts
	return in.next
}

// Return gives back Service ports that were taken, of which nothing is installed: the plane left them out, so
// that others need not wait for them. They come again in portions, unless something newer of them waits.
func (in *Inbox) Return(ports []*k8s.ServicePort) {
	in.mu.Lock()
	defer in.mu.Unlock()
	u := in.update()
	for _, sp := range ports {
		in.portions.returned[sp.Name] = true
		if _, newer := u.Ports[sp.Name]; !newer {
			u.Ports[sp.Name] = in.portions.taken[sp.Name] // sp may be Partial
		}
		delete(in.portions.taken, sp.Name)
		delete(in.portions.partial, sp.Name)
	}
	in.divided = true
	in.Notify()
}

// Take returns the update that has arrived since the last call, or a portion of it, and leaves a token for
// the rest; nil: none has.
func (in *Inbox) Take() *Update {
	in.mu.Lock()
	defer in.mu.Unlock()
	u := in.next
	in.next = nil
	if u == nil {
		return nil
	}
	rest := u.Ports
	u.Ports = in.portions.split(rest)
	if in.divided = len(rest) > 0; in.divided {
		next := in.update()
		next.Arrived, next.Ports = u.Arrived, rest
		in.Notify()
	}
	return u
}

// Divided reports whether the rest of what was taken in part waits.
func (in *Inbox) Divided() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.divided
}

// Idle reports whether everything was taken.
func (in *Inbox) Idle() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.next == nil
}

// Settled records that all updates that were taken are in force.
func (in *Inbox) Settled() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.waiting = time.Time{}
	if in.next != nil {
		in.waiting = in.next.Arrived
	}
}

// Waits reports whether an update that arrived by a time may not be in force.
func (in *Inbox) Waits(by time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.begun || !in.waiting.IsZero() && !in.waiting.After(by)
}

// WhileIdle calls f if everything was taken; no update can arrive during the call. It reports whether it
// called f.
func (in *Inbox) WhileIdle(f func()) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.next != nil {
		return false
	}
	f()
	return true
}

// WhileDivided calls f if the rest of what was taken in part waits, all else is taken, and an update has come
// in since the last call. waits reports whether any port of a Service waits. No update can arrive during the
// call.
func (in *Inbox) WhileDivided(f func(waits func(k8s.ServiceName) bool)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.divided || !in.fresh {
		return
	}
	in.fresh = false
	waiting := map[k8s.ServiceName]bool{}
	for n := range in.next.Ports {
		waiting[n.ServiceName] = true
	}
	f(func(n k8s.ServiceName) bool { return waiting[n] })
}

// Undisturbed returns a context that ends when an update arrives. disturbed, which must be called, ends it in
// any case and reports whether an update arrived.
func (in *Inbox) Undisturbed(parent context.Context) (ctx context.Context, disturbed func() bool) {
	ctx, cancel := context.WithCancel(parent)
	came := make(chan bool, 1)
	go func() { // ends with ctx
		select {
		case <-in.Signal:
			in.Notify() // the token is for the plane
			cancel()
			came <- true
		case <-ctx.Done():
			came <- false
		}
	}()
	return ctx, func() bool {
		cancel()
		return <-came
	}
}
