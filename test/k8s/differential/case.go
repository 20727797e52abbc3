package differential

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

// asks reports whether the event is the moment to ask both sides.
func (e Event) asks() bool { return e.Object == nil && e.Gone == k8s.Ref{} }

// ref names the object of an event.
func (e Event) ref() k8s.Ref {
	if e.Object == nil {
		return e.Gone
	}
	ref, _ := k8s.RefOf(e.Object)
	return ref
}

// thisNode is the name of the node that both sides run on.
const thisNode = "n1"

var families = []k8s.Family{k8s.IPv4, k8s.IPv6}
