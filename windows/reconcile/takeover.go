package reconcile

import (
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// TakeOver makes the engine treat as nkp's what another Service proxy left in HNS: load balancers, and
// endpoints of Service addresses, that exist at the first Sync or Diff, are not nkp's, and have the form of
// kube-proxy's. Those that no Service wants are deleted.
func (e *Engine) TakeOver() { e.takeOver = true }

// findLeftovers determines once what TakeOver concerns: objects that another program creates later are not.
func (e *Engine) findLeftovers(w *plan.Wanted) {
	if !e.takeOver || e.leftovers != nil {
		return
	}
	e.leftovers = map[string]bool{}
	for id, l := range e.have.loadBalancers {
		if !e.owned.LoadBalancers[id] && e.proxyForm(l) {
			e.leftovers[id] = true
		}
	}
	var vip *plan.Endpoint // they differ in their addresses only
	for _, want := range w.Endpoints {
		if want.Purpose == plan.ForVIP {
			vip = want
		}
	}
	for id, have := range e.have.endpoints {
		if vip == nil || e.owned.Endpoints[id] || len(have.Addrs()) != 1 {
			continue
		}
		c := vip.Body
		c.IpConfigurations = have.IpConfigurations
		e.leftovers[id] = hns.SameEndpoint(have, &c)
	}
}

// proxyForm reports whether a load balancer has the form of kube-proxy's: one frontend, and only endpoints of
// the pods' network.
func (e *Engine) proxyForm(l *hns.LoadBalancer) bool {
	for _, id := range l.HostComputeEndpoints {
		if e.have.endpoints[hns.CanonicalID(id)] == nil {
			return false
		}
	}
	return len(l.HostComputeEndpoints) > 0 && len(plan.FrontendsOf(l)) == 1
}
