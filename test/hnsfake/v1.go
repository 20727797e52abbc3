package hnsfake

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// v1 answers HNSCall(method, path, object): HNS's first API. Its networks and endpoints are those of the second; only the fields that
// both APIs have are translated.
func (s *Server) v1(args []string) Reply {
	method, object := args[0], args[2]
	path := strings.Split(strings.Trim(args[1], "/"), "/")
	var id, action string
	if len(path) > 1 {
		id = hns.CanonicalID(path[1])
	}
	if len(path) > 2 {
		action = path[2]
	}
	switch path[0] {
	case "globals":
		return v1Answer(s.version)
	case "policylists":
		return v1Answer(s.policyLists())
	case "networks":
		return s.v1Object(network, method, id, object)
	case "endpoints":
		if action == "attach" || action == "detach" {
			return s.v1Object(endpoint, "GET", id, "")
		}
		return s.v1Object(endpoint, method, id, object)
	case "endpointstats":
		return s.v1Object(endpoint, "GET", id, "")
	case "accelnet":
		return s.managementMACs(method, object)
	}
	return v1Failure(Reply{HResult: hns.CodeElementNotFound})
}

func v1Answer(out any) Reply {
	text, _ := json.Marshal(map[string]any{"Success": true, "Output": out})
	return Reply{Out: string(text)}
}

// v1Failure returns what the first API answers where the second answers r: S_OK and the error record.
func v1Failure(r Reply) Reply {
	if r.Record == "" {
		r = failure(r.HResult, "Not found.")
	}
	return Reply{Out: r.Record}
}

func (s *Server) policyLists() any {
	list := []any{}
	for _, id := range s.order[loadBalancer] {
		l := decode[hns.LoadBalancer](s.objects[loadBalancer][id])
		refs := []string{}
		for _, e := range l.HostComputeEndpoints {
			refs = append(refs, "/endpoints/"+e)
		}
		policy := map[string]any{"ID": strings.ToUpper(id), "References": refs, "State": cmp.Or(s.states[id], hns.StateHealthy)}
		if s.noStates {
			delete(policy, "State")
		}
		list = append(list, policy)
	}
	return list
}

// v1Object makes a call about networks or endpoints. id "": about all, or about a new one.
func (s *Server) v1Object(k kind, method, id, object string) Reply {
	switch {
	case method == "GET" && id == "":
		list := []Object{}
		for _, id := range s.order[k] {
			list = append(list, s.echoed(k, s.objects[k][id]))
		}
		return v1Answer(list)
	case method == "POST" && id == "":
		args := []string{object}
		if k == endpoint {
			var e struct{ VirtualNetwork string }
			_ = json.Unmarshal([]byte(object), &e) // create reports that it does not parse
			h := s.open(network, hns.CanonicalID(e.VirtualNetwork))
			defer delete(s.handles, h)
			args = []string{formatHandle(h), object}
		}
		r := s.create(k, args)
		if r.Record != "" {
			return v1Failure(r)
		}
		delete(s.handles, r.Handle)
		return v1Answer(s.echoed(k, s.objects[k][r.ID]))
	case s.objects[k][id] == nil:
		return v1Failure(Reply{HResult: notFound(k)})
	case method == "GET":
		return v1Answer(s.echoed(k, s.objects[k][id]))
	case method == "DELETE":
		s.remove(k, id)
		return v1Answer(Object{"ID": id})
	}
	return v1Failure(Reply{HResult: hns.CodeNotImplemented})
}

// managementMACs keeps the list of MAC addresses that virtual functions must not take.
func (s *Server) managementMACs(method, object string) Reply {
	switch method {
	case "POST":
		s.macs = json.RawMessage(object)
	case "DELETE":
		s.macs = nil
	}
	if s.macs == nil {
		return v1Answer(Object{})
	}
	return v1Answer(s.macs)
}
