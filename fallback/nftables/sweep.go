//go:build linux

package nftables

import (
	"errors"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// sweep compares the installed table with what nkp has installed. It does so in portions, between which the
// worker commits changes, so that no Service waits until ten thousand others are read; and it keeps a hash of
// each element instead of the element.
//
// The kernel's listing of a set misses elements, or has them twice, while others come and go. What the
// listing did not show, and what it should not have shown, is therefore looked up one by one before it counts
// as a difference.
type sweep struct {
	w    *worker
	conn *netlink.Conn // its own, because a listing goes on while changes are committed
	took time.Duration // of all portions so far
	// portion does the next portion of the work. drift is a difference; "": none so far.
	portion func() (done bool, drift string, err error)

	seed maphash.Seed
	// by hash: elements that nkp has installed since the sweep began -> whether the listing has them
	listed map[uint64]bool
	absent int // elements that it does not have (yet)

	names   []k8s.PortName // the Service ports that are left in this pass
	set     rules.SetID    // whose elements are listed
	begun   bool           // its listing has
	foreign rules.Elements // listed, and not known; maxForeign at most
}

// maxForeign bounds the unknown elements that are kept: one is enough to repair everything.
const maxForeign = 1000

// portionSize is how many elements a portion compiles; to look one up counts as lookUpCost. A portion takes
// about a millisecond.
const (
	portionSize = 1000
	lookUpCost  = 10
)

// newSweep begins a sweep.
func newSweep(w *worker) (*sweep, error) {
	conn, err := netlink.Open()
	if err != nil {
		return nil, err
	}
	s := &sweep{
		w:       w,
		conn:    conn,
		seed:    maphash.MakeSeed(),
		listed:  map[uint64]bool{},
		foreign: rules.Elements{},
	}
	s.portion = s.compareChains
	return s, nil
}

// hash identifies an element with its value.
func (s *sweep) hash(ref rules.Ref, v rules.Value) uint64 {
	return maphash.Comparable(s.seed, struct {
		rules.Ref
		rules.Value
	}{ref, v})
}

// add notes a Service port that was installed while the sweep was under way: the listing may be past its
// elements. s may be nil.
func (s *sweep) add(p *rules.Service) {
	if s == nil {
		return
	}
	for ref, v := range elementsOf(p) {
		if h := s.hash(ref, v); !s.isInstalled(h) {
			s.listed[h] = true
		}
	}
}

func (s *sweep) isInstalled(h uint64) bool { _, ok := s.listed[h]; return ok }

// elementsOf yields the elements of a Service port.
func elementsOf(p *rules.Service) iter.Seq2[rules.Ref, rules.Value] {
	return func(yield func(rules.Ref, rules.Value) bool) {
		for ref, v := range p.Elements {
			if !yield(ref, v) {
				return
			}
		}
		for _, ref := range p.Shared {
			if !yield(ref, rules.Value{}) {
				return
			}
		}
	}
}

// compareChains compares everything but elements: chains, and the properties of sets. No change comes
// between.
func (s *sweep) compareChains() (done bool, drift string, err error) {
	t, err := s.conn.ReadChains(s.w.Family)
	if err != nil {
		return false, "", err
	}
	if lines := compareTable(t, s.w.have.chains(s.w.compiler)); len(lines) > 0 {
		return false, lines[0], nil
	}
	for _, ref := range s.w.compiler.Fixed().Elements {
		s.expect(ref, rules.Value{})
	}
	s.names = slices.Collect(maps.Keys(s.w.have.ports))
	s.portion = s.compile
	return false, "", nil
}

// expect notes an element that the listing must have.
func (s *sweep) expect(ref rules.Ref, v rules.Value) {
	if h := s.hash(ref, v); !s.isInstalled(h) {
		s.listed[h] = false
		s.absent++
	}
}

// compile notes the elements of further Service ports.
func (s *sweep) compile() (done bool, drift string, err error) {
	for n := 0; n < portionSize && len(s.names) > 0; s.names = s.names[1:] {
		p := s.w.have.ports[s.names[0]]
		service := p.compile()
		for ref, v := range elementsOf(&service) {
			s.expect(ref, v)
			n++
		}
	}
	if len(s.names) == 0 {
		s.portion = s.list
	}
	return false, "", nil
}

// list reads a part of a set.
func (s *sweep) list() (done bool, drift string, err error) {
	if !s.begun {
		s.begun = true
		err = s.conn.ListElements(s.w.Family, s.set)
	}
	last := false
	if err == nil {
		last, err = s.conn.NextElements(s.set, s.noteListed)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, "+ set " + rules.Sets[s.set].Name, nil
	case err != nil || !last:
		return false, "", err
	}
	if s.set++; int(s.set) == len(s.w.compiler.TableSets()) {
		s.names = slices.Collect(maps.Keys(s.w.have.ports))
		s.portion = s.lookUpForeign
	}
	s.begun = false
	return false, "", nil
}

// noteListed records an element that the listing has.
func (s *sweep) noteListed(ref rules.Ref, v rules.Value) {
	h := s.hash(ref, v)
	seen, known := s.listed[h]
	switch {
	case !known && len(s.foreign) < maxForeign:
		s.foreign[ref] = v
	case known && !seen:
		s.listed[h] = true
		s.absent--
	}
}

// lookUpForeign looks up elements that were listed and are not known. nkp may have deleted them after the
// kernel listed them. Those of a Service port that is refused stay, and are its own.
func (s *sweep) lookUpForeign() (done bool, drift string, err error) {
	n := 0
	for ref, v := range s.foreign {
		if n += lookUpCost; n > portionSize {
			return false, "", nil
		}
		delete(s.foreign, ref)
		if s.w.Refused.Len() > 0 || s.isInstalled(s.hash(ref, v)) {
			continue
		}
		if have, ok, err := s.conn.Element(s.w.Family, ref); err != nil || ok && have.Value == v {
			return false, s.line("-", ref, v), err
		}
	}
	s.portion = s.lookUpAbsent
	return false, "", nil
}

// lookUpAbsent looks up elements that were not listed, in further Service ports, and last those that belong
// to none.
func (s *sweep) lookUpAbsent() (done bool, drift string, err error) {
	if s.absent == 0 {
		return true, "", nil
	}

	for n := 0; n < portionSize && len(s.names) > 0; s.names = s.names[1:] {
		p := s.w.have.ports[s.names[0]]
		service := p.compile()
		for ref, v := range elementsOf(&service) {
			n++
			if s.listed[s.hash(ref, v)] {
				continue
			}
			n += lookUpCost
			if drift, err = s.lookUp(ref, v); drift != "" || err != nil {
				return false, drift, err
			}
		}
	}
	if len(s.names) > 0 {
		return false, "", nil
	}

	for _, ref := range s.w.compiler.Fixed().Elements {
		if drift, err = s.lookUp(ref, rules.Value{}); drift != "" || err != nil {
			return false, drift, err
		}
	}
	return true, "", nil
}

// lookUp looks up an element that must be there.
func (s *sweep) lookUp(ref rules.Ref, v rules.Value) (drift string, err error) {
	have, ok, err := s.conn.Element(s.w.Family, ref)
	if err != nil || ok && have.Value == v {
		return "", err
	}
	return s.line("+", ref, v), nil
}

// line describes a difference as compareElements does.
func (s *sweep) line(sign string, ref rules.Ref, v rules.Value) string {
	return sign + " " + rules.Sets[ref.Set].Name + " " + ref.Text(s.w.Family, v)
}
