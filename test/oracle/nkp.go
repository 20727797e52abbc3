package oracle

import (
	"fmt"
	"maps"

	"github.com/nkp-proxy/nkp/k8s"
)

// Nkp is nkp's side: a tracker, and the model as a data plane keeps it from changes alone.
type Nkp struct {
	tracker *k8s.Tracker
	Model   *k8s.Model
	told    map[k8s.PortName]*k8s.ServicePort
	pending []k8s.Change
}

// NewNkp returns an nkp that has seen nothing yet.
func NewNkp() *Nkp {
	return &Nkp{
		tracker: k8s.NewTracker(k8s.Options{NodeName: ThisNode}),
		told:    map[k8s.PortName]*k8s.ServicePort{},
	}
}

// Apply takes an object as it is stored, nil if it is gone.
func (n *Nkp) Apply(ref k8s.Ref, o k8s.Object) {
	change := k8s.Change{Op: k8s.Upsert, Ref: ref, Object: o}
	if o == nil {
		change = k8s.Change{Op: k8s.Delete, Ref: ref}
	}
	n.pending = append(n.pending, change)
}

// Sync computes the model. It fails if the changes that the tracker reported do not lead to its model.
func (n *Nkp) Sync() error {
	n.tracker.Apply(n.pending)
	n.pending = nil
	model, changes := n.tracker.Flush()
	n.Model = model
	for name, port := range changes.Ports {
		if port == nil {
			delete(n.told, name)
		} else {
			n.told[name] = port
		}
	}
	if !maps.Equal(n.told, model.Ports) {
		return fmt.Errorf("the changes that Flush returns do not lead to its model")
	}
	return nil
}

// Facts returns everything in the model.
func (n *Nkp) Facts() Facts {
	facts := n.Model.View(nil)
	return viewFacts(&facts, n.Model)
}
