package apiserver

import (
	"reflect"
	"sync"

	"github.com/nkp-proxy/nkp/k8s"
)

// relay passes changes and problems on to the sink, each kind of object from its own goroutine. Its methods
// may be called from any goroutine.
type relay struct {
	health *health
	sink   k8s.Sink

	mu       sync.Mutex   // held during calls of the sink, which expects one at a time; protects reported
	reported k8s.Problems // last report to the sink
}

// apply passes on changes in the order in which they happened.
func (r *relay) apply(changes ...k8s.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(changes) > 0 {
		r.sink.Apply(changes)
	}
}

// synced reports that the first complete state was passed on.
func (r *relay) synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sink.Synced()
}

// report passes on the problems if they have changed.
func (r *relay) report() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.health.problems(); !reflect.DeepEqual(p, r.reported) {
		r.reported = p
		r.sink.Problems(p)
	}
}
