package apiserver

import (
	"hash/maphash"
	"slices"

	"k8s.io/client-go/tools/cache"

	"github.com/nkp-proxy/nkp/k8s"
)

// store tracks the objects of one kind at the API server. A reflector stores in it the objects that it lists
// and watches, and store passes the differences to the relay. It keeps fingerprints, not objects: the model
// holds the objects, and at 10,000 Services they would be most of the source's memory.
//
// The reflector alone calls it, from one goroutine.
type store struct {
	of      *resource
	to      *relay
	first   func(objects int) // called after the first list
	listed  chan struct{}     // closed after the first list
	objects map[k8s.Ref]fingerprint
	kept    kept   // of objects
	buf     []byte // of fingerprintOf
}

// fingerprint is what store keeps of an object.
type fingerprint struct {
	hash uint64
	size int64
}

func newStore(of *resource, to *relay, first func(objects int)) *store {
	return &store{
		of:      of,
		to:      to,
		first:   first,
		listed:  make(chan struct{}),
		objects: map[k8s.Ref]fingerprint{},
	}
}

var _ cache.ReflectorStore = (*store)(nil)

// Replace is part of cache.ReflectorStore. It takes a complete list of trimmed objects, which fits into the
// budget.
func (s *store) Replace(list []any, _ string) error {
	changes := make([]k8s.Change, 0, len(list))
	gone := s.objects
	s.objects, s.kept = make(map[k8s.Ref]fingerprint, len(list)), kept{left: s.of.kept.left}

	for _, o := range list {
		object, ref, ok := apiObject(o)
		if !ok {
			continue
		}
		print, known := s.fingerprintOf(object), false
		if before, had := gone[ref]; had {
			known = before == print
			delete(gone, ref)
		}
		s.objects[ref] = print
		s.kept.add(ref.Namespace, print.size)
		if !known {
			changes = append(changes, k8s.Change{Op: k8s.Upsert, Ref: ref, Object: object})
		} else if s.of.versioned() {
			changes = append(changes, k8s.Change{Op: k8s.Renew, Ref: ref, Object: object})
		}
	}

	for ref := range gone {
		changes = append(changes, k8s.Change{Op: k8s.Delete, Ref: ref})
	}
	s.apply(changes...)
	s.to.health.setLeftOut(s.of.kind, s.kept.left)

	select {
	case <-s.listed:
	default:
		s.first(len(s.objects))
		close(s.listed)
	}
	return nil
}

// apply passes on changes, and whether this node's Node is among the objects.
func (s *store) apply(changes ...k8s.Change) {
	s.to.apply(changes...)
	if s.of.kind == k8s.KindNode {
		s.to.health.setNode(len(s.objects) > 0)
	}
}

// Add is part of cache.ReflectorStore.
func (s *store) Add(o any) error { return s.Update(o) }

// Update is part of cache.ReflectorStore. Of changes of trimmed fields it passes on the resourceVersion
// alone.
func (s *store) Update(o any) error {
	trim(o)
	object, ref, ok := apiObject(o)
	if !ok {
		return nil
	}
	print := s.fingerprintOf(object)
	before, had := s.objects[ref]
	if had && before == print {
		if s.of.versioned() {
			s.apply(k8s.Change{Op: k8s.Renew, Ref: ref, Object: object})
		}
		return nil
	}
	s.objects[ref] = print
	s.kept.add(ref.Namespace, print.size-before.size)
	s.apply(k8s.Change{Op: k8s.Upsert, Ref: ref, Object: object})
	if s.kept.over() {
		s.shrink()
	}
	return nil
}

// shrink leaves out objects of the namespace that has most, until what is kept is within its bound again. A
// list, at the latest after a restart, finds those that fit by then.
func (s *store) shrink() {
	for s.kept.total > reducedTo() {
		largest := s.kept.largest()
		var refs []k8s.Ref
		for ref := range s.objects {
			if ref.Namespace == largest {
				refs = append(refs, ref)
			}
		}
		slices.SortFunc(refs, k8s.Ref.Compare)
		for i := len(refs) - 1; i >= 0 && s.kept.total > reducedTo(); i-- {
			s.kept.left.add(refs[i].String())
			s.forget(refs[i])
		}
	}
	s.to.health.setLeftOut(s.of.kind, s.kept.left)
}

func (s *store) forget(ref k8s.Ref) {
	s.kept.add(ref.Namespace, -s.objects[ref].size)
	delete(s.objects, ref)
	s.apply(k8s.Change{Op: k8s.Delete, Ref: ref})
}

// Delete is part of cache.ReflectorStore.
func (s *store) Delete(o any) error {
	if _, ref, ok := apiObject(o); ok {
		s.forget(ref)
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

// fingerprintSeed is random, so that an attacker cannot craft different objects with equal fingerprints.
var fingerprintSeed = maphash.MakeSeed()

// fingerprintOf returns the size of a trimmed object and a hash of it without its resource version. The
// probability of missing a change is 2⁻⁶⁴.
func (s *store) fingerprintOf(o k8s.Object) fingerprint {
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
		// Each change has a new version.
		return fingerprint{maphash.String(fingerprintSeed, version), sizeOf(o)}
	}
	return fingerprint{maphash.Bytes(fingerprintSeed, s.buf[:n]), sizeOf(o)}
}
