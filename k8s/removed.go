package k8s

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// AnnotationRemovedEndpoints is an annotation of a Service. It sets what becomes of TCP connections through
// the Service to an endpoint that its EndpointSlices no longer list: keep (the default), close, or
// drain=DURATION, which closes them that long after the removal (docs/decisions/removed-endpoints.md).
const AnnotationRemovedEndpoints = "nkp-proxy.github.io/removed-endpoints"

// Removed is how a TCP port closes connections to removed endpoints. An endpoint that is listed, but not
// ready, is not removed. ServicePort.Serving lists the endpoints with which connections may stay. A packet
// that belongs to no known connection and does not open one is answered with a reset at all frontends.
type Removed struct {
	// Drain is how long connections stay after their endpoint was removed; 0: as long as it takes to tell a
	// removal from a move to another EndpointSlice.
	Drain time.Duration
	// Unknown reports that connections to endpoints which are not in ServicePort.Serving stay for now,
	// because nkp started a short time ago, or the Service has got its annotation, and nkp does not know when
	// these were removed.
	Unknown bool
}

// String returns the policy as the annotation has it.
func (r *Removed) String() string {
	switch {
	case r == nil:
		return "keep"
	case r.Drain == 0:
		return "close"
	}
	return "drain=" + r.Drain.String()
}

func (r *Removed) equal(o *Removed) bool {
	if r == nil || o == nil {
		return r == o
	}
	return *r == *o
}

const (
	// moveGrace is the shortest time between an endpoint's removal and the end of its connections. The
	// EndpointSlice controller moves endpoints from one slice to another by two writes.
	moveGrace = time.Second
	maxDrain  = 24 * time.Hour
	// maxDraining bounds the endpoints of a Service port that drain at the same time.
	maxDraining = 4096
)

func (r *Removed) grace() time.Duration { return max(r.Drain, moveGrace) }

var removedField = field.NewPath("metadata", "annotations").Key(AnnotationRemovedEndpoints)

// readRemoved reads AnnotationRemovedEndpoints; it returns nil if connections stay.
func (d *serviceDef) readRemoved(o *v1.Service, consistent bool, opts *Options) *Removed {
	text, ok := o.Annotations[AnnotationRemovedEndpoints]
	text = strings.TrimSpace(text)
	if !ok || text == "keep" {
		return nil
	}

	r := &Removed{}
	number, drains := strings.CutPrefix(text, "drain=")
	if drains {
		r.Drain, _ = time.ParseDuration(number)
	}

	switch {
	case drains && (r.Drain <= 0 || r.Drain > maxDrain):
		d.warn(removedField, "%s is not drain=DURATION with a duration of at most %s, such as drain=30s: "+
			"connections stay", brief.Quote(text), maxDrain)
	case !drains && text != "close":
		d.warn(removedField, "%s is neither keep, close nor drain=DURATION: connections stay",
			brief.Quote(text))
	case opts.NotClosing != "":
		d.warn(removedField, "has no effect: %s", opts.NotClosing)
	case consistent:
		d.warn(removedField, "has no effect with %s, by which packets of unknown connections go to an "+
			"endpoint that may know them", AnnotationConsistent)
	default:
		return r
	}
	return nil
}

// drain holds the endpoints of a Service port that were removed and whose connections stay for now.
type drain struct {
	left  map[netip.AddrPort]time.Time // when
	known time.Time                    // Removed.Unknown until then
	due   time.Time                    // when the Service port is to be recomputed
}

// removed returns how a TCP port closes connections, and the endpoints with which they may stay: the listed
// ones, and those that were removed a short time ago.
func (t *Tracker) removed(
	name PortName, policy *Removed, all []candidate, warnings *[]Warning,
) (*Removed, []netip.AddrPort) {
	stay := map[netip.AddrPort]bool{}
	for i := range all {
		stay[all[i].at] = true
	}

	d := t.drains[name]
	if d == nil {
		d = &drain{left: map[netip.AddrPort]time.Time{}}
	}
	before := t.model.Ports[name]
	switch {
	case before != nil && before.Removed != nil:
		t.noteLeft(d, before.Serving, stay, warnings)
	case before != nil || !t.flushed: // connections to endpoints that left before may be there
		d.known = t.now
	}

	r := &Removed{Drain: policy.Drain}
	d.due = time.Time{}
	keep := func(since time.Time) bool {
		end := since.Add(r.grace())
		if !end.After(t.now) {
			return false
		}
		if d.due.IsZero() || end.Before(d.due) {
			d.due = end
		}
		return true
	}
	for e, at := range d.left {
		if stay[e] || !keep(at) {
			delete(d.left, e)
		} else {
			stay[e] = true
		}
	}
	if r.Unknown = !d.known.IsZero() && keep(d.known); !r.Unknown {
		d.known = time.Time{}
	}

	if t.drains[name] = d; d.due.IsZero() {
		delete(t.drains, name)
	}
	return r, slices.SortedFunc(maps.Keys(stay), netip.AddrPort.Compare)
}

// noteLeft notes which of the endpoints have been removed. Those beyond maxDraining do not drain.
func (t *Tracker) noteLeft(
	d *drain, before []netip.AddrPort, listed map[netip.AddrPort]bool, warnings *[]Warning,
) {
	for _, e := range before {
		if _, known := d.left[e]; known || listed[e] {
			continue
		}
		if len(d.left) == maxDraining {
			*warnings = append(*warnings, Warning{
				Field: removedField.String(),
				Text:  "too many endpoints were removed at once: connections to some of them end at once",
			})
			return
		}
		d.left[e] = t.now
	}
}

// Advance sets the time. Call it before Flush, which closes the connections whose time has come then.
func (t *Tracker) Advance(now time.Time) {
	t.now = now
	for name, d := range t.drains {
		if !d.due.After(now) {
			t.dirty[name.ServiceName] = struct{}{}
		}
	}
}

// Due returns when to Advance and Flush next although no object changes; zero: not.
func (t *Tracker) Due() (due time.Time) {
	for _, d := range t.drains {
		if due.IsZero() || d.due.Before(due) {
			due = d.due
		}
	}
	return due
}

// Closes reports whether connections to removed endpoints of a Service are to be closed.
func (t *Tracker) Closes(name ServiceName) bool {
	closes := func(p portDef) bool { return p.removed != nil }
	s := t.services[name]
	return s != nil && s.def != nil && slices.ContainsFunc(s.def.ports, closes)
}

// Draining returns the number of removed endpoints whose connections stay for now.
func (t *Tracker) Draining() (n int) {
	for _, d := range t.drains {
		n += len(d.left)
	}
	return n
}
