package selftest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// compare fills in how HNS's answer differs from the request.
func (o *Object) compare() {
	var asked, stored any
	if json.Unmarshal(o.Asked, &asked) != nil || json.Unmarshal(o.Stored, &stored) != nil {
		o.Error = "HNS's answer is not JSON"
		return
	}
	o.fields("", asked, stored)
	o.Altered = altered(o.Kind, o.Asked, o.Stored)
}

// fields compares two values at a path.
func (o *Object) fields(path string, asked, stored any) {
	switch a := asked.(type) {
	case map[string]any:
		if s, ok := stored.(map[string]any); ok {
			o.object(path, a, s)
			return
		}
	case []any:
		if s, ok := stored.([]any); ok && len(s) == len(a) {
			for i := range a {
				o.fields(fmt.Sprintf("%s[%d]", path, i), a[i], s[i])
			}
			return
		}
	}
	if !reflect.DeepEqual(asked, stored) {
		o.Differences = append(o.Differences, Difference{path, text(asked), text(stored)})
	}
}

func (o *Object) object(path string, asked, stored map[string]any) {
	if path != "" {
		path += "."
	}
	for _, key := range slices.Sorted(maps.Keys(asked)) {
		if value, ok := stored[key]; ok {
			o.fields(path+key, asked[key], value)
		} else {
			o.Differences = append(o.Differences, Difference{path + key, text(asked[key]), ""})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(stored)) {
		if _, ok := asked[key]; !ok {
			o.Added = append(o.Added, path+key)
		}
	}
}

func text(v any) string {
	s, _ := json.Marshal(v) // it was JSON
	return string(s)
}

// altered reports whether nkp takes two objects for different.
func altered(k hns.Kind, asked, stored json.RawMessage) bool {
	switch k {
	case hns.KindEndpoint:
		return !same(asked, stored, hns.SameEndpoint)
	case hns.KindLoadBalancer:
		return !same(asked, stored, hns.SameLoadBalancer)
	}
	return false
}

func same[T any](asked, stored json.RawMessage, equal func(a, b *T) bool) bool {
	var a, s T
	return json.Unmarshal(asked, &a) == nil && json.Unmarshal(stored, &s) == nil && equal(&a, &s)
}
