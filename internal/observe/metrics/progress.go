package metrics

import (
	"maps"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// progress follows changes from the source until they are in force.
type progress struct {
	mu       sync.Mutex // protects all below
	started  time.Time
	families []k8s.Family
	of       map[k8s.Family]*familyProgress
	// Changes of API objects that the data plane has received but that are not in force yet (pending), and
	// those that the next update brings to it (staged).
	pending, staged map[k8s.ServiceName]changed
	triggers        []k8s.Trigger // of what is staged
}

// changed is what has changed of a Service.
type changed struct {
	service bool // itself
	slices  int  // changes of its EndpointSlices
}

// familyProgress is what is not in force yet in one family.
type familyProgress struct {
	since    time.Time // arrival of the oldest change; zero: there is none
	done     bool      // something has been in force
	triggers []k8s.Trigger
}

// maxTriggers bounds the memory used for a data plane that makes no progress.
const maxTriggers = 100_000

func (p *progress) init(now time.Time, families []k8s.Family) {
	p.started, p.families, p.of = now, families, map[k8s.Family]*familyProgress{}
	p.pending, p.staged = map[k8s.ServiceName]changed{}, map[k8s.ServiceName]changed{}
	for _, f := range families {
		p.of[f] = &familyProgress{}
	}
}

// Received records the changes that the source reported, before the model is computed.
func (m *Metrics) Received(changes []k8s.Change) {
	p := &m.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range changes {
		if !c.Matters() {
			continue
		}
		switch c.Ref.Kind {
		case k8s.KindService:
			m.count(serviceChanges, 1)
			n := k8s.ServiceName{Namespace: c.Ref.Namespace, Name: c.Ref.Name}
			p.staged[n] = changed{true, p.staged[n].slices}
		case k8s.KindEndpointSlice:
			m.count(endpointChanges, 1)
			n := k8s.ServiceName{Namespace: c.Ref.Namespace} // of a slice that is gone no more is known
			if o := c.Object; o != nil {
				n.Name = o.GetLabels()[discoveryv1.LabelServiceName]
			}
			p.staged[n] = changed{p.staged[n].service, p.staged[n].slices + 1}
		}
	}
}

// Handing records the changes that are about to be passed to the data plane, computed from those received.
func (m *Metrics) Handing(c k8s.Changes) {
	p := &m.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(c.Ports) == 0 && len(c.HealthChecks) == 0 && !c.Node {
		clear(p.staged) // nothing to do
		return
	}
	for _, t := range c.Triggers {
		// before: the agent was not there to serve it
		if t.At.After(p.started) && len(p.triggers) < maxTriggers {
			p.triggers = append(p.triggers, t)
		}
	}
}

// Queued records that the data plane has something new to program in these families.
func (m *Metrics) Queued(families ...k8s.Family) {
	now := m.opts.Clock()
	p := &m.progress
	p.mu.Lock()
	defer p.mu.Unlock()

	for n, c := range p.staged {
		was := p.pending[n]
		p.pending[n] = changed{was.service || c.service, was.slices + c.slices}
	}
	clear(p.staged)

	for _, t := range p.triggers {
		if of := p.of[t.Family]; of != nil && len(of.triggers) < maxTriggers {
			of.triggers = append(of.triggers, t)
		}
	}
	p.triggers = p.triggers[:0]

	for _, f := range families {
		of := p.of[f]
		if of == nil {
			continue
		}
		if of.since.IsZero() {
			of.since = now
		}
		m.set(lastQueued, unix(now), f.String())
	}
}

// InStep records that everything is in force in these families, except objects that the data plane refuses.
func (m *Metrics) InStep(families ...k8s.Family) {
	now := m.opts.Clock()
	p := &m.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range families {
		of := p.of[f]
		if of == nil || of.since.IsZero() && of.done {
			continue
		}

		if !of.since.IsZero() {
			m.observe(change, now.Sub(of.since), f.String())
		}
		for _, t := range of.triggers {
			m.observe(programmingDuration, now.Sub(t.At), f.String())
		}
		m.set(syncLast, unix(now), f.String())
		*of = familyProgress{done: true, triggers: of.triggers[:0]}
	}

	for _, of := range p.of {
		if !of.since.IsZero() {
			return
		}
	}

	clear(p.pending)
}

// InStepBut records that everything is in force in all families but the Services that wait, which come in
// portions.
func (m *Metrics) InStepBut(waits func(k8s.ServiceName) bool) {
	now := m.opts.Clock()
	p := &m.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.pending, func(n k8s.ServiceName, _ changed) bool { return !waits(n) })
	for _, of := range p.of {
		of.triggers = slices.DeleteFunc(of.triggers, func(t k8s.Trigger) bool {
			inForce := !waits(t.Service)
			if inForce {
				m.observe(programmingDuration, now.Sub(t.At), t.Family.String())
			}
			return inForce
		})
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Pending counts the changes from the source that are not in force yet.
type Pending struct {
	Services       int           `json:"services"`       // that have changed
	EndpointSlices int           `json:"endpointSlices"` // changes of any
	For            time.Duration `json:"forNanoseconds"` // since the oldest one reached the data plane
}

// Pending returns what is not in force yet.
func (m *Metrics) Pending() Pending { return m.progress.pendingAt(m.opts.Clock()) }

func (p *progress) pendingAt(now time.Time) Pending {
	p.mu.Lock()
	defer p.mu.Unlock()
	var w Pending
	for n, c := range p.pending {
		w.EndpointSlices += c.slices
		w.Services += count(c.service && !p.staged[n].service)
	}
	for _, c := range p.staged {
		w.EndpointSlices += c.slices
		w.Services += count(c.service)
	}
	for _, of := range p.of {
		if !of.since.IsZero() {
			w.For = max(w.For, now.Sub(of.since))
		}
	}
	return w
}

// Lost records whether the data plane's state is not known: it then does not count as in step, although no
// change may be waiting.
func (m *Metrics) Lost(lost bool) { m.lost.Store(lost) }

// states emits how far behind the data plane is. doubtful: it makes no progress, or its state is not known.
func (p *progress) states(now time.Time, doubtful bool, emit Emit) {
	w := p.pendingAt(now)
	emit(endpointChangesPending, float64(w.EndpointSlices))
	emit(serviceChangesPending, float64(w.Services))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.families {
		of := p.of[f]
		emit(inStep, Bool(of.done && of.since.IsZero() && !doubtful), f.String())
		late := 0.0
		if !of.since.IsZero() {
			late = now.Sub(of.since).Seconds()
		}
		emit(behind, late, f.String())
	}
}
