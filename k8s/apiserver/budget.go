package apiserver

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nkp-proxy/nkp/k8s"
)

// What an API server sends of one kind is bounded by what is kept of it. Of too much, objects of the
// namespace that has most are left out, and named: a user who may write in one namespace takes nothing from
// the others.

// maxKept bounds what is kept of one kind, trimmed, in bytes of memory: about a million endpoints.
var maxKept int64 = 256 << 20

// maxObject bounds one object as the server sends it, in bytes. It can store a tenth of it (etcd's limit is
// 1.5 MiB).
var maxObject int64 = 16 << 20

// kept adds up what is kept of one kind.
type kept struct {
	total int64
	of    map[string]int64 // by namespace
	left  leftOut
}

// leftOut are objects that were left out.
type leftOut struct {
	number int
	some   []string // a few of them
}

const maxNamed = 5

func (l *leftOut) add(what string) {
	l.number++
	if len(l.some) < maxNamed {
		l.some = append(l.some, what)
	}
}

// warning returns the warning about objects that are left out, in one line.
func (l *leftOut) warning(kind k8s.Kind) string {
	return fmt.Sprintf("%d objects of kind %s are left out, because the API server has more of them, "+
		"or larger ones, than nkp keeps (%d MiB in all, %d MiB an object): %s",
		l.number, kind, maxKept>>20, maxObject>>20, strings.Join(l.some, ", "))
}

// add counts an object of a namespace; a negative size takes one off.
func (k *kept) add(namespace string, size int64) {
	if k.of == nil {
		k.of = map[string]int64{}
	}
	k.total += size
	if k.of[namespace] += size; k.of[namespace] == 0 {
		delete(k.of, namespace)
	}
}

// take counts a trimmed object.
func (k *kept) take(o any) {
	ref, _ := refOf(o)
	k.add(ref.Namespace, sizeOf(o))
}

func (k *kept) over() bool { return k.total > maxKept }

// largest returns the namespace that has most.
func (k *kept) largest() (namespace string) {
	for n, size := range k.of {
		if most := k.of[namespace]; size > most || size == most && n > namespace {
			namespace = n
		}
	}
	return namespace
}

// reducedTo is how much is kept after some was left out: a tenth is free then, so that this is rare.
func reducedTo() int64 { return maxKept - maxKept/10 }

// shrink leaves out objects of a list, or of a page of it, the last ones first: those of the largest
// namespace, and if that is not enough, as it has none in this page, others.
func (k *kept) shrink(list []runtime.Object) []runtime.Object {
	leaveOut := func(until int64, of func(k8s.Ref) bool) {
		for i := len(list) - 1; i >= 0 && k.total > until; i-- {
			if ref, ok := refOf(list[i]); ok && of(ref) {
				k.add(ref.Namespace, -sizeOf(list[i]))
				k.left.add(ref.String())
				list[i] = nil
			}
		}
		list = slices.DeleteFunc(list, func(o runtime.Object) bool { return o == nil })
	}
	for before := -1; k.total > reducedTo() && len(list) != before; {
		before = len(list)
		largest := k.largest()
		leaveOut(reducedTo(), func(ref k8s.Ref) bool { return ref.Namespace == largest })
	}
	leaveOut(maxKept, func(k8s.Ref) bool { return true })
	return list
}

// sizeOf returns about how many bytes of memory a trimmed object takes.
func sizeOf(o any) int64 {
	size := int64(o.(interface{ Size() int }).Size())
	switch o := o.(type) {
	case *v1.Service:
		size += sizeOfA[v1.Service]() + int64(len(o.Spec.Ports))*sizeOfA[v1.ServicePort]()
	case *discoveryv1.EndpointSlice:
		const strings = 48 + 16 // the slice of addresses, and headers: the address's, the pod's name's
		size += sizeOfA[discoveryv1.EndpointSlice]() +
			int64(len(o.Endpoints))*(sizeOfA[discoveryv1.Endpoint]()+strings)
	default:
		size += 1000
	}
	return size
}

func sizeOfA[T any]() int64 { return int64(reflect.TypeFor[T]().Size()) }

func refOf(o any) (k8s.Ref, bool) {
	_, ref, ok := apiObject(o)
	return ref, ok
}
