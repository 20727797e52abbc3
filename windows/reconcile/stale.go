package reconcile

import (
	"maps"
	"slices"

	"github.com/nkp-proxy/nkp/windows/plan"
)

// Stale are objects of other owners that outlived what they were made for, by id, sorted: remote endpoints
// whose address no Service has, and the load balancers that send to them. Microsoft's networkhealth script
// looks for both. nkp leaves them alone.
type Stale struct {
	Endpoints, LoadBalancers []string
}

// stale returns the stale objects. Addresses of Services and the source VIP are wanted.
func (o *observed) stale(w *plan.Wanted) (s Stale) {
	for _, id := range slices.Sorted(maps.Keys(o.endpoints)) {
		e := o.endpoints[id]
		wanted := !e.Remote()
		for _, a := range e.Addrs() {
			wanted = wanted || w.Endpoints[a] != nil
		}
		if !wanted {
			s.Endpoints = append(s.Endpoints, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(o.loadBalancers)) {
		if slices.ContainsFunc(s.Endpoints, o.loadBalancers[id].References) {
			s.LoadBalancers = append(s.LoadBalancers, id)
		}
	}
	return s
}
