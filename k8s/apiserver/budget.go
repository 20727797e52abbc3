package apiserver

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nkp-proxy/nkp/k8s"
)

// What an API server sends of one kind is bounded by what is kept of it. Of too much, objects of the namespace that has most are
// left out, and named: a user who may write in one namespace takes nothing from the others.

// maxKept bounds what is kept of one kind, trimmed, in bytes. The largest clusters have a tenth of it.
var maxKept int64 = 256 << 20

// maxObject bounds one object as the server sends it, in bytes. It can store a tenth of it (etcd's limit is 1.5 MiB).
var maxObject int64 = 16 << 20

// objectOverhead is about what an object takes beside its content.
const objectOverhead = 512

// kept adds up what is kept of one kind.
type kept struct {
	total int64
	of    map[string]int64 // by namespace
	left  leftOut
}

// leftOut are objects that were left out.
type leftOut struct {
	number int
	some   map[string]bool // names, a few of them
}

const someLeftOut = 5

func (l *leftOut) add(what string) {
	l.number++
	if l.some == nil {
		l.some = map[string]bool{}
	}
	if len(l.some) < someLeftOut {
		l.some[what] = true
	}
}

// warning returns what is left out, in one line; "": nothing.
func (l *leftOut) warning(kind k8s.Kind) string {
	if l.number == 0 {
		return ""
	}
	return fmt.Sprintf("%d objects of kind %s are left out, because the API server has more of them, or larger ones, than nkp keeps (%d MiB in all, %d MiB an object): %s",
		l.number, kind, maxKept>>20, maxObject>>20, strings.Join(slices.Sorted(maps.Keys(l.some)), ", "))
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

// shrink leaves out objects of a list, the last ones of the largest namespace each time, until a tenth is free.
func (k *kept) shrink(list []runtime.Object) []runtime.Object {
	for k.total > maxKept-maxKept/10 {
		largest, before := k.largest(), len(list)
		for i := len(list) - 1; i >= 0 && k.total > maxKept-maxKept/10; i-- {
			if ref, ok := refOf(list[i]); ok && ref.Namespace == largest {
				k.add(largest, -sizeOf(list[i]))
				k.left.add(ref.String())
				list[i] = nil
			}
		}
		if list = slices.DeleteFunc(list, func(o runtime.Object) bool { return o == nil }); len(list) == before {
			return list
		}
	}
	return list
}

// sizeOf returns about how many bytes a trimmed object takes.
func sizeOf(o any) int64 {
	return objectOverhead + int64(o.(interface{ Size() int }).Size())
}

func refOf(o any) (k8s.Ref, bool) {
	_, ref, ok := apiObject(o)
	return ref, ok
}
