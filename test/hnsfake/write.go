package hnsfake

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// create makes an object. Arguments: of an endpoint the network's handle and the body, else the body.
func (s *Server) create(k kind, args []string) Reply {
	var o Object
	if err := json.Unmarshal([]byte(args[len(args)-1]), &o); err != nil || o == nil {
		return failure(hns.CodeInvalidJSON, "The document does not parse.")
	}
	switch k {
	case network:
		fromV1(o)
		if bad := badNetwork(o); bad != nil {
			return *bad
		}
	case endpoint:
		if h, ok := s.handles[parseHandle(args[0])]; !ok || h.kind != network {
			return failure(hns.CodeNetworkNotFound, "The network was not found.")
		} else {
			o["HostComputeNetwork"] = h.id
		}
		s.assign(o)
		if bad := s.badEndpoint(o); bad != nil {
			return *bad
		}
	case loadBalancer:
		if bad := s.badLoadBalancer(o, ""); bad != nil {
			return *bad
		}
	}
	if id, _ := o["ID"].(string); s.objects[k][hns.CanonicalID(id)] != nil {
		delete(o, "ID")
	}
	id := s.add(k, o)
	return Reply{ID: id, Handle: s.open(k, id)}
}

// badEndpoint refuses an endpoint without an address, and an address or a port mapping that another endpoint has.
func (s *Server) badEndpoint(o Object) *Reply {
	e := decode[hns.Endpoint](o)
	if len(e.Addrs()) == 0 {
		r := failure(hns.CodeAddressReserved, "The address is invalid.")
		return &r
	}
	for _, c := range claimsOf(endpoint, o) {
		if s.claims[c] != "" && strings.HasPrefix(c, portMapping) {
			r := failure(hns.CodePortExists, "The specified port already exists.")
			return &r
		}
		if s.claims[c] != "" {
			r := failure(hns.CodeAddressReserved, "The IP address is already in use.")
			return &r
		}
	}
	return nil
}

// portMapping begins the claims of an endpoint's port mappings.
const portMapping = "port mapping "

// claimsOf returns what no two objects may have in common: an address of a network, a mapped port, a frontend of the host.
func claimsOf(k kind, o Object) (claims []string) {
	switch k {
	case endpoint:
		e := decode[hns.Endpoint](o)
		for _, a := range e.Addrs() {
			claims = append(claims, hns.CanonicalID(e.HostComputeNetwork)+" "+a.String())
		}
		for _, p := range e.Policies {
			var m struct{ Protocol, ExternalPort int }
			if p.Type == "PortMapping" && json.Unmarshal(p.Settings, &m) == nil {
				claims = append(claims, fmt.Sprintf("%s%d/%d", portMapping, m.ExternalPort, m.Protocol))
			}
		}
	case loadBalancer:
		l := decode[hns.LoadBalancer](o)
		for _, f := range plan.FrontendsOf(&l) {
			claims = append(claims, f.String())
		}
	}
	return claims
}

// badLoadBalancer refuses a frontend that is taken, endpoints that are not there, and what HNS of this version cannot do.
func (s *Server) badLoadBalancer(o Object, self string) *Reply {
	l := decode[hns.LoadBalancer](o)
	bad := func(code uint32, text string) *Reply {
		r := failure(code, text)
		return &r
	}
	if len(l.HostComputeEndpoints) == 0 {
		return bad(hns.CodeInvalidPolicy, "A load balancer needs endpoints.")
	}
	for _, id := range l.HostComputeEndpoints {
		if s.objects[endpoint][hns.CanonicalID(id)] == nil {
			return bad(hns.CodeEndpointNotFound, "The endpoint was not found.")
		}
	}
	features := hns.FeaturesOf(s.version)
	if l.Flags&hns.LoadBalancerDSR != 0 && !features.DSR || l.Flags&hns.LoadBalancerIPv6 != 0 && !features.IPv6DualStack {
		return bad(hns.CodeInvalidPolicy, "The policy is not supported.")
	}
	for _, c := range claimsOf(loadBalancer, o) {
		if holder := s.claims[c]; holder != "" && holder != self {
			return bad(hns.CodePortExists, "The specified port already exists.")
		}
	}
	return nil
}

// modify changes an object: the body of a load balancer or a route is replaced, of the others a list in it changes.
func (s *Server) modify(k kind, args []string) Reply {
	h, ok := s.handles[parseHandle(args[0])]
	if !ok || s.objects[k][h.id] == nil {
		return failure(notFound(k), "Element not found.")
	}
	switch k {
	case loadBalancer:
		return s.modifyLoadBalancer(h.id, args[1])
	case route:
		return s.replace(k, h.id, args[1])
	}
	return s.modifySetting(k, h.id, args[1])
}

// modifyLoadBalancer works from HNS 15.5 on; 15.4 accepts it and does nothing.
func (s *Server) modifyLoadBalancer(id, text string) Reply {
	if !s.version.AtLeast(15, 4) {
		return failure(hns.CodeNotImplemented, "Not implemented.")
	}
	if !s.version.AtLeast(15, 5) {
		return Reply{}
	}
	return s.replace(loadBalancer, id, text)
}

// replace replaces the whole body of an object.
func (s *Server) replace(k kind, id, text string) Reply {
	var o Object
	if err := json.Unmarshal([]byte(text), &o); err != nil || o == nil {
		return failure(hns.CodeInvalidJSON, "The document does not parse.")
	}
	if k == loadBalancer {
		if bad := s.badLoadBalancer(o, id); bad != nil {
			return *bad
		}
	}
	o["ID"] = id
	s.put(k, id, o)
	return Reply{}
}

func (s *Server) remove(k kind, id string) Reply {
	if s.objects[k][id] == nil {
		return failure(notFound(k), "Element not found.")
	}
	switch k {
	case network:
		s.removeNetwork(id)
		return Reply{}
	case endpoint:
		for _, o := range s.objects[loadBalancer] {
			if l := decode[hns.LoadBalancer](o); l.References(id) {
				s.dangling++
			}
		}
	}
	s.del(k, id)
	return Reply{}
}

// decode reads an object as the type T.
func decode[T any](o Object) (t T) {
	text, _ := json.Marshal(o)
	_ = json.Unmarshal(text, &t)
	return t
}
