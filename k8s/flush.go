package k8s

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Flush processes the changes since the last Flush and returns the new model and its differences from the
// previous one. The cost depends on the changed Services only, not on the number of the others.
//
// Model.Ports and Model.HealthChecks are the tracker's own maps, not copies: they may be read until the next
// Flush, by the goroutine that calls Flush (or under the lock that guards the tracker). Everything else in
// the Model and in the Changes, the *ServicePort values included, is never written to again and may be shared
// freely. To keep a Model, call Model.Clone.
func (t *Tracker) Flush() (*Model, Changes) {
	changes := Changes{
		Ports:        map[PortName]*ServicePort{},
		HealthChecks: map[ServiceName]*HealthCheck{},
		Node:         t.flushNode(),
	}
	t.flushBudget()
	t.flushClaims()
	t.flushRelays()
	for name := range t.dirty {
		s := t.services[name]
		if s == nil {
			continue
		}
		t.flushService(s, changes.Ports)
		t.flushHealth(s, changes.HealthChecks)
		changes.Triggers = append(changes.Triggers, s.takeTriggers(changes.Ports)...)
		if s.def == nil && len(s.slices) == 0 {
			delete(t.services, name)
		}
	}
	clear(t.dirty)
	t.flushed = true
	t.model.Warnings = t.warnings.flush()
	m := t.model
	return &m, changes
}

// Clone returns a copy of the model that later Flushes do not change.
func (m *Model) Clone() *Model {
	c := *m
	c.Ports, c.HealthChecks = maps.Clone(m.Ports), maps.Clone(m.HealthChecks)
	return &c
}

// Everything returns the changes that bring all of the model.
func (m *Model) Everything() Changes {
	c := Changes{Ports: maps.Clone(m.Ports), HealthChecks: map[ServiceName]*HealthCheck{}, Node: true}
	for n, h := range m.HealthChecks {
		c.HealthChecks[n] = &h
	}
	return c
}

// flushClaims updates the claims of all Services with a new definition. It marks every Service that
// loses or regains a frontend as a result.
func (t *Tracker) flushClaims() {
	type fresh struct {
		*service
		ports, held []portDef
	}
	var changed []fresh
	for name := range t.dirty {
		s := t.services[name]
		if s == nil || !s.newDef {
			continue
		}
		s.newDef = false
		now := fresh{service: s}
		switch {
		case s.def == nil:
		case s.refused != "", s.def.skipped:
			now.held = clusterIPs(s.def.ports)
		default:
			now.ports = t.placeFrontends(s.def.ports)
		}

		if s.def != nil && s.created.Equal(s.def.created) &&
			sameClaims(s.ports, now.ports) && sameClaims(s.held, now.held) {
			s.former, s.ports, s.held = s.ports, now.ports, now.held
			continue
		}
		changed = append(changed, now)
	}

	touched := map[claimKey]struct{}{}
	note := func(s *service, add bool) {
		for _, name := range t.addresses.enter(s.name, s.ports, add) {
			t.dirty[name] = struct{}{}
		}
		if len(t.relays) == 0 {
			return
		}
		for i := range s.ports {
			for j := range s.ports[i].frontends {
				t.touchRelays(keyOf(s.ports[i].name, &s.ports[i].frontends[j]))
			}
		}
	}

	for _, s := range changed {
		t.claims.remove(s.service.ports, touched)
		t.claims.remove(s.service.held, touched)
		note(s.service, false)
		s.former, s.service.ports, s.service.held = s.service.ports, nil, nil
	}

	for _, s := range changed {
		if s.def == nil {
			continue
		}
		s.created, s.service.ports, s.service.held = s.def.created, s.ports, s.held
		t.claims.add(s.held, s.created, touched)
		t.claims.add(s.ports, s.created, touched)
		note(s.service, true)
	}

	for key := range touched {
		for _, c := range t.claims.of(key) {
			t.dirty[c.name.ServiceName] = struct{}{}
			t.services[c.name.ServiceName].contested = true
		}
	}
}

// sameClaims reports whether two lists of ports with frontends claim the same.
func sameClaims(a, b []portDef) bool {
	return slices.EqualFunc(a, b, func(p, q portDef) bool {
		return p.name == q.name && slices.EqualFunc(p.frontends, q.frontends, func(f, g Frontend) bool {
			return f.Type == g.Type && f.Address == g.Address && f.Port == g.Port
		})
	})
}

// placeFrontends returns the ports with their frontends, sorted: the Service's addresses and the NodePort's.
func (t *Tracker) placeFrontends(ports []portDef) []portDef {
	placed := slices.Clone(ports)
	var at []Frontend // the addresses that the port has in common with others
	for i := range placed {
		p := &placed[i]
		if i == 0 || p.shared != placed[i-1].shared {
			at = at[:0]
			for _, f := range p.shared.frontends {
				at = append(at, f.Frontend)
			}
			sortFrontends(at)
		}

		p.frontends = slices.Concat(at, t.nodePorts(p)) // NodePort is the last of the types
		for j := range at {
			p.frontends[j].Port = p.port
		}
	}
	return placed
}

// nodePorts returns the frontends of a port's NodePort: one for each address that NodePorts are restricted
// to, and one at Loopback6 if that is wanted.
func (t *Tracker) nodePorts(p *portDef) (list []Frontend) {
	if p.nodePort == 0 {
		return nil
	}
	f := Frontend{Type: NodePort, Port: p.nodePort, Policy: p.shared.external}
	if ips, restricted := t.nodePortIPs(&t.model.Node, p.name.Family); !restricted {
		list = append(list, f)
	} else {
		for _, f.Address = range ips {
			list = append(list, f)
		}
	}
	if t.atLoopback6(p.name) {
		f.Address = Loopback6
		list = append(list, f)
	}
	sortFrontends(list)
	return list
}

// clusterIPs returns the ports with their cluster IPs alone.
func clusterIPs(ports []portDef) []portDef {
	held := slices.Clone(ports)
	for i := range held {
		f := held[i].shared.frontends[0]
		f.Port = held[i].port
		held[i].frontends = []Frontend{f.Frontend}
	}
	return held
}

func sortFrontends(list []Frontend) {
	slices.SortFunc(list, func(a, b Frontend) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
	})
}

// flushService recomputes the ports of one Service. It stores those that differ in the model and in changed.
func (t *Tracker) flushService(s *service, changed map[PortName]*ServicePort) {
	var warnings []Warning
	contested := false
	for i := range s.ports {
		port, others := t.servicePort(s, &s.ports[i], &warnings)
		contested = contested || others
		if s.costs != nil {
			port.Cost, port.ServiceCost = s.costs[i], s.cost
		}
		if before := t.model.Ports[port.Name]; before != nil && before.Equal(port) {
			s.ports[i].frontends = before.Frontends
		} else {
			t.model.Ports[port.Name] = port
			changed[port.Name] = port
		}
	}

	if s.former != nil {
		stays := make(map[PortName]bool, len(s.ports))
		for i := range s.ports {
			stays[s.ports[i].name] = true
		}
		for i := range s.former {
			if name := s.former[i].name; !stays[name] {
				delete(t.model.Ports, name)
				delete(t.drains, name)
				changed[name] = nil
			}
		}
	}

	s.former, s.contested = nil, contested
	t.warnService(s, append(warnings, t.overlaps(s)...))
}

// servicePort computes one port: its endpoints in force, and WhenEmpty and ShadowedBy of each frontend.
// contested reports whether others want one of the frontends, too.
func (t *Tracker) servicePort(
	s *service, p *portDef, warnings *[]Warning,
) (port *ServicePort, contested bool) {
	port = &ServicePort{
		Name:                p.name,
		AffinitySeconds:     p.affinity,
		PreserveDestination: p.preserve,
		Frontends:           p.frontends,
	}

	node := &t.model.Node
	all := s.candidates(p, node.Name)
	port.ClusterEndpoints, port.LocalEndpoints = selectEndpoints(undrained(all), node.Name, node.Zone)
	if p.name.Protocol == v1.ProtocolUDP {
		port.Serving = serving(all)
	}

	if p.consistent != nil {
		port.Consistent = p.consistent.with(all, warnings)
	}
	if port.Consistent != nil {
		if why := t.relaysTaken(p.name, port.Consistent); why != "" {
			port.Consistent = nil
			*warnings = append(*warnings, Warning{Field: consistentField.String(), Text: why})
		}
	}

	if p.removed == nil {
		delete(t.drains, p.name)
	} else {
		port.Removed, port.Serving = t.removed(p.name, p.removed, all, warnings)
	}

	for i := range p.frontends {
		f := p.frontends[i]
		f.WhenEmpty, f.ShadowedBy = port.whenEmpty(f.Policy.set()), ""
		if s.contested {
			by, why := t.claims.winner(p.name, s.def.created, &f)
			if by != nil {
				f.ShadowedBy = by.name.String()
				if len(*warnings) <= maxWarnings {
					*warnings = append(*warnings,
						Warning{Field: p.field(&f), Text: conflictText(p.name, &f, by, why)})
				}
				if port.Consistent != nil && port.Consistent.Address == f.Address {
					port.Consistent = nil
				}
			}
			contested = contested || len(t.claims.of(keyOf(p.name, &f))) > 1
		}

		if was := &p.frontends[i]; f.WhenEmpty == was.WhenEmpty && f.ShadowedBy == was.ShadowedBy {
			continue
		}
		if &port.Frontends[0] == &p.frontends[0] {
			port.Frontends = slices.Clone(p.frontends)
		}
		port.Frontends[i] = f
	}
	p.frontends = port.Frontends
	return port, contested
}

// warnService replaces the warnings about a Service and its slices.
func (t *Tracker) warnService(s *service, conflicts []Warning) {
	ref := Ref{KindService, s.name.Namespace, s.name.Name}
	if s.def == nil {
		t.warnings.set(ref, Origin{}, nil)
	} else {
		t.warnings.set(ref, s.def.origin, slices.Concat(s.refusals(), s.def.warnings, conflicts))
	}
	for _, sl := range s.slices {
		ws := sl.warnings
		if s.def == nil && !sl.otherName {
			ws = append(slices.Clip(ws), Warning{
				Text:    fmt.Sprintf("its Service %s does not exist", s.name),
				Passing: true,
			})
		}
		t.warnings.set(Ref{KindEndpointSlice, s.name.Namespace, sl.name}, sl.origin, ws)
	}
}

// Equal reports whether two states of a Service port are the same, whatever they cost, and whether they are
// Partial.
func (s *ServicePort) Equal(o *ServicePort) bool {
	return s.Name == o.Name && s.AffinitySeconds == o.AffinitySeconds &&
		s.PreserveDestination == o.PreserveDestination &&
		slices.Equal(s.ClusterEndpoints, o.ClusterEndpoints) &&
		slices.Equal(s.LocalEndpoints, o.LocalEndpoints) &&
		slices.Equal(s.Serving, o.Serving) && s.Removed.equal(o.Removed) &&
		s.Consistent.equal(o.Consistent) &&
		slices.EqualFunc(s.Frontends, o.Frontends, func(a, b Frontend) bool {
			return a.Type == b.Type && a.Address == b.Address && a.Port == b.Port && a.Policy == b.Policy &&
				a.WhenEmpty == b.WhenEmpty && a.ShadowedBy == b.ShadowedBy &&
				slices.Equal(a.SourceRanges, b.SourceRanges)
		})
}
