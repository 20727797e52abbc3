package dataplane

import (
	"context"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// Plane keeps Open vSwitch, nftables, iptables or HNS in step with the model. Run is called once; all other
// methods may be called from any goroutine, before and while it runs.
type Plane interface {
	// Update hands over the model's changes; the first call must pass all of the model in changes. It never
	// waits for the plane's programming, and keeps nothing of the model that changes later.
	Update(model *k8s.Model, changes k8s.Changes)
	// Run blocks until the context ends, and then returns nil; installed rules stay. Any other return is a
	// permanent error: retrying cannot help.
	Run(ctx context.Context) error
	// Loops returns the plane's loops, which record what its goroutines work on and since when.
	Loops() []*Loop
	// Status returns the state of the plane. If the plane is busy, it does not wait but sets Busy. The error
	// is the context's.
	Status(ctx context.Context) (Status, error)
	// Behind returns why changes that were handed over by a time may not be in force; "": they are, but for
	// what is refused. closing: as long as connections to removed endpoints are to be deleted, they are not,
	// whenever that came up. It may wait for the plane, until the context ends.
	Behind(ctx context.Context, by time.Time, closing bool) string
	// Diff compares the installed state with the wanted one, one difference per line; "" means equal. It
	// changes nothing.
	Diff(ctx context.Context) (string, error)
	// Counters returns the counters of every Service port, and why numbers are missing ("": none are). The
	// map is shared: it must not be changed. nil: nothing is counted.
	Counters(ctx context.Context) (counters map[k8s.PortName]k8s.Counters, note string, err error)
	// List adds what is installed of a Service port, with its counters; of the zero PortName: everything of
	// nkp's. It changes nothing, and the plane's programming does not wait for it.
	List(ctx context.Context, of k8s.PortName, to *Listing) error
}

// Status is the state of a plane.
type Status struct {
	// Busy is set when the plane did not answer in time: the other fields are then older, and incomplete.
	Busy bool
	// InStep is set when everything that came in is in force. Otherwise Why says what is missing.
	InStep bool
	Why    string
	// Refusals are the refused items, which are retried, sorted by Service port.
	Refusals []Refusal
	// Notices name what a Service specifies and does not get, although nothing failed.
	Notices []Notice
	// Warnings are about the node or the plane as a whole, a line each.
	Warnings []string
	// Programming is from the arrival of a change until it was in force.
	Programming Programming
	// Canary is what canaries have shown of the data path, by family; nil: none are sent.
	Canary []CanaryVerdict
	// Detail is the state that only this plane has: *bridge.Status, *fallback.Status or *windows.Status.
	Detail any
}

// Notice is something about one Service. A Port with a ServiceName alone stands for all ports of that
// Service.
type Notice struct {
	Port k8s.PortName
	Text string
}

// Hooks are called when something happens, on a plane's goroutines. They must not wait, and must not call the
// plane.
type Hooks struct {
	// Queued: there is something to program in these families. InStep: all of it is in force but what is
	// refused.
	Queued, InStep func(...k8s.Family)
	// InStepBut: all is in force but the Services that wait.
	InStepBut func(waits func(k8s.ServiceName) bool)
	// Refused: an item was refused; called for each attempt.
	Refused func(Refusal)
	// Unsupported: a Service specifies something that this plane does not support; called once until that
	// changes.
	Unsupported func(Notice)
	// Synced: changes went through and something was written.
	Synced func(Sync)
	// Forgot: nkp deleted stale UDP conntrack entries of a family, if it found any; connections is their
	// number, as far as known.
	Forgot func(f k8s.Family, connections int, took time.Duration)
	// DataPath: what is known of a family's data path, after each canary; when no more are sent, a verdict
	// with plane and family alone.
	DataPath func(CanaryVerdict)
}

// WithDefaults returns hooks none of which is nil.
func (h Hooks) WithDefaults() Hooks {
	if h.Queued == nil {
		h.Queued = func(...k8s.Family) {}
	}
	if h.InStepBut == nil {
		h.InStepBut = func(func(k8s.ServiceName) bool) {}
	}
	if h.InStep == nil {
		h.InStep = func(...k8s.Family) {}
	}
	if h.Refused == nil {
		h.Refused = func(Refusal) {}
	}
	if h.Unsupported == nil {
		h.Unsupported = func(Notice) {}
	}
	if h.Synced == nil {
		h.Synced = func(Sync) {}
	}
	if h.Forgot == nil {
		h.Forgot = func(k8s.Family, int, time.Duration) {}
	}
	if h.DataPath == nil {
		h.DataPath = func(CanaryVerdict) {}
	}
	return h
}

// Sync is one pass over changes that wrote something.
type Sync struct {
	Families []k8s.Family // whose objects were written
	Full     bool         // it followed a read-back, or wrote everything; else only changes
	Took     time.Duration
}

// Families are both address families, IPv4 first. It must not be changed.
var Families = []k8s.Family{k8s.IPv4, k8s.IPv6}
