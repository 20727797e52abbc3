package hnsfake

import (
	"encoding/json"
	"reflect"
	"slices"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// modifySetting changes the policies of a network or an endpoint, or the resources of a namespace.
func (s *Server) modifySetting(k kind, id, text string) Reply {
	var q struct {
		ResourceType, RequestType string
		Settings                  Object
	}
	if err := json.Unmarshal([]byte(text), &q); err != nil {
		return failure(hns.CodeInvalidJSON, "The document does not parse.")
	}
	list, items := "Policies", []any(nil)
	switch {
	case k == namespace:
		list, items = "Resources", []any{map[string]any{"Type": q.ResourceType, "Data": withID(q.Settings)}}
	case q.ResourceType == "Policy":
		items, _ = q.Settings["Policies"].([]any)
	default:
		return failure(hns.CodeNotImplemented, "Not implemented.")
	}
	o := decode[Object](s.objects[k][id])
	have, _ := o[list].([]any)
	switch q.RequestType {
	case "Add":
		have = append(have, items...)
	case "Update":
		have = items
	case "Remove":
		have = slices.DeleteFunc(have, func(h any) bool {
			return slices.ContainsFunc(items, func(i any) bool { return reflect.DeepEqual(h, i) })
		})
	default:
		return failure(hns.CodeNotImplemented, "Not implemented.")
	}
	o[list] = have
	s.put(k, id, o)
	return Reply{}
}

// withID returns the data of a namespace's resource: requests name an endpoint by EndpointId, answers by ID.
func withID(settings Object) any {
	return map[string]any{"ID": settings["EndpointId"]}
}
