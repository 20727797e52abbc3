package hnsfake

import (
	"encoding/json"

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
	case endpoint:
		if h, ok := s.handles[parseHandle(args[0])]; !ok || h.kind != network {
			return failure(hns.CodeNetworkNotFound, "The network was not found.")
		} else {
			o["HostComputeNetwork"] = h.id
		}
		if bad := s.badEndpoint(o); bad != nil {
			return *bad
		}
	case loadBalancer:
		if bad := s.badLoadBalancer(o, ""); bad != nil {
			return *bad
		}
	}
	delete(o, "ID")
	id := s.add(k, o)
	return Reply{ID: id, Handle: s.open(k, id)}
}

// badEndpoint refuses an address that another endpoint of the network has.
func (s *Server) badEndpoint(o Object) *Reply {
	e := decode[hns.Endpoint](o)
	if len(e.Addrs()) == 0 {
		r := failure(hns.CodeAddressReserved, "The address is invalid.")
		return &r
	}
	for _, c := range claimsOf(endpoint, o) {
		if s.claims[c] != "" {
			r := failure(hns.CodeAddressReserved, "The IP address is already in use.")
			return &r
		}
	}
	return nil
}

// claimsOf returns what no two objects may have in common: an address of a network, a frontend of the host.
func claimsOf(k kind, o Object) (claims []string) {
	switch k {
	case endpoint:
		e := decode[hns.Endpoint](o)
		for _, a := range e.Addrs() {
			claims = append(claims, hns.CanonicalID(e.HostComputeNetwork)+" "+a.String())
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

// modify replaces the body of a load balancer: from 15.5; 15.4 accepts it and does nothing.
func (s *Server) modify(k kind, args []string) Reply {
	h, ok := s.handles[parseHandle(args[0])]
	if !ok || k != loadBalancer || !s.version.AtLeast(15, 4) {
		return failure(hns.CodeNotImplemented, "Not implemented.")
	}
	if !s.version.AtLeast(15, 5) {
		return Reply{}
	}
	var o Object
	if err := json.Unmarshal([]byte(args[1]), &o); err != nil || o == nil {
		return failure(hns.CodeInvalidJSON, "The document does not parse.")
	}
	if bad := s.badLoadBalancer(o, h.id); bad != nil {
		return *bad
	}
	o["ID"] = h.id
	s.put(k, h.id, o)
	return Reply{}
}

func (s *Server) remove(k kind, id string) Reply {
	if s.objects[k][id] == nil {
		return failure(notFound(k), "Element not found.")
	}
	if k == endpoint {
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
