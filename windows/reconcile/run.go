package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

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
		_, err := e.createLoadBalancer(d.body(s.LoadBalancer), s)
		return err
	case ModifyLoadBalancer:
		return e.modifyLoadBalancer(d.body(s.LoadBalancer), s)
	case ReplaceLoadBalancer:
		made, err := e.replaceLoadBalancer(d.body(s.LoadBalancer), s)
		if err == nil && s.repair {
			e.log.Warn("replaced a load balancer that HNS reported as not healthy", "step", s.String())
			e.health.replaced(s.LoadBalancer.Frontend, hns.CanonicalID(made.ID))
		}
		return err
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
	e.noteAnswer("endpoint "+s.Endpoint.Addr.String(), id, &body, made)
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
	delete(e.owned.Altered, id)
	e.counts.Deleted++
	return nil
}

func (e *Engine) createLoadBalancer(body *hns.LoadBalancer, s *Step) (made *hns.LoadBalancer, err error) {
	made, err = e.host.CreateLoadBalancer(body)
	if err != nil {
		if hns.HasCode(err, hns.CodePortExists) {
			return nil, fmt.Errorf("%w; probable holder: %s", err, e.probableHolder(s.LoadBalancer.Frontend))
		}
		return nil, err
	}
	e.enter(made, body)
	delete(e.owned.PendingLoadBalancers, s.LoadBalancer.Frontend.String())
	e.counts.Created++
	return made, nil
}

// probableHolder names what may hold a frontend that HNS says is taken.
func (e *Engine) probableHolder(f plan.Frontend) string {
	for _, id := range slices.Sorted(maps.Keys(e.have.loadBalancers)) {
		l := e.have.loadBalancers[id]
		for _, m := range l.PortMappings {
			if m.ExternalPort == f.Port && m.Protocol == f.Protocol {
				return fmt.Sprintf("load balancer %s (%v port %d)", id, l.FrontendVIPs, m.ExternalPort)
			}
		}
	}
	name := hns.ProtocolName(f.Protocol)
	return fmt.Sprintf("a process of this host, a port mapping (NAT policy) of an endpoint, or a reservation that "+
		"HNS did not release, on port %d/%s (netsh int ipv4 show excludedportrange protocol=%s)",
		f.Port, name, strings.ToLower(name))
}

// enter records a load balancer that HNS has just returned.
func (e *Engine) enter(l, asked *hns.LoadBalancer) {
	id := hns.CanonicalID(l.ID)
	e.have.loadBalancers[id] = l
	e.owned.LoadBalancers[id] = true
	e.noteAnswer("load balancer "+id, id, asked, l)
}

// noteAnswer records what HNS has made of a request. If it differs, nkp accepts it as long as neither
// changes: repeating the request would have the same result. The log has a warning about the first one,
// because an HNS that alters one object alters all.
func (e *Engine) noteAnswer(object, id string, asked, stored digester) {
	if !e.owned.answered(id, asked, stored) {
		return
	}
	level := slog.LevelDebug
	if !e.saidAltered {
		e.saidAltered, level = true, slog.LevelWarn
	}
	e.log.Log(context.Background(), level, "HNS stores an object differently than requested; nkp uses it as it "+
		"is (status has the number of such objects)",
		"object", object, "asked", fmt.Sprintf("%+v", asked), "stored", fmt.Sprintf("%+v", stored))
}

// modifyLoadBalancer modifies in place. HNS returns the result. If it is the same as before, either this HNS
// cannot modify, or it alters the request. The first such load balancer is replaced to find out: if creating
// it has the same result, modifications work. Otherwise load balancers are replaced from now on.
func (e *Engine) modifyLoadBalancer(body *hns.LoadBalancer, s *Step) error {
	old := e.have.loadBalancers[s.ID]
	now, err := e.host.ModifyLoadBalancer(s.ID, body)
	if err != nil {
		e.have.again[s.ID] = true // its state is unknown: the next Observe reads it again
		if hns.HasCode(err, hns.CodeNotImplemented) {
			e.noModify("HNS answers E_NOTIMPL")
		}
		return err
	}

	unchanged := hns.SameLoadBalancer(now, old)
	if unchanged && !(e.workingModify && hns.SameBackends(now, body)) {
		made, err := e.replaceLoadBalancer(body, s)
		switch {
		case err != nil:
		case hns.SameLoadBalancer(made, old):
			e.workingModify = true
		default:
			e.noModify("HNS accepted it and did not apply it")
		}
		return err
	}

	e.workingModify = true
	e.enter(now, body)
	e.counts.Modified++
	return nil
}

func (e *Engine) noModify(why string) {
	e.brokenModify = true
	e.log.Warn("load balancers cannot be modified in place; they are deleted and created from now on",
		"reason", why)
}

// replaceLoadBalancer deletes and creates. If HNS refuses the new one, the old one is restored, so that the
// frontend continues to serve.
func (e *Engine) replaceLoadBalancer(body *hns.LoadBalancer, s *Step) (made *hns.LoadBalancer, err error) {
	old := e.have.loadBalancers[s.ID]
	if err := e.deleteLoadBalancer(s.ID); err != nil {
		return nil, err
	}
	made, err = e.createLoadBalancer(body, s)
	if err == nil {
		e.counts.Replaced++
		return made, nil
	}
	if old != nil {
		if back := e.stillValid(old); len(back.HostComputeEndpoints) > 0 {
			made, err2 := e.host.CreateLoadBalancer(back)
			if err2 != nil {
				return nil, errors.Join(err, fmt.Errorf("the one before cannot be put back either: %w", err2))
			}
			e.enter(made, back)
			return nil, fmt.Errorf("%w (the one before was put back)", err)
		}
	}
	return nil, err
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
	delete(e.owned.Altered, id)
	e.counts.Deleted++
	return nil
}
