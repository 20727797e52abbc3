package oracle

import "github.com/nkp-proxy/nkp/k8s"

// Case is a history of a cluster, seen from one node.
type Case struct {
	// Regular says that an API server would accept every object, so the case can go through manifests too. The other
	// cases also hold what only older API servers let pass, or what the trackers must bear without ever meeting it.
	Regular bool
	Events  []Event
}

// Event is one thing that happens: an object is new or changed, or gone; or nothing happens and both sides are asked.
type Event struct {
	Object k8s.Object // as a user wrote it, without defaults; nil: gone, or ask
	Gone   k8s.Ref    // zero: ask
}

// Asks reports whether the event is the moment to ask both sides.
func (e Event) Asks() bool { return e.Object == nil && e.Gone == k8s.Ref{} }

// Ref names the object of an event.
func (e Event) Ref() k8s.Ref {
	if e.Object == nil {
		return e.Gone
	}
	ref, _ := k8s.RefOf(e.Object)
	return ref
}

// ThisNode is the name of the node that both sides run on.
const ThisNode = "n1"

// KeepNilNames is an annotation that keeps the port names of a slice nil where they are, although an API server would
// make them empty: both sides have a rule for it.
const KeepNilNames = "differential/keep-nil-names"
