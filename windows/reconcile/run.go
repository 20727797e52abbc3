package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// run executes one step and updates the observation of HNS.
func (e *Engine) run(d *difference, s *Step) error {
	switch s.Op {
	case CreateEndpoint:
		return e.createEndpoint(s)
	case DeleteEndpoint:
		return e.deleteEndpoint(s.ID)
	case CreateLoadBalancer:
		return e.createLoadBalancer(d.body(s.LoadBalancer), s)
	case ModifyLoadBalancer:
		return e.modifyLoadBalancer(d.body(s.LoadBalancer), s)
	case ReplaceLoadBalancer:
		return e.replaceLoadBalancer(d.body(s.LoadBalancer), s)
	case DeleteLoadBalancer:
		return e.deleteLoadBalancer(s.ID)
	}
	return fmt.Errorf("unknown step %q", s.Op)
}

func (e *Engine) createEndpoint(s *Step) error {
	body := s.Endpoint.Body
	made, err := e.host.CreateEndpoint(&body)
	if err != nil {
		return err // if HNS created it anyway, the next Observe finds it
	}
	id := hns.CanonicalID(made.ID)
	if !hns.SameEndpoint(made, &body) {
		e.log.Warn("HNS created an endpoint that differs from the request; nkp uses it as it is", "endpoint", s.Endpoint.Addr.String(),
			"difference", describeEndpoint(made, &body))
		e.asIs[id] = true
	}
	e.have.setEndpoint(made)
	e.owned.Endpoints[id] = true
	delete(e.owned.PendingEndpoints, s.Endpoint.Addr.String())
	e.counts.Created++
	return nil
}

func (e *Engine) deleteEndpoint(id string) error {
	if err := e.host.DeleteEndpoint(id); err != nil && !hns.IsNotFound(err) {
		return err
	}
	e.have.dropEndpoint(id)
	delete(e.owned.Endpoints, id)
	e.counts.Deleted++
	return nil
}

func (e *Engine) createLoadBalancer(body *hns.LoadBalancer, s *Step) error {
	made, err := e.host.CreateLoadBalancer(body)
	if err != nil {
		if hns.HasCode(err, hns.CodePortExists) {
			return fmt.Errorf("%w; probable holder: %s", err, e.probableHolder(s.LoadBalancer.Frontend))
		}
		return err
	}
	e.enter(made, body)
	delete(e.owned.PendingLoadBalancers, s.LoadBalancer.Frontend.String())
	e.counts.Created++
	return nil
}

// probableHolder names what may hold a frontend that HNS says is taken.
func (e *Engine) probableHolder(f plan.Frontend) string {
	for _, id := range slices.Sorted(maps.Keys(e.have.loadBalancers)) {
		for _, m := range e.have.loadBalancers[id].PortMappings {
			if m.ExternalPort == f.Port && m.Protocol == f.Protocol {
				return fmt.Sprintf("load balancer %s (%v port %d)", id, e.have.loadBalancers[id].FrontendVIPs, m.ExternalPort)
			}
		}
	}
	return fmt.Sprintf("a process of this host, or a port mapping (NAT policy) of an endpoint, on port %d/%s", f.Port, hns.ProtocolName(f.Protocol))
}

// enter records a load balancer that HNS has just returned. If it differs from the request, it is accepted as long as the
// request stays the same: repeating the request would have the same result.
func (e *Engine) enter(l, asked *hns.LoadBalancer) {
	id := hns.CanonicalID(l.ID)
	e.have.loadBalancers[id] = l
	e.owned.LoadBalancers[id] = true
	delete(e.asked, id)
	if !hns.SameLoadBalancer(l, asked) {
		e.asked[id] = asked
		e.log.Warn("HNS created a load balancer that differs from the request; nkp uses it as it is", "id", id,
			"asked", fmt.Sprintf("%+v", *asked), "got", fmt.Sprintf("%+v", *l))
	}
}

// modifyLoadBalancer modifies in place. HNS returns the result: if it is the same as before, this HNS cannot modify, and load
// balancers are replaced from now on.
func (e *Engine) modifyLoadBalancer(body *hns.LoadBalancer, s *Step) error {
	old := e.have.loadBalancers[s.ID]
	now, err := e.host.ModifyLoadBalancer(s.ID, body)
	if err != nil {
		e.have.stale[s.ID] = true // whatever it is now: the next Observe reads it again
		if hns.HasCode(err, hns.CodeNotImplemented) {
			e.noModify("HNS answers E_NOTIMPL")
		}
		return err
	}
	if hns.SameLoadBalancer(now, old) {
		e.noModify("HNS accepted it and did not apply it")
		return e.replaceLoadBalancer(body, s)
	}
	e.enter(now, body)
	e.counts.Modified++
	return nil
}

func (e *Engine) noModify(why string) {
	e.brokenModify = true
	e.log.Warn("load balancers cannot be modified in place; they are deleted and created from now on", "reason", why)
}

// replaceLoadBalancer deletes and creates. If HNS refuses the new one, the old one is restored, so that the frontend
// continues to serve.
func (e *Engine) replaceLoadBalancer(body *hns.LoadBalancer, s *Step) error {
	old := e.have.loadBalancers[s.ID]
	if err := e.deleteLoadBalancer(s.ID); err != nil {
		return err
	}
	err := e.createLoadBalancer(body, s)
	if err == nil {
		e.counts.Replaced++
		return nil
	}
	if old != nil {
		if back := e.stillValid(old); len(back.HostComputeEndpoints) > 0 {
			made, err2 := e.host.CreateLoadBalancer(back)
			if err2 != nil {
				return errors.Join(err, fmt.Errorf("the one before cannot be put back either: %w", err2))
			}
			e.enter(made, back)
			return fmt.Errorf("%w (the one before was put back)", err)
		}
	}
	return err
}

// stillValid returns a load balancer without id and without the endpoints that are gone.
func (e *Engine) stillValid(l *hns.LoadBalancer) *hns.LoadBalancer {
	c := l.Clone()
	c.ID, c.HostComputeEndpoints = "", nil
	for _, id := range l.HostComputeEndpoints {
		if e.have.endpoints[hns.CanonicalID(id)] != nil {
			c.HostComputeEndpoints = append(c.HostComputeEndpoints, id)
		}
	}
	return c
}

func (e *Engine) deleteLoadBalancer(id string) error {
	if err := e.host.DeleteLoadBalancer(id); err != nil && !hns.IsNotFound(err) {
		return err
	}
	delete(e.have.loadBalancers, id)
	delete(e.owned.LoadBalancers, id)
	e.counts.Deleted++
	return nil
}
