package fallback

import (
	"context"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// item is what calls for rules: a Service port, or a health check node port.
type item struct {
	port  *k8s.ServicePort
	check *k8s.HealthCheck
}

func (i item) empty() bool { return i == item{} }

// checkName gives the key of a Service's health check among the items.
func checkName(n k8s.ServiceName, f k8s.Family) k8s.PortName {
	return k8s.PortName{ServiceName: n, Protocol: "health check", Family: f}
}

// inbox holds for one family what the model brought and the worker has not taken yet: any number of updates become one.
type inbox struct {
	wake chan struct{} // one token: there is something

	mu      sync.Mutex            // protects what follows
	items   map[k8s.PortName]item // empty: gone
	facts   k8s.Model             // without Services
	fresh   bool                  // facts are new
	arrived time.Time             // of the oldest of all this; zero: there is nothing
}

func newInbox() *inbox {
	return &inbox{wake: make(chan struct{}, 1), items: map[k8s.PortName]item{}}
}

// put takes an update; it reports whether there is anything in it for the family.
func (in *inbox) put(f k8s.Family, facts k8s.Model, m *k8s.Model, c k8s.Changes, first bool) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if first {
		for n, sp := range m.Ports {
			if n.Family == f {
				in.items[n] = item{port: sp}
			}
		}
		for n, h := range m.HealthChecks {
			in.items[checkName(n, f)] = item{check: &h}
		}
	} else {
		for n, sp := range c.Ports {
			if n.Family == f {
				in.items[n] = item{port: sp}
			}
		}
		for n, h := range c.HealthChecks {
			in.items[checkName(n, f)] = item{check: h}
		}
	}
	in.fresh = in.fresh || first || c.Node
	in.facts = facts
	if len(in.items) == 0 && !in.fresh {
		return false
	}
	if in.arrived.IsZero() {
		in.arrived = time.Now()
	}
	select {
	case in.wake <- struct{}{}:
	default:
	}
	return true
}

// idle reports whether everything was taken.
func (in *inbox) idle() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.items) == 0 && !in.fresh
}

// undisturbed gives a context that ends when something comes in. disturbed ends it in any case, and tells whether
// something came in; it must be called.
func (in *inbox) undisturbed(parent context.Context) (ctx context.Context, disturbed func() bool) {
	ctx, cancel := context.WithCancel(parent)
	came := make(chan bool, 1)
	go func() { // ends with ctx
		select {
		case <-in.wake:
			select {
			case in.wake <- struct{}{}: // the token is for the worker
			default:
			}
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

// take empties the inbox. facts is nil if they are as before; arrived is when the oldest of it came.
func (in *inbox) take() (items map[k8s.PortName]item, facts *k8s.Model, arrived time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	arrived, in.arrived = in.arrived, time.Time{}
	items = in.items
	if len(items) > 0 {
		in.items = map[k8s.PortName]item{}
	}
	if in.fresh {
		m := in.facts
		facts, in.fresh = &m, false
	}
	return items, facts, arrived
}
