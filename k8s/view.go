package k8s

import (
	"cmp"
	"maps"
	"slices"
)

// View is the model as `plan -o json` prints it. Its JSON form is part of the command-line contract:
// no list in it is null, and everything is sorted.
type View struct {
	Node     string        `json:"node"`
	Services []ServiceView `json:"services"`
	// Skipped are the Services, as namespace/name, that --skip-services leaves to another program of the
	// node.
	Skipped []string `json:"skipped,omitempty"`
}

// ServiceView is one Service port in a View.
type ServiceView struct {
	Namespace        string   `json:"namespace"`
	Name             string   `json:"name"`
	Port             string   `json:"port"`
	Protocol         string   `json:"protocol"`
	Family           string   `json:"family"`
	AffinitySeconds  int      `json:"affinitySeconds"`
	ClusterEndpoints []string `json:"clusterEndpoints"`
	LocalEndpoints   []string `json:"localEndpoints"`
	// Weights has the endpoints whose share of new connections is not 1, and its size relative to the
	// others'.
	Weights map[string]int `json:"weights,omitempty"`
	// Consistent is the address that clients from outside reach by consistent choice (AnnotationConsistent).
	Consistent string `json:"consistent,omitempty"`
	// RemovedEndpoints is what becomes of TCP connections to removed endpoints (AnnotationRemovedEndpoints),
	// unless they stay.
	RemovedEndpoints string         `json:"removedEndpoints,omitempty"`
	Frontends        []FrontendView `json:"frontends"`
}

// FrontendView is one frontend in a View.
type FrontendView struct {
	Type         string   `json:"type"`
	Address      string   `json:"address"` // "": every address of the node
	Port         uint16   `json:"port"`
	Policy       string   `json:"policy"`
	Endpoints    []string `json:"endpoints"` // those in force for the policy
	SourceRanges []string `json:"sourceRanges"`
	WhenEmpty    string   `json:"whenEmpty"`
	ShadowedBy   string   `json:"shadowedBy,omitempty"`
	// Routes are what becomes of new connections from clients outside, from pods and from the node; none if
	// it is not served.
	Routes *RoutesView `json:"routes,omitempty"`
}

// RoutesView is the Routes of a frontend in a View.
type RoutesView struct {
	Outside RouteView `json:"outside"`
	Pod     RouteView `json:"pod"`
	Node    RouteView `json:"node"`
}

// RouteView is one Route in a View.
type RouteView struct {
	Endpoints  string `json:"endpoints"` // cluster: those of any node; local: those of this one
	Masquerade bool   `json:"masquerade"`
	Consistent bool   `json:"consistent,omitempty"`
	Empty      string `json:"empty,omitempty"` // reject or drop, as there is no endpoint
}

// View returns the model in the form of `plan -o json`, with the routes of r unless that is nil.
func (m *Model) View(r *Router) View {
	v := View{Node: m.Node.Name, Services: make([]ServiceView, 0, len(m.Ports))}
	for _, name := range slices.SortedFunc(maps.Keys(m.Ports), PortName.Compare) {
		v.Services = append(v.Services, m.Ports[name].View(r))
	}
	for _, name := range m.Skipped {
		v.Skipped = append(v.Skipped, name.String())
	}
	return v
}

// View returns one Service port in the form of `plan -o json`, with the routes of r unless that is nil.
func (s *ServicePort) View(r *Router) ServiceView {
	v := ServiceView{
		Namespace:        s.Name.Namespace,
		Name:             s.Name.Name,
		Port:             s.Name.Port,
		Protocol:         string(s.Name.Protocol),
		Family:           s.Name.Family.String(),
		AffinitySeconds:  s.AffinitySeconds,
		ClusterEndpoints: endpointTexts(s.ClusterEndpoints),
		LocalEndpoints:   endpointTexts(s.LocalEndpoints),
		Frontends:        make([]FrontendView, 0, len(s.Frontends)),
	}

	for _, e := range slices.Concat(s.ClusterEndpoints, s.LocalEndpoints) {
		if e.Weight() != 1 {
			if v.Weights == nil {
				v.Weights = map[string]int{}
			}
			v.Weights[e.Addr.String()] = e.Weight()
		}
	}
	if s.Consistent != nil {
		v.Consistent = s.Consistent.Address.String()
	}

	if s.Removed != nil {
		v.RemovedEndpoints = s.Removed.String()
	}

	for i := range s.Frontends {
		v.Frontends = append(v.Frontends, s.Frontends[i].view(s, r))
	}
	slices.SortFunc(v.Frontends, func(a, b FrontendView) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Address, b.Address),
			cmp.Compare(a.Port, b.Port))
	})
	return v
}

func (f *Frontend) view(s *ServicePort, r *Router) FrontendView {
	v := FrontendView{
		Type:         string(f.Type),
		Port:         f.Port,
		Policy:       string(f.Policy),
		Endpoints:    endpointTexts(s.Endpoints(f.Policy.set())),
		SourceRanges: make([]string, 0, len(f.SourceRanges)),
		WhenEmpty:    string(f.WhenEmpty),
		ShadowedBy:   f.ShadowedBy,
	}
	if f.Address.IsValid() {
		v.Address = f.Address.String()
	}
	for _, p := range f.SourceRanges {
		v.SourceRanges = append(v.SourceRanges, p.String())
	}
	if r != nil && r.Serves(f) {
		routes := r.Routes(s, f)
		v.Routes = &RoutesView{routes[Outside].view(), routes[Pod].view(), routes[ThisNode].view()}
	}
	return v
}

func (r *Route) view() RouteView {
	return RouteView{[...]string{"cluster", "local"}[r.Set], r.Masquerade, r.Consistent, string(r.Empty)}
}

func endpointTexts(endpoints []Endpoint) []string {
	texts := make([]string, 0, len(endpoints))
	for _, e := range endpoints {
		texts = append(texts, e.Addr.String())
	}
	slices.Sort(texts)
	return texts
}
