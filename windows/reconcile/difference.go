package reconcile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// difference compares a plan with what HNS has.
type difference struct {
	w     *plan.Wanted
	have  *observed
	owned *Ownership
	// leftovers are the ids of what another Service proxy left and nkp takes over.
	leftovers map[string]bool
	health    *health
	modify    bool // load balancers can be modified in place

	// fresh holds placeholder ids of endpoints to be created, for a dry run.
	fresh map[netip.Addr]string

	probing bool     // a load balancer is replaced to see whether that makes it healthy
	waiting []string // what another component has to do first
	// conflicts are frontends that a foreign load balancer holds, and load balancers that are not healthy.
	conflicts []dataplane.Refusal
	adopted   map[string]string // ids of load balancers that are right as they are -> frontend
}

// endpoint returns the id of the endpoint that stands for an address; local: the pod runs here.
func (d *difference) endpoint(a netip.Addr, local bool) (id string, ok bool) {
	for _, id := range d.have.at(a) {
		if d.usable(id, a, local) {
			return id, true
		}
	}
	id, ok = d.fresh[a]
	return id, ok
}

// usable reports whether an endpoint is right for an address. Endpoints of this host and foreign ones always
// are; nkp's own are if they match the plan.
func (d *difference) usable(id string, a netip.Addr, local bool) bool {
	e := d.have.endpoints[id]
	if !e.Remote() || !d.ours(id, e) {
		return true
	}
	want := d.w.Endpoints[a]
	if want == nil {
		return !local // the pod runs here now, the endpoint is from when it did not
	}
	return d.rightEndpoint(id, want)
}

// rightEndpoint reports whether an endpoint is as wanted, or as HNS has made it. Where nkp has no record of
// the request, because kube-proxy made it or the state file is lost, an endpoint without a provider address
// is right: proxies always request one.
func (d *difference) rightEndpoint(id string, want *plan.Endpoint) bool {
	e := d.have.endpoints[id]
	if !d.owned.Endpoints[id] && !e.Provider().IsValid() {
		c := *e
		c.Policies = want.Body.Policies
		e = &c
	}
	return hns.SameEndpoint(e, &want.Body) || d.owned.accepts(id, &want.Body, e)
}

// ours reports whether an endpoint is nkp's to delete.
func (d *difference) ours(id string, e *hns.Endpoint) bool {
	return d.owned.Endpoints[id] || proxyMade(e) || d.leftovers[id]
}

// proxyMade reports whether a Service proxy (nkp or kube-proxy) created this remote endpoint: no other
// program uses the MAC address that they derive from the address.
func proxyMade(e *hns.Endpoint) bool {
	addrs := e.Addrs()
	return e.Remote() && len(addrs) == 1 && hns.SameMAC(e.MacAddress, plan.RemoteMAC(addrs[0]))
}

// rightEndpoints returns the remote endpoints that match the plan exactly. nkp adopts them, whoever created
// them.
func (d *difference) rightEndpoints() (ids []string) {
	for a, want := range d.w.Endpoints {
		for _, id := range d.have.at(a) {
			if e := d.have.endpoints[id]; e.Remote() && hns.SameEndpoint(e, &want.Body) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// createEndpoints returns steps for the missing endpoints. A wrong endpoint must be deleted before its
// replacement is created, because HNS has one endpoint for an address.
func (d *difference) createEndpoints() (steps []Step) {
	for _, want := range d.w.SortedEndpoints() {
		if len(d.have.at(want.Addr)) > 0 {
			continue
		}
		steps = append(steps, Step{Op: CreateEndpoint, Endpoint: want})
	}
	return steps
}

// body returns the load balancer to write, with those of its endpoints that HNS has.
func (d *difference) body(l *plan.LoadBalancer) *hns.LoadBalancer {
	b := l.Body.Clone()
	for _, a := range l.Backends {
		id, ok := d.endpoint(a, l.Local[a])
		if ok {
			b.HostComputeEndpoints = append(b.HostComputeEndpoints, id)
		} else if l.Local[a] {
			d.waiting = append(d.waiting, fmt.Sprintf("%s: endpoint %s runs on this node, but HNS has no endpoint of "+
				"that address; its CNI plugin makes it", l.Service, a))
		}
	}
	return b
}

// loadBalancers returns steps for the load balancers to create or change, and to delete: duplicates for a
// frontend, and nkp's own that are no longer wanted.
func (d *difference) loadBalancers() (steps []Step) {
	index := d.have.frontends()
	d.adopted = map[string]string{}
	kept := map[string]bool{}
	for _, l := range d.w.SortedLoadBalancers() {
		body := d.body(l)
		h := index[l.Frontend]
		if len(h.shared) > 0 {
			d.conflict(l, fmt.Sprintf("its frontend is held by load balancer %s, which holds others as well and is "+
				"not nkp's: delete that one, or give the Service another port", h.shared[0]))
			for _, id := range h.alone {
				kept[id] = true
			}
			continue
		}

		best := d.best(h.alone, body)
		if best != "" {
			kept[best] = true
		}
		for _, id := range h.alone { // first: a replacement cannot be created while they exist
			if id != best {
				steps = append(steps, deletion(id, l.Frontend, "another one holds the same frontend"))
				kept[id] = true
			}
		}
		if s, ok := d.change(l, body, best); ok {
			steps = append(steps, s)
		}
	}

	for _, id := range slices.Sorted(maps.Keys(d.have.loadBalancers)) {
		if kept[id] || !d.owned.LoadBalancers[id] && !d.leftovers[id] {
			continue
		}
		why := "no Service wants it"
		if d.leftovers[id] {
			why = "another Service proxy left it, and no Service wants it (--hns-take-over)"
		}
		var f plan.Frontend
		if fs := plan.FrontendsOf(d.have.loadBalancers[id]); len(fs) > 0 {
			f = fs[0]
		}
		steps = append(steps, deletion(id, f, why))
	}
	return steps
}

// deletion returns the step that deletes a load balancer.
func deletion(id string, f plan.Frontend, why string) Step {
	return Step{Op: DeleteLoadBalancer, ID: id, frontend: f, Why: why}
}

// best returns the load balancer to keep of those that hold one frontend: the one that is right, else one of
// ours.
func (d *difference) best(ids []string, body *hns.LoadBalancer) (best string) {
	for _, id := range ids {
		if d.right(id, body) {
			return id
		}
		if best == "" || d.owned.LoadBalancers[id] && !d.owned.LoadBalancers[best] {
			best = id
		}
	}
	return best
}

// right reports whether a load balancer is as wanted, or as HNS has made it.
func (d *difference) right(id string, body *hns.LoadBalancer) bool {
	have := d.have.loadBalancers[id]
	return hns.SameLoadBalancer(have, body) || d.owned.accepts(id, body, have)
}

// change returns the step that corrects a load balancer; none if it is right, or if none of its endpoints
// exists: the current one then keeps serving. If all its endpoints have to be recreated, it is deleted first,
// because HNS has one endpoint for an address.
func (d *difference) change(l *plan.LoadBalancer, body *hns.LoadBalancer, id string) (Step, bool) {
	if len(body.HostComputeEndpoints) == 0 {
		if id != "" && d.anyWrong(l) {
			return deletion(id, l.Frontend, "all its endpoints are recreated"), true
		}
		if id != "" {
			d.adopted[id] = l.Frontend.String()
		}
		return Step{}, false
	}

	s := Step{Op: CreateLoadBalancer, ID: id, LoadBalancer: l}
	if id == "" {
		return s, true
	}
	if d.right(id, body) {
		d.adopted[id] = l.Frontend.String()
		why := d.health.describe(id)
		if why != "" {
			d.conflict(l, why)
		}
		s.Op, s.Why, s.repair = ReplaceLoadBalancer, why, true
		if !d.health.repairs(id, l.Frontend) || d.probing {
			return Step{}, false
		}
		d.probing = !d.health.proved
		return s, true
	}

	s.Op, s.Why = ReplaceLoadBalancer, describeChange(d.have.loadBalancers[id], body)
	if d.modify {
		s.Op = ModifyLoadBalancer
	}
	return s, true
}

// anyWrong reports whether a load balancer has an endpoint that has to be recreated.
func (d *difference) anyWrong(l *plan.LoadBalancer) bool {
	return slices.ContainsFunc(l.Backends, func(a netip.Addr) bool {
		return d.w.Endpoints[a] != nil && len(d.have.at(a)) > 0
	})
}

// conflict records why a load balancer may not serve although no step is to be taken.
func (d *difference) conflict(l *plan.LoadBalancer, reason string) {
	d.conflicts = append(d.conflicts, dataplane.Refusal{
		Object: "load balancer " + l.Frontend.String(),
		Port:   l.Service,
		Reason: reason,
	})
}

// deleteEndpoints returns steps for nkp's endpoints that are unwanted, wrong, or duplicates for an address.
func (d *difference) deleteEndpoints() (steps []Step) {
	for _, id := range slices.Sorted(maps.Keys(d.have.endpoints)) {
		e := d.have.endpoints[id]
		if !d.ours(id, e) {
			continue
		}
		if a, why := d.superfluous(id, e); why != "" {
			steps = append(steps, Step{Op: DeleteEndpoint, ID: id, addr: a, Why: why})
		}
	}
	return steps
}

func (d *difference) superfluous(id string, e *hns.Endpoint) (a netip.Addr, why string) {
	addrs := e.Addrs()
	if len(addrs) == 0 {
		return a, "it has no address"
	}
	a = addrs[0]
	want := d.w.Endpoints[a]
	chosen, ok := d.endpoint(a, false)
	switch {
	case want == nil:
		return a, "no Service wants it"
	case ok && chosen != id:
		return a, "there is another endpoint of the same address"
	case !d.rightEndpoint(id, want):
		return a, "it is recreated: " + describeEndpoint(e, &want.Body)
	}
	return a, ""
}
