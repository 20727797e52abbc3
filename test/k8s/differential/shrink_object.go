package differential

import (
	"reflect"

	"github.com/nkp-proxy/nkp/k8s"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// simpler returns copies of an object that have one thing less: a field, or an element of a list or map, at any depth.
func simpler(o k8s.Object) []k8s.Object {
	var all []k8s.Object
	for i := range steps(reflect.ValueOf(o).Elem(), -1) {
		c := copyOf(o)
		steps(reflect.ValueOf(c).Elem(), i)
		all = append(all, c)
	}
	return all
}

func copyOf(o k8s.Object) k8s.Object {
	switch o := o.(type) {
	case *v1.Service:
		return o.DeepCopy()
	case *discoveryv1.EndpointSlice:
		return o.DeepCopy()
	case *v1.Node:
		return o.DeepCopy()
	}
	panic("no such kind")
}

// steps counts the ways to take something out of v, and takes the one with the number take (-1: none).
func steps(v reflect.Value, take int) int {
	n := 0
	try := func(remove func()) {
		if n == take {
			remove()
		}
		n++
	}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				f := v.Field(i)
				name := v.Type().Field(i).Name
				if !f.CanSet() || keep[name] || f.IsZero() {
					continue
				}
				if name != "ObjectMeta" {
					try(func() { f.SetZero() })
				}
				if (n <= take || take < 0) && !whole[name] {
					walk(f)
				}
			}
		case reflect.Slice:
			for i := range v.Len() {
				try(func() { v.Set(reflect.AppendSlice(v.Slice3(0, i, i), v.Slice(i+1, v.Len()))) })
				if n <= take || take < 0 {
					walk(v.Index(i))
				}
			}
		case reflect.Pointer:
			walk(v.Elem())
		case reflect.Map:
			for _, key := range v.MapKeys() {
				try(func() { v.SetMapIndex(key, reflect.Value{}) })
			}
		}
	}
	walk(v)
	return n
}

// keep are the fields without which an object is none.
var keep = map[string]bool{"TypeMeta": true, "Name": true, "Namespace": true, "AddressType": true, "Addresses": true, "Port": true}

// whole are the fields that go together or not at all: the one without the other is another cluster IP.
var whole = map[string]bool{"ClusterIPs": true, "IPFamilies": true}
