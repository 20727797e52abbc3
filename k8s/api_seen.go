package k8s

import (
	"hash/maphash"

	"k8s.io/client-go/tools/cache"
)

// seen knows which objects of a kind the API server has, and what they were like. It is where a reflector stores what it
// lists and watches, and passes on what differs: to the collector. It keeps fingerprints, not objects: those are the
// model's, and at 10,000 Services they would be most of what the source holds.
//
// The reflector alone calls it, from one goroutine.
type seen struct {
	to      *collector
	first   func(objects int) // told of the first list
	listed  chan struct{}     // closed after it
	objects map[Ref]uint64
	buf     []byte // of fingerprint
}

func newSeen(to *collector, first func(objects int)) *seen {
	return &seen{to: to, first: first, listed: make(chan struct{}), objects: map[Ref]uint64{}}
}

var _ cache.ReflectorStore = (*seen)(nil)

// Replace is part of cache.ReflectorStore. It takes a whole list, of objects that have been trimmed.
func (s *seen) Replace(list []any, _ string) error {
	changes := make([]Change, 0, len(list))
	gone := s.objects
	s.objects = make(map[Ref]uint64, len(list))
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
			changes = append(changes, Change{Op: Upsert, Ref: ref, Object: object})
		}
	}
	for ref := range gone {
		changes = append(changes, Change{Op: Delete, Ref: ref})
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
func (s *seen) Add(o any) error { return s.Update(o) }

// Update is part of cache.ReflectorStore. What changed only where nobody looks is no change.
func (s *seen) Update(o any) error {
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
	s.to.add(Change{Op: Upsert, Ref: ref, Object: object})
	return nil
}

// Delete is part of cache.ReflectorStore.
func (s *seen) Delete(o any) error {
	if _, ref, ok := apiObject(o); ok {
		delete(s.objects, ref)
		s.to.add(Change{Op: Delete, Ref: ref})
	}
	return nil
}

// Resync is part of cache.ReflectorStore.
func (s *seen) Resync() error { return nil }

func apiObject(o any) (object Object, ref Ref, ok bool) {
	if object, ok = o.(Object); ok {
		ref, ok = RefOf(object)
	}
	return object, ref, ok
}

// fingerprintSeed makes it impossible to prepare objects that differ and look alike.
var fingerprintSeed = maphash.MakeSeed()

// fingerprint is a hash of all that there is in a trimmed object but its version. That a change is overlooked has a chance
// of 2⁻⁶⁴.
func (s *seen) fingerprint(o Object) uint64 {
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
