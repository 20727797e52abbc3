//go:build linux

package netlink

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// ruleset reads the tables of all owners, each chain, set and element when a packet comes to it. After an
// error, everything is empty.
type ruleset struct {
	ctx      context.Context
	conn     *Conn
	bases    []baseChain // by priority
	rules    map[object][][]expression
	sets     map[object]set
	elements map[elementID][]byte // the attributes of an element; nil: there is none
	err      error                // the first
}

// table identifies a table: its family (ip, ip6 or inet) and name. object is a chain or set in it.
type (
	table struct {
		family byte
		name   string
	}
	object struct {
		table
		name string
	}
	elementID struct {
		object
		key string
	}
)

// baseChain is a chain that the kernel calls.
type baseChain struct {
	object
	hook     uint32
	priority int32
	nat      bool
	drops    bool // its policy
}

// set is what evaluating a lookup takes.
type set struct {
	keyLen   int
	verdicts bool
	expires  bool // elements do, by themselves
}

// expression is a part of a rule. Its attributes are the kernel's.
type expression struct {
	name string
	data []byte
}

func (e expression) equal(o expression) bool    { return e.name == o.name && bytes.Equal(e.data, o.data) }
func (e *expression) number(kind uint16) uint32 { return number(attribute(e.data, kind)) }
func (e *expression) has(kind uint16) bool      { return attribute(e.data, kind) != nil }
func (e *expression) value(kind uint16) []byte  { return dataValue(e.data, kind) }

// newRuleset returns a ruleset with the base chains of a family.
func newRuleset(ctx context.Context, c *Conn, f k8s.Family) *ruleset {
	s := &ruleset{
		ctx:      ctx,
		conn:     c,
		rules:    map[object][][]expression{},
		sets:     map[object]set{},
		elements: map[elementID][]byte{},
	}
	for _, fam := range []byte{unix.NFPROTO_INET, family(f)} {
		dormant := map[string]bool{}
		err := c.objects(unix.NFT_MSG_GETTABLE, fam, func(*message) {}, func() { clear(dormant) },
			func(b []byte, note func(...[]byte)) {
				flags := number(attribute(b, unix.NFTA_TABLE_FLAGS))
				dormant[text(attribute(b, unix.NFTA_TABLE_NAME))] = flags&unix.NFT_TABLE_F_DORMANT != 0
				note(attribute(b, unix.NFTA_TABLE_NAME), attribute(b, unix.NFTA_TABLE_FLAGS))
			})

		var list []baseChain
		if err == nil {
			err = c.objects(unix.NFT_MSG_GETCHAIN, fam, func(*message) {}, func() { list = nil },
				func(b []byte, note func(...[]byte)) {
					note(attribute(b, unix.NFTA_CHAIN_HANDLE))
					hook := attribute(b, unix.NFTA_CHAIN_HOOK)
					t := table{fam, text(attribute(b, unix.NFTA_CHAIN_TABLE))}
					if hook == nil || dormant[t.name] {
						return
					}
					list = append(list, baseChain{
						object:   object{t, text(attribute(b, unix.NFTA_CHAIN_NAME))},
						hook:     number(attribute(hook, unix.NFTA_HOOK_HOOKNUM)),
						priority: int32(number(attribute(hook, unix.NFTA_HOOK_PRIORITY))),
						nat:      text(attribute(b, unix.NFTA_CHAIN_TYPE)) == "nat",
						drops:    number(attribute(b, unix.NFTA_CHAIN_POLICY)) != policyAccept,
					})
				})
		}

		s.bases = append(s.bases, list...)
		s.fail(err)
	}

	slices.SortStableFunc(s.bases, func(a, b baseChain) int { return cmp.Compare(a.priority, b.priority) })
	return s
}

// fail records the first error.
func (s *ruleset) fail(err error) {
	if s.err == nil {
		s.err = err
	}
	if s.err == nil {
		s.err = s.ctx.Err()
	}
}

// chain returns the rules of a chain.
func (s *ruleset) chain(o object) [][]expression {
	rules, ok := s.rules[o]
	if ok || s.err != nil {
		return rules
	}
	s.fail(s.conn.objects(unix.NFT_MSG_GETRULE, o.family, func(m *message) {
		m.object(o.table.name, unix.NFTA_RULE_CHAIN, o.name)
	}, func() { rules = nil }, func(b []byte, note func(...[]byte)) {
		note(attribute(b, unix.NFTA_RULE_HANDLE))
		var list []expression
		for _, e := range attributes(bytes.Clone(attribute(b, unix.NFTA_RULE_EXPRESSIONS))) {
			list = append(list,
				expression{text(attribute(e, unix.NFTA_EXPR_NAME)), attribute(e, unix.NFTA_EXPR_DATA)})
		}
		rules = append(rules, list)
	}))
	s.rules[o] = rules
	return rules
}

// set returns what a set is like.
func (s *ruleset) set(o object) set {
	found, ok := s.sets[o]
	if ok || s.err != nil {
		return found
	}
	s.fail(s.conn.request(unix.NFT_MSG_GETSET, 0, o.family, func(m *message) {
		m.object(o.table.name, unix.NFTA_SET_NAME, o.name)
	}, func(h header) bool {
		b := h.data[genericSize:]
		found = set{
			keyLen:   int(number(attribute(b, unix.NFTA_SET_KEY_LEN))),
			verdicts: number(attribute(b, unix.NFTA_SET_DATA_TYPE)) == setDataTypeVerdict,
			expires:  number(attribute(b, unix.NFTA_SET_FLAGS))&unix.NFT_SET_TIMEOUT != 0,
		}
		return true
	}))
	s.sets[o] = found
	return found
}

// element returns the element that a key matches, also in a range or as the default (*); nil if there is
// none.
func (s *ruleset) element(o object, key string) []byte {
	id := elementID{o, key}
	found, ok := s.elements[id]
	if ok || s.err != nil {
		return found
	}
	for _, fill := range []func(*message){
		func(m *message) { elementKey(m, []byte(key)) },
		func(m *message) { m.number(unix.NFTA_SET_ELEM_FLAGS, setElemCatchall) },
	} {
		var err error
		if found, err = s.conn.element(o, fill); err != nil || found != nil {
			s.fail(err)
			break
		}
	}
	s.elements[id] = found
	return found
}

// Element returns an element of nkp's table; ok is false if it is not installed.
func (c *Conn) Element(f k8s.Family, r rules.Ref) (n Count, ok bool, err error) {
	s := &rules.Sets[r.Set]
	b, err := c.element(object{table{family(f), rules.TableName}, s.Name}, func(m *message) {
		elementKey(m, []byte(r.Key))
	})
	found, v := elementOf(r.Set, b)
	if found != r { // a range that begins elsewhere matches, too
		return n, false, wrap("elements of "+s.Name, err)
	}
	n, _ = countOf(b)
	n.Value = v
	return n, true, nil
}

// element returns the attributes of one element; nil if there is none. fill adds what identifies it.
func (c *Conn) element(o object, fill func(*message)) (found []byte, err error) {
	err = c.request(unix.NFT_MSG_GETSETELEM, 0, o.family, func(m *message) {
		m.object(o.table.name, unix.NFTA_SET_ELEM_LIST_SET, o.name)
		list := m.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		item := m.nest(unix.NFTA_LIST_ELEM)
		fill(m)
		m.endNest(item)
		m.endNest(list)
	}, func(h header) bool {
		found = bytes.Clone(attribute(attribute(h.data[genericSize:], unix.NFTA_SET_ELEM_LIST_ELEMENTS),
			unix.NFTA_LIST_ELEM))
		return true
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return found, err
}

func elementKey(m *message, key []byte) {
	k := m.nest(unix.NFTA_SET_ELEM_KEY)
	m.attr(unix.NFTA_DATA_VALUE, key)
	m.endNest(k)
}
