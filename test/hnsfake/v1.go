package hnsfake

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// v1 answers HNSCall(method, path, object): the version, and the lists that kube-proxy asks for at its start.
func (s *Server) v1(args []string) Reply {
	method, path := args[0], strings.Trim(args[1], "/")
	var out any
	switch {
	case method == "GET" && path == "globals/version":
		out = s.version
	case method == "GET" && path == "policylists":
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
		out = list
	default:
		text, _ := json.Marshal(map[string]any{"Success": false, "Error": "Not found.", "ErrorCode": hns.CodeElementNotFound})
		return Reply{Out: string(text)}
	}
	text, _ := json.Marshal(map[string]any{"Success": true, "Output": out})
	return Reply{Out: string(text)}
}
