package iptables

import (
	"iter"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// desired is the desired state of one address family. Only the worker's goroutine uses it.
type desired struct {
	compiler *rules.Compiler // nil until the first update
	fixed    rules.Fixed     // chains and rules that do not depend on any Service
	items    map[k8s.PortName]item
}

// briefAbove is the number of endpoints above which endpoint rules have no comments, because these take a
// third of the table's size. The value is kube-proxy's.
const briefAbove = 1000

// ports returns the Service ports that are to be programmed.
func (d *desired) ports() iter.Seq[*k8s.ServicePort] {
	return func(yield func(*k8s.ServicePort) bool) {
		for _, it := range d.items {
			if it.port != nil && !yield(it.port) {
				return
			}
		}
	}
}

// omitsComments reports whether there are so many endpoints that their rules have no comments.
func (d *desired) omitsComments() bool {
	n := 0
	for _, it := range d.items {
		if it.port != nil {
			n += len(it.port.ClusterEndpoints)
		}
	}
	return n > briefAbove
}

// allDirty marks all wanted and all installed items as dirty.
func (w *worker) allDirty() {
	for n := range w.want.items {
		w.Dirty[n] = true
	}
	for n := range w.have.items {
		w.Dirty[n] = true
	}
}
