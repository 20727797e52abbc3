package agent

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// serveServices answers GET /v1/services?namespace=…&name=…&vip=…&port=…&protocol=…&connections=….
func (a *Agent) serveServices(w http.ResponseWriter, r *http.Request) {
	f, err := api.ParseServiceFilter(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	list, err := a.services(r.Context(), f)
	reply(w, list, err)
}

// servicesBatch is how many Service ports are looked at while the agent's loop waits.
const servicesBatch = 200

// countersWait bounds how long services waits for counters. If the switch does not answer at all,
// Plane.Counters fails earlier.
const countersWait = 5 * time.Second

// services describes the Service ports that the filter selects, sorted by name.
func (a *Agent) services(ctx context.Context, f api.ServiceFilter) (*api.ServiceList, error) {
	list := &api.ServiceList{Node: a.set.NodeName, Mode: string(a.mode),
		Services: []api.ServiceInfo{}, Notes: []string{}}
	var names []k8s.PortName
	var refused []k8s.ServiceName
	var skipped []api.ServiceInfo
	delivered, active := false, planes{}
	err := a.ask(ctx, func() {
		if delivered, active = a.delivered, a.planes; delivered {
			names = selected(&f, a.model, a.tracker)
			refused = refusedBy(&f, a.tracker)
			skipped = skippedBy(&f, a.tracker)
		}
	})

	switch {
	case err != nil:
		return nil, err
	case !delivered:
		return nil, a.notSynced()
	}
	// Both wait for a switch that does not answer: once, not one after the other.

	soon, cancel := context.WithTimeout(ctx, countersWait)
	defer cancel()
	read := make(chan counted, 1)
	go func() { read <- active.counters(soon) }()
	problems, notes, err := active.problems(ctx)
	counted := <-read
	if err != nil {
		return nil, err
	}

	list.Notes = append(list.Notes, notes...)
	listeners, localhost := a.listenerProblems(), a.localhost.Problems()
	list.Time = time.Now()
	sw := active.switchNow()
	if away := a.sourceAway(); away != "" {
		list.Notes = append(list.Notes, away)
	}

	slices.SortFunc(names, k8s.PortName.Compare)
	room := room(maxListed)
	for batch := range slices.Chunk(names, servicesBatch) {
		err := a.ask(ctx, func() {
			objectProblems := a.objectProblems(batch)
			for _, n := range batch {
				sp := a.model.Ports[n]
				if sp == nil {
					continue // gone meanwhile
				}
				states := a.tracker.EndpointStates(n)
				s := describe(sp, states, a.tracker.NotServedOf(n))
				room.take(&s)
				s.Counters, s.CountersNote = counted.of(n)
				if v, _ := a.tracker.VersionsOf(n.ServiceName); v.Service != "" {
					s.InForce = &v
				}
				s.Problems = append(s.Problems, emptyProblems(a.mode, sp, func() string {
					return trace.WhyEmpty(a.tracker, n, states)
				})...)
				if odd := trace.OddPort(a.tracker, n, states); odd != "" {
					s.Problems = append(s.Problems, odd)
				}
				s.Problems = append(s.Problems, a.set.deadPorts(sw, &a.model.Node, states)...)
				if text := localhost[n]; text != "" {
					s.Problems = append(s.Problems, text)
				}
				s.Problems = slices.Concat(s.Problems, problems[n], objectProblems[n.ServiceName],
					listeners[n.String()], problems[k8s.PortName{ServiceName: n.ServiceName}])
				list.Services = append(list.Services, s)
			}
		})
		if err != nil {
			return nil, err
		}
	}

	behind := len(notes) > 0 || a.behind(soon, &active, time.Now(), false) != ""
	closing := behind || a.behind(soon, &active, time.Now(), true) != ""
	for i := range list.Services {
		if s := &list.Services[i]; behind || closing && s.RemovedEndpoints != "" {
			s.InForce = nil
		}
	}

	err = a.ask(ctx, func() { list.Services = append(list.Services, a.refusedServices(refused)...) })
	if err != nil {
		return nil, err
	}
	list.Services = append(list.Services, skipped...)
	if f.Connections {
		active.addConnections(ctx, list)
	}

	return list, nil
}

// maxListed is how many frontends and endpoints an answer has before each Service port shows only the first
// listedOfEach of each: within the limits of cost there are millions, whose description takes gigabytes.
const (
	maxListed    = 400_000
	listedOfEach = 16
)

// room is how many frontends and endpoints an answer may still have.
type room int

// take leaves out what an answer has no room for.
func (r *room) take(s *api.ServiceInfo) {
	if n := max(listedOfEach, int(*r)); len(s.Frontends) > n {
		s.MoreFrontends = len(s.Frontends) - n
		s.Frontends = slices.Clone(s.Frontends[:n])
	}
	*r -= room(len(s.Frontends))
	if n := max(listedOfEach, int(*r)); len(s.Endpoints) > n {
		s.MoreEndpoints = len(s.Endpoints) - n
		s.Endpoints = slices.Clone(s.Endpoints[:n])
	}
	*r -= room(len(s.Endpoints))
}

// refusedBy returns the Services that are not served because of their cost and that the filter selects by
// name.
func refusedBy(f *api.ServiceFilter, t *k8s.Tracker) []k8s.ServiceName {
	if f.VIP.IsValid() || f.Port != 0 || f.Protocol != "" {
		return nil
	}
	return slices.DeleteFunc(t.Refused(), func(n k8s.ServiceName) bool {
		return f.Namespace != "" && n.Namespace != f.Namespace || f.Name != "" && n.Name != f.Name
	})
}

// skippedBy describes the ports of skipped Services that the filter selects.
func skippedBy(f *api.ServiceFilter, t *k8s.Tracker) (list []api.ServiceInfo) {
	ports := map[k8s.PortName]*k8s.ServicePort{}
	for _, n := range t.SkippedPorts() {
		ports[n] = &k8s.ServicePort{Name: n}
	}
	names := slices.Values(selected(f, &k8s.Model{Ports: ports}, t))
	for _, n := range slices.SortedFunc(names, k8s.PortName.Compare) {
		list = append(list, describe(ports[n], nil, t.NotServedOf(n)))
	}
	return list
}

// refusedServices describes Services that are not served at all, each as one port without a name.
func (a *Agent) refusedServices(names []k8s.ServiceName) (list []api.ServiceInfo) {
	ports := make([]k8s.PortName, len(names))
	for i, n := range names {
		ports[i].ServiceName = n
	}
	objectProblems := a.objectProblems(ports)
	for _, n := range names {
		list = append(list, api.ServiceInfo{
			Namespace: n.Namespace, Name: n.Name,
			Frontends: []api.FrontendInfo{}, Endpoints: []api.EndpointInfo{},
			Problems: slices.Concat([]string{}, objectProblems[n]),
		})
	}
	return list
}

// selected returns the names of the Service ports that the filter selects, in no order.
func selected(f *api.ServiceFilter, m *k8s.Model, t *k8s.Tracker) (names []k8s.PortName) {
	node := f.VIP.IsValid() && slices.Contains(m.Node.Local, f.VIP)
	at := func(family k8s.Family, address netip.Addr, port uint16) bool {
		switch {
		case f.Port != 0 && port != f.Port:
			return false
		case !f.VIP.IsValid():
			return !address.IsValid() // a NodePort
		}
		return address == f.VIP || node && !address.IsValid() && family == k8s.FamilyOf(f.VIP)
	}

	for n, sp := range m.Ports {
		if f.Namespace != "" && n.Namespace != f.Namespace ||
			f.Name != "" && n.Name != f.Name ||
			f.Protocol != "" && string(n.Protocol) != f.Protocol {
			continue
		}
		if (f.VIP.IsValid() || f.Port != 0) &&
			!slices.ContainsFunc(sp.Frontends, func(x k8s.Frontend) bool {
				return at(n.Family, x.Address, x.Port)
			}) &&
			!slices.ContainsFunc(t.NotServedOf(n), func(u k8s.NotServed) bool {
				return at(n.Family, u.Addr.Addr(), u.Addr.Port())
			}) {
			continue
		}
		names = append(names, n)
	}

	return names
}

// describe puts a Service port, its endpoints and the addresses where it is not served in the form of
// ServiceInfo.
func describe(sp *k8s.ServicePort, states []k8s.EndpointState, unserved []k8s.NotServed) api.ServiceInfo {
	view := sp.View(nil)
	s := api.ServiceInfo{
		Namespace: view.Namespace, Name: view.Name, Port: view.Port, Protocol: view.Protocol,
		Family: view.Family, RemovedEndpoints: view.RemovedEndpoints,
		Frontends: make([]api.FrontendInfo, 0, len(view.Frontends)),
		Endpoints: make([]api.EndpointInfo, 0, len(states)), Problems: []string{},
	}

	for _, f := range view.Frontends {
		s.Frontends = append(s.Frontends, api.FrontendInfo{
			Type: f.Type, Address: f.Address, Port: f.Port, Policy: f.Policy, SourceRanges: f.SourceRanges,
			ShadowedBy: f.ShadowedBy,
		})
	}

	for _, u := range unserved {
		info := api.FrontendInfo{Type: string(u.Type), Port: u.Addr.Port(),
			SourceRanges: []string{}, NotServed: u.Why}
		if u.Addr.Addr().IsValid() {
			info.Address = u.Addr.Addr().String()
		}
		s.Frontends = append(s.Frontends, info)
	}

	cluster, local := policies(sp)
	for i := range states {
		s.Endpoints = append(s.Endpoints, endpointInfo(&states[i], cluster, local))
	}

	return s
}

// policies reports whether any frontend may use all endpoints, and whether any uses only local ones.
// Frontends other than the ClusterIP serve the node itself and its pods from all endpoints, regardless of the
// policy.
func policies(sp *k8s.ServicePort) (cluster, local bool) {
	router := k8s.Router{Loopback: true}
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		if !router.Serves(f) {
			continue
		}
		for _, r := range router.Routes(sp, f) {
			local = local || r.Set == k8s.OnNode
			cluster = cluster || r.Set == k8s.Anywhere
		}
	}
	return cluster || !local, local
}

func endpointInfo(e *k8s.EndpointState, cluster, local bool) api.EndpointInfo {
	info := api.EndpointInfo{Address: e.Addr.String(), Node: e.Node, Zone: e.Zone, Pod: e.Pod, Local: e.Local}
	if e.Weight != 1 {
		info.Weight = &e.Weight
	}
	inCluster, inLocal := cluster && e.InCluster, local && e.InLocal
	info.InForce = inCluster || inLocal
	switch {
	case cluster && local && inCluster != inLocal && inCluster:
		info.Why = "not for policy Local: " + e.WhyLocal
	case cluster && local && inCluster != inLocal:
		info.Why = "for policy Local only: " + e.Why
	case info.InForce:
	case cluster:
		info.Why = e.Why
	default:
		info.Why = e.WhyLocal
	}
	return info
}
