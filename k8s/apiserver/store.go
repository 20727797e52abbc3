package apiserver

import (
	"hash/maphash"

	"k8s.io/client-go/tools/cache"

	"github.com/nkp-proxy/nkp/k8s"
)

// store knows which objects of a kind the API server has, and what they were like. It is where a reflector stores what it
// lists and watches, and passes on what differs: to the collector. It keeps fingerprints, not objects: those are the
// model's, and at 10,000 Services they would be most of what the source holds.
//
// The reflector alone calls it, from one goroutine.
type store struct {
	to      *collector
	first   func(objects int) // told of the first list
	listed  chan struct{}     // closed after it
	objects map[k8s.Ref]uint64
	buf     []byte // of fingerprint
}

func newStore(to *collector, first func(objects int)) *store {
	return &store{to: to, first: first, listed: make(chan struct{}), objects: map[k8s.Ref]uint64{}}
}

var _ cache.ReflectorStore = (*store)(nil)

// Replace is part of cache.ReflectorStore. It takes a whole list, of objects that have been trimmed.
func (s *store) Replace(list []any, _ string) error {
	changes := make([]k8s.Change, 0, len(list))
	gone := s.objects
	s.objects = make(map[k8s.Ref]uint64, len(list))
	for _, o := range list {
		object, ref, ok := apiObject(o)
		if !ok {
			continue
		}
		print, known := s.fingerprint(object), false
		if before, had := gone[ref]; had {
			known = before == print
			delete(gone, ref)
		}
		s.objects[ref] = print
		if !known {
			changes = append(changes, k8s.Change{Op: k8s.Upsert, Ref: ref, Object: object})
		}
	}
	for ref := range gone {
		changes = append(changes, k8s.Change{Op: k8s.Delete, Ref: ref})
	}
	s.to.add(changes...)
	select {
	case <-s.listed:
	default:
		s.first(len(s.objects))
		close(s.listed)
	}
	return nil
}

// Add is part of cache.ReflectorStore.
func (s *store) Add(o any) error { return s.Update(o) }

// Update is part of cache.ReflectorStore. A change of nothing but trimmed fields is none.
func (s *store) Update(o any) error {
	o, _ = trim(o)
	object, ref, ok := apiObject(o)
	if !ok {
		return nil
	}
	print := s.fingerprint(object)
	if before, had := s.objects[ref]; had && before == print {
		return nil
	}
	s.objects[ref] = print
	s.to.add(k8s.Change{Op: k8s.Upsert, Ref: ref, Object: object})
	return nil
}

// Delete is part of cache.ReflectorStore.
func (s *store) Delete(o any) error {
	if _, ref, ok := apiObject(o); ok {
		delete(s.objects, ref)
		s.to.add(k8s.Change{Op: k8s.Delete, Ref: ref})
	}
	return nil
}

// Resync is part of cache.ReflectorStore.
func (s *store) Resync() error { return nil }

func apiObject(o any) (object k8s.Object, ref k8s.Ref, ok bool) {
	if object, ok = o.(k8s.Object); ok {
		ref, ok = k8s.RefOf(object)
	}
	return object, ref, ok
}

// fingerprintSeed makes it impossible to prepare objects that differ and look alike.
var fingerprintSeed = maphash.MakeSeed()

// fingerprint is a hash of all that there is in a trimmed object but its version. That a change is overlooked has a chance
// of 2⁻⁶⁴.
func (s *store) fingerprint(o k8s.Object) uint64 {
	version := o.GetResourceVersion()
	o.SetResourceVersion("")
	defer o.SetResourceVersion(version)
	m := o.(interface { // as generated for all of Kubernetes' own types; maps are sorted
		Size() int
		MarshalToSizedBuffer([]byte) (int, error)
	})
	n := m.Size()
	if n > len(s.buf) {
		s.buf = make([]byte, 2*n)
	}
	if _, err := m.MarshalToSizedBuffer(s.buf[:n]); err != nil {
		return maphash.String(fingerprintSeed, version) // which is another one after each change
	}
	return maphash.Bytes(fingerprintSeed, s.buf[:n])
}
