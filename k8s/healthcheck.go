package k8s

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// healthCheckPort returns the health check node port of a Service; 0: none. Only type LoadBalancer with
// externalTrafficPolicy Local has one.
func healthCheckPort(o *v1.Service) uint16 {
	if o.Spec.Type != v1.ServiceTypeLoadBalancer ||
		o.Spec.ExternalTrafficPolicy != v1.ServiceExternalTrafficPolicyLocal {
		return 0
	}
	if p := o.Spec.HealthCheckNodePort; p > 0 && p <= 65535 {
		return uint16(p)
	}
	return 0
}

// flushHealth recomputes the health check of one Service. It stores it in the model and in changed if it
// differs.
func (t *Tracker) flushHealth(s *service, changed map[ServiceName]*HealthCheck) {
	before, had := t.model.HealthChecks[s.name]
	h, has := s.healthCheck(t.model.Node.Name)
	switch {
	case has && !(had && before == h):
		t.model.HealthChecks[s.name] = h
		changed[s.name] = &h
	case had && !has:
		delete(t.model.HealthChecks, s.name)
		changed[s.name] = nil
	}
}

func (s *service) healthCheck(node string) (h HealthCheck, ok bool) {
	if s.def == nil || s.def.healthCheckPort == 0 || s.refused != "" {
		return h, false
	}
	h = HealthCheck{Port: s.def.healthCheckPort, Local4: -1, Local6: -1}
	for i := range s.def.ports {
		switch f := s.def.ports[i].name.Family; {
		case f == IPv4 && h.Local4 < 0:
			h.Local4 = s.localReady(f, node, s.def.ports[i].weights)
		case f == IPv6 && h.Local6 < 0:
			h.Local6 = s.localReady(f, node, s.def.ports[i].weights)
		}
	}
	return h, true
}

// localReady counts the distinct addresses of ready endpoints on a node that get new connections.
func (s *service) localReady(f Family, node string, w *weights) int {
	if node == "" {
		return 0
	}
	var ips []netip.Addr
	for _, sl := range s.slices {
		if sl.family != f || len(sl.ports) == 0 {
			continue
		}
		for i := range sl.endpoints {
			if e := &sl.endpoints[i]; e.ready && e.node == node && w.at(e.addr) > 0 {
				ips = append(ips, e.addr)
			}
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return len(slices.Compact(ips))
}
