//go:build linux

package netlink

import (
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// Batch collects changes of the table of one family. Make it with NewBatch. Elements are added to messages
// under a tag, by which the caller recognizes what the kernel refuses.
type Batch struct {
	family k8s.Family
	table  string
	m      message
	tags   []int // by message, in their order
	tag    int
	err    error // the first error
}

// NewBatch returns an empty Batch.
func NewBatch(f k8s.Family) *Batch {
	b := &Batch{family: f, table: rules.TableName, tag: NoTag}
	start := b.m.begin(batchBegin, 0, 0, unix.NFPROTO_UNSPEC, subsystem)
	b.m.end(start)
	b.tags = append(b.tags, NoTag)
	return b
}

// Clone returns a copy.
func (b *Batch) Clone() *Batch {
	c := *b
	c.m.b, c.tags = slices.Clone(b.m.b), slices.Clone(b.tags)
	return &c
}

// NoTag is the tag of changes that belong to no Service port.
const NoTag = -1

// Tag sets the tag of the changes that are added from now on.
func (b *Batch) Tag(tag int) { b.tag = tag }

// Empty reports whether there are no changes.
func (b *Batch) Empty() bool { return len(b.tags) == 1 }

// Len returns the number of bytes.
func (b *Batch) Len() int { return len(b.m.b) }

// Messages returns the number of changes.
func (b *Batch) Messages() int { return len(b.tags) - 1 }

// add adds a message; its sequence number is its index among the tags.
func (b *Batch) add(kind, flags uint16, fill func(m *message)) {
	start := b.m.begin(subsystem<<8|kind, flags, uint32(len(b.tags)), family(b.family), 0)
	fill(&b.m)
	b.m.end(start)
	b.tags = append(b.tags, b.tag)
}

// AddTable adds the table.
func (b *Batch) AddTable() {
	b.add(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, func(m *message) {
		m.text(unix.NFTA_TABLE_NAME, b.table)
	})
}

// DeleteTable deletes a table with all that is in it.
func (b *Batch) DeleteTable(name string) {
	b.add(unix.NFT_MSG_DELTABLE, 0, func(m *message) { m.text(unix.NFTA_TABLE_NAME, name) })
}

// AddChain adds a chain without its rules.
func (b *Batch) AddChain(c *rules.Chain) {
	b.add(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, func(m *message) {
		m.object(b.table, unix.NFTA_CHAIN_NAME, c.Name)
		if c.Hook.Type == "" {
			return
		}
		hook := m.nest(unix.NFTA_CHAIN_HOOK)
		m.number(unix.NFTA_HOOK_HOOKNUM, hookNumber(c.Hook.Hook))
		m.number(unix.NFTA_HOOK_PRIORITY, uint32(int32(c.Hook.Priority)))
		m.endNest(hook)
		m.number(unix.NFTA_CHAIN_POLICY, policyAccept)
		m.text(unix.NFTA_CHAIN_TYPE, c.Hook.Type)
	})
}

// policyAccept is NF_ACCEPT.
const policyAccept = 1

func hookNumber(hook string) uint32 {
	// The position is the kernel's number of the hook (NF_INET_*).
	return uint32(slices.Index([]string{"prerouting", "input", "forward", "output", "postrouting"}, hook))
}

// DeleteChain deletes a chain that has no rules and that nothing leads to.
func (b *Batch) DeleteChain(name string) { b.chain(unix.NFT_MSG_DELCHAIN, name) }

func (b *Batch) chain(kind uint16, name string) {
	b.add(kind, 0, func(m *message) {
		m.object(b.table, unix.NFTA_CHAIN_NAME, name)
	})
}

// FlushChain deletes all rules of a chain.
func (b *Batch) FlushChain(name string) {
	b.add(unix.NFT_MSG_DELRULE, 0, func(m *message) {
		m.object(b.table, unix.NFTA_RULE_CHAIN, name)
	})
}

// AddRules adds all rules of a chain to its end.
func (b *Batch) AddRules(c *rules.Chain) {
	for _, r := range c.Rules {
		expressions, err := encode(b.family, r)
		if err != nil && b.err == nil {
			b.err = err
		}
		b.add(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, func(m *message) {
			m.object(b.table, unix.NFTA_RULE_CHAIN, c.Name)
			list := m.nest(unix.NFTA_RULE_EXPRESSIONS)
			for _, e := range expressions {
				m.attr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e)
			}
			m.endNest(list)
		})
	}
}

// AddSet adds a set without elements.
func (b *Batch) AddSet(s *rules.Set) {
	b.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, func(m *message) {
		m.object(b.table, unix.NFTA_SET_NAME, s.Name)
		d := describe(b.family, s)
		m.number(unix.NFTA_SET_FLAGS, d.flags)
		m.number(unix.NFTA_SET_KEY_TYPE, d.keyType)
		m.number(unix.NFTA_SET_KEY_LEN, d.keyLen)
		if d.flags&unix.NFT_SET_MAP != 0 {
			m.number(unix.NFTA_SET_DATA_TYPE, d.dataType)
			m.number(unix.NFTA_SET_DATA_LEN, d.dataLen)
		}

		m.number(unix.NFTA_SET_ID, uint32(len(b.tags)))
		if s.Timeout > 0 {
			m.attr(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, d.timeout))
		}

		if s.Limit > 0 || s.Interval {
			desc := m.nest(unix.NFTA_SET_DESC)
			if s.Limit > 0 {
				m.number(unix.NFTA_SET_DESC_SIZE, d.size)
			}
			if s.Interval {
				fields := m.nest(setDescConcat)
				for _, t := range s.Key {
					field := m.nest(unix.NFTA_LIST_ELEM)
					m.number(setFieldLen, uint32(t.Size(b.family)))
					m.endNest(field)
				}
				m.endNest(fields)
			}
			m.endNest(desc)
		}

		m.attr(unix.NFTA_SET_USERDATA, userData(b.family, s))
		if s.Counters {
			expression := m.nest(setExpr)
			m.text(unix.NFTA_EXPR_NAME, "counter")
			m.endNest(m.nest(unix.NFTA_EXPR_DATA))
			m.endNest(expression)
		}
	})
}

// description is a set's properties as the kernel reports them.
type description struct {
	flags, keyType, keyLen, dataType, dataLen uint32
	timeout                                   uint64 // milliseconds
	size                                      uint32
	counters                                  bool
}

func describe(f k8s.Family, s *rules.Set) (d description) {
	d.keyType, d.keyLen = concatenated(f, s.Key)
	d.size, d.timeout, d.counters = uint32(s.Limit), uint64(s.Timeout)*1000, s.Counters
	switch {
	case s.Verdicts:
		d.flags |= unix.NFT_SET_MAP
		d.dataType, d.dataLen = setDataTypeVerdict, verdictSize
	case len(s.Data) > 0:
		d.flags |= unix.NFT_SET_MAP
		d.dataType, d.dataLen = concatenated(f, s.Data)
	}
	if s.Interval {
		d.flags |= unix.NFT_SET_INTERVAL | setConcat
	}
	if s.Timeout > 0 {
		d.flags |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	return d
}

// verdictSize is what the kernel reports as the size of a verdict: struct nft_verdict, 64 bits.
const verdictSize = 16

// DeleteSet deletes a set that no rule uses.
func (b *Batch) DeleteSet(name string) {
	b.add(unix.NFT_MSG_DELSET, 0, func(m *message) {
		m.object(b.table, unix.NFTA_SET_NAME, name)
	})
}

// Add adds elements, Delete deletes them.
func (b *Batch) Add(e rules.Elements) {
	b.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, e, true)
}
func (b *Batch) Delete(e rules.Elements) { b.elements(unix.NFT_MSG_DELSETELEM, 0, e, false) }

func (b *Batch) elements(kind, flags uint16, e rules.Elements, data bool) {
	var bySet [len(rules.Sets)][]rules.Ref
	for r := range e {
		bySet[r.Set] = append(bySet[r.Set], r)
	}
	for id, refs := range bySet {
		slices.SortFunc(refs, func(a, b rules.Ref) int { return strings.Compare(a.Key, b.Key) })
		for len(refs) > 0 {
			b.add(kind, flags, func(m *message) {
				m.object(b.table, unix.NFTA_SET_ELEM_LIST_SET, rules.Sets[id].Name)
				list := m.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
				for len(refs) > 0 && len(m.b)-list < maxElements {
					element(m, &rules.Sets[id], refs[0].Key, e[refs[0]], data)
					refs = refs[1:]
				}
				m.endNest(list)
			})
		}
	}
}

// Size bounds the bytes that elements take in a Batch.
func Size(e rules.Elements) (n int) {
	const headers, verdict = 40, 16 // of attributes, with padding
	for ref, v := range e {
		n += headers + len(ref.Key) + len(v.End) + len(v.Data)
		if v.Data != "" && rules.Sets[ref.Set].Verdicts {
			n += verdict
		}
	}
	return n
}

// DeleteClients deletes elements of a map of clients by their keys.
func (b *Batch) DeleteClients(set string, keys []string) {
	for chunk := range slices.Chunk(keys, 500) {
		b.add(unix.NFT_MSG_DELSETELEM, 0, func(m *message) {
			m.object(b.table, unix.NFTA_SET_ELEM_LIST_SET, set)
			list := m.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			for _, k := range chunk {
				element(m, &rules.Set{}, k, rules.Value{}, false)
			}
			m.endNest(list)
		})
	}
}

// element adds an element to a message.
func element(m *message, s *rules.Set, key string, v rules.Value, data bool) {
	item := m.nest(unix.NFTA_LIST_ELEM)
	value := func(kind uint16, b string) {
		k := m.nest(kind)
		m.attr(unix.NFTA_DATA_VALUE, []byte(b))
		m.endNest(k)
	}

	value(unix.NFTA_SET_ELEM_KEY, key)
	if v.End != "" {
		value(setElemKeyEnd, v.End)
	}

	switch {
	case !data || v.Data == "":
	case s.Verdicts:
		d, v2 := m.nest(unix.NFTA_SET_ELEM_DATA), 0
		v2 = m.nest(unix.NFTA_DATA_VERDICT)
		word, chain, _ := strings.Cut(v.Data, " ")
		code := verdictGoto
		if word == "jump" {
			code = verdictJump
		}
		m.number(unix.NFTA_VERDICT_CODE, code)
		m.text(unix.NFTA_VERDICT_CHAIN, chain)
		m.endNest(v2)
		m.endNest(d)
	default:
		value(unix.NFTA_SET_ELEM_DATA, v.Data)
	}

	m.endNest(item)
}

// userData returns a set's user data, from which nft knows how to print elements (libnftnl's udata.h).
func userData(f k8s.Family, s *rules.Set) (b []byte) {
	put := func(kind byte, data []byte) { b = append(append(b, kind, byte(len(data))), data...) }
	order := func(types []rules.Type) []byte {
		if len(types) == 1 {
			return u32(byteOrderBigEndian)
		}
		return u32(0)
	}
	put(udataKeyByteOrder, order(s.Key))
	isMap := s.Verdicts || len(s.Data) > 0
	if isMap {
		put(udataDataByteOrder, u32(0))
	}
	if slices.Contains(s.Key, rules.Number) {
		put(udataKeyTypeof, typeof(f, s.Key))
		put(udataDataTypeof, typeof(f, s.Data))
	}
	if isMap {
		put(udataInterval, u32(0))
	}
	return b
}

func u32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// typeof returns a concatenation of expressions as nft remembers it for typeof: nested records of kind,
// length and data.
func typeof(f k8s.Family, types []rules.Type) []byte {
	record := func(kind byte, data ...byte) []byte { return append([]byte{kind, byte(len(data))}, data...) }
	numbers := func(list ...uint32) (b []byte) {
		for i, n := range list {
			b = append(b, record(byte(i), u32(n)...)...)
		}
		return b
	}

	// The numbers are nft's own, of kinds of expressions, protocol headers and their fields
	// (include/expression.h, proto.h).
	const exprPayload, exprMeta, exprConcat, exprNumgen = 7, 9, 13, 23

	var parts []byte
	for i, t := range types {
		var kind uint32
		var data []byte
		switch t {
		case rules.Addr:
			kind, data = exprPayload, numbers(12, 12) // IPv4, destination
			if f == k8s.IPv6 {
				data = numbers(13, 9)
			}
		case rules.Proto:
			kind, data = exprMeta, numbers(unix.NFT_META_L4PROTO)
		case rules.Port:
			kind, data = exprPayload, numbers(11, 2) // transport header, destination port
		case rules.Number:
			kind, data = exprNumgen, numbers(unix.NFT_NG_RANDOM, 2, 0)
		}
		parts = append(parts,
			record(byte(i), slices.Concat(record(0, u32(kind)...), record(1, data...))...)...)
	}
	return slices.Concat(record(0, u32(exprConcat)...), record(1, parts...))
}
