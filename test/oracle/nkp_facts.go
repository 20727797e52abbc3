package oracle

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// viewFacts returns the facts of a view (plan -o json). What the view does not tell comes from the model.
func viewFacts(v *k8s.View, m *k8s.Model) Facts {
	facts, owners := Facts{}, map[string][]string{}
	for i := range v.Services {
		s := &v.Services[i]
		name := viewName(s)
		addViewPort(facts, name, s)
		addModelPort(facts, name, m.Ports[name])
		for j := range s.Frontends {
			if f := &s.Frontends[j]; f.ShadowedBy == "" {
				claim := ClaimText(name, f.Address, int(f.Port))
				owners[claim] = append(owners[claim], OwnerText(name, k8s.FrontendType(f.Type)))
			}
		}
	}
	facts.AddClaims(owners)
	return facts
}

func viewName(s *k8s.ServiceView) k8s.PortName {
	name := k8s.PortName{
		ServiceName: k8s.ServiceName{Namespace: s.Namespace, Name: s.Name},
		Port:        s.Port, Protocol: v1.Protocol(s.Protocol), Family: k8s.IPv4,
	}
	if s.Family == string(v1.IPv6Protocol) {
		name.Family = k8s.IPv6
	}
	return name
}

func addViewPort(facts Facts, name k8s.PortName, s *k8s.ServiceView) {
	facts[Fact{name, Affinity, ""}] = "none"
	if s.AffinitySeconds != 0 {
		facts[Fact{name, Affinity, ""}] = fmt.Sprintf("%d s", s.AffinitySeconds)
	}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		at := FrontendText(k8s.FrontendType(f.Type), f.Address, int(f.Port))
		facts[Fact{name, FrontendPolicy, at}] += f.Policy // twice if the frontend is there twice
		if f.Type == string(k8s.LoadBalancer) || len(f.SourceRanges) > 0 {
			facts[Fact{name, SourceRanges, at}] = Set(f.SourceRanges)
		}
		facts[Fact{name, Traffic, at}] = f.WhenEmpty
		if len(f.Endpoints) > 0 {
			facts[Fact{name, Traffic, at}] = List(f.Endpoints)
		}
	}
}

// addModelPort adds the endpoints with the mark of those on this node, which the view leaves out.
func addModelPort(facts Facts, name k8s.PortName, p *k8s.ServicePort) {
	texts := func(endpoints []k8s.Endpoint) (texts []string) {
		for _, e := range endpoints {
			texts = append(texts, EndpointText(e.Addr.String(), e.Local))
		}
		return texts
	}
	facts[Fact{name, ClusterEndpoints, ""}] = List(texts(p.ClusterEndpoints))
	facts[Fact{name, LocalEndpoints, ""}] = List(texts(p.LocalEndpoints))
	if name.Protocol == v1.ProtocolUDP {
		var serving []string
		for _, a := range p.Serving {
			serving = append(serving, a.String())
		}
		facts[Fact{name, Serving, ""}] = List(serving)
	}
}
