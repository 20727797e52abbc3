//go:build linux

package netlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// ErrInterrupted is returned when other programs changed the tables during each of several dumps, and no two
// dumps were equal.
var ErrInterrupted = errors.New("nf_tables: other programs keep changing the tables while they are read")

// readTries bounds the dumps of one kind of objects. Each change of any table in the network namespace
// interrupts a dump.
const readTries = 20

// objects dumps the objects of a kind. It calls f for each message, with what follows the netfilter header. f
// notes what identifies each object. If a dump was interrupted, objects calls retry and dumps again, until a
// dump was not, or two in a row have the same objects. The kernel does not mark interrupted dumps of elements
// (NLM_F_DUMP_INTR), so that the generation of the tables is compared.
func (c *Conn) objects(
	kind uint16, fam byte,
	fill func(*message), retry func(), f func(b []byte, note func(id ...[]byte)),
) error {
	var sum, last uint64
	var h maphash.Hash
	note := func(id ...[]byte) {
		h.Reset()
		for _, b := range id {
			_ = h.WriteByte(byte(len(b)))
			_, _ = h.Write(b)
		}
		sum += h.Sum64()
	}

	for try := range readTries {
		if try > 0 {
			retry()
			last, sum = sum, 0
		}

		before, err := c.generation()
		if err == nil {
			err = c.dump(kind, fam, fill, func(b []byte) { f(b, note) })
		}
		if err != nil {
			return err
		}

		after, err := c.generation()
		if err != nil || after == before || try > 0 && sum == last {
			return err
		}
	}
	return ErrInterrupted
}

// generation returns a number that every change of a table in the network namespace increases.
func (c *Conn) generation() (n uint32, err error) {
	err = c.request(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, func(*message) {}, func(h header) bool {
		n = number(attribute(h.data[genericSize:], unix.NFTA_GEN_ID))
		return true
	})
	return n, err
}

// dump calls f for each message of a dump, with what follows the netfilter header.
func (c *Conn) dump(kind uint16, fam byte, fill func(*message), f func(b []byte)) error {
	return c.request(kind, unix.NLM_F_DUMP, fam, fill, func(h header) bool {
		if h.kind != unix.NLMSG_DONE {
			f(h.data[genericSize:])
		}
		return h.kind == unix.NLMSG_DONE
	})
}

// request sends a request, and calls f for each answer until it returns true.
func (c *Conn) request(kind, flags uint16, fam byte, fill func(*message), f func(header) bool) error {
	err := c.ask(kind, flags, fam, fill)
	for done := false; !done && err == nil; {
		done, err = c.answered(f)
	}
	return err
}

// ask sends a request.
func (c *Conn) ask(kind, flags uint16, fam byte, fill func(*message)) error {
	var m message
	c.seq++
	start := m.begin(subsystem<<8|kind, flags, c.seq, fam, 0)
	fill(&m)
	m.end(start)
	c.drain()
	return c.send(m.b)
}

// answered waits for a part of the answers to the last request, and calls f for each of them until it returns
// true.
func (c *Conn) answered(f func(header) bool) (done bool, err error) {
	n, err := c.receive(0)
	if errors.Is(err, unix.EAGAIN) {
		return false, ErrNoAnswer
	} else if err != nil {
		return false, err
	}
	for h, err := range messages(c.buf[:n]) {
		switch {
		case err != nil:
			return false, err
		case h.seq != c.seq:
			continue
		case len(h.data) < genericSize: // each kind of answer has as much at least
			return false, errIncomplete
		}
		code := int32(binary.NativeEndian.Uint32(h.data))
		if (h.kind == unix.NLMSG_DONE || h.kind == unix.NLMSG_ERROR) && code < 0 {
			return false, unix.Errno(-code)
		}
		if f(h) {
			return true, nil
		}
	}
	return false, nil
}

// Table is what is installed of nkp's table of one family.
type Table struct {
	// Dormant reports whether the kernel calls none of its base chains.
	Dormant bool
	// HasFlowtable reports whether it has the flowtable, with or without devices.
	HasFlowtable bool

	family k8s.Family
	// Sets are the sets by name; Chains the chains by name, with the expressions of their rules.
	sets   map[string]description
	chains map[string]chain
	// Elements are those of the sets in rules.Sets.
	Elements rules.Elements
}

// chain is an installed chain.
type chain struct {
	hook, priority, policy uint32
	kind                   string // "": no base chain
	rules                  [][]byte
}

// HasTable reports whether there is a table of a name, and its flags.
func (c *Conn) HasTable(f k8s.Family, name string) (has bool, flags uint32, err error) {
	err = c.objects(unix.NFT_MSG_GETTABLE, family(f), func(*message) {}, func() { has = false },
		func(b []byte, note func(...[]byte)) {
			if text(attribute(b, unix.NFTA_TABLE_NAME)) == name {
				has, flags = true, number(attribute(b, unix.NFTA_TABLE_FLAGS))
				note(attribute(b, unix.NFTA_TABLE_FLAGS))
			}
		})
	return has, flags, wrap("tables", err)
}

// ReadChains returns the table without elements; nil if there is none.
func (c *Conn) ReadChains(f k8s.Family) (*Table, error) {
	inTable := func(m *message) { m.text(tableName, rules.TableName) }
	has, flags, err := c.HasTable(f, rules.TableName)
	if err != nil || !has {
		return nil, err
	}

	t := &Table{family: f, Dormant: flags&unix.NFT_TABLE_F_DORMANT != 0}
	if _, t.HasFlowtable, err = c.Devices(f); err != nil {
		return nil, err
	}

	chains := func() { t.chains = map[string]chain{} }
	chains()
	err = c.objects(unix.NFT_MSG_GETCHAIN, family(f), inTable, chains, func(b []byte, note func(...[]byte)) {
		if text(attribute(b, unix.NFTA_CHAIN_TABLE)) != rules.TableName {
			return
		}
		hook := attribute(b, unix.NFTA_CHAIN_HOOK)
		t.chains[text(attribute(b, unix.NFTA_CHAIN_NAME))] = chain{
			hook:     number(attribute(hook, unix.NFTA_HOOK_HOOKNUM)),
			priority: number(attribute(hook, unix.NFTA_HOOK_PRIORITY)),
			kind:     text(attribute(b, unix.NFTA_CHAIN_TYPE)),
			policy:   number(attribute(b, unix.NFTA_CHAIN_POLICY)),
		}
		note(attribute(b, unix.NFTA_CHAIN_HANDLE), attribute(b, unix.NFTA_CHAIN_POLICY))
	})
	if err != nil {
		return nil, wrap("chains", err)
	}

	rules := map[string][][]byte{}
	err = c.objects(unix.NFT_MSG_GETRULE, family(f), inTable, func() { clear(rules) },
		func(b []byte, note func(...[]byte)) {
			name := text(attribute(b, unix.NFTA_RULE_CHAIN))
			rules[name] = append(rules[name], bytes.Clone(attribute(b, unix.NFTA_RULE_EXPRESSIONS)))
			note(attribute(b, unix.NFTA_RULE_HANDLE))
		})
	if err != nil {
		return nil, wrap("rules", err)
	}

	for name, list := range rules {
		ch := t.chains[name]
		ch.rules = list
		t.chains[name] = ch
	}

	sets := func() { t.sets = map[string]description{} }
	sets()
	err = c.objects(unix.NFT_MSG_GETSET, family(f), inTable, sets, func(b []byte, note func(...[]byte)) {
		d := description{
			flags:    number(attribute(b, unix.NFTA_SET_FLAGS)),
			keyType:  number(attribute(b, unix.NFTA_SET_KEY_TYPE)),
			keyLen:   number(attribute(b, unix.NFTA_SET_KEY_LEN)),
			dataType: number(attribute(b, unix.NFTA_SET_DATA_TYPE)),
			dataLen:  number(attribute(b, unix.NFTA_SET_DATA_LEN)),
			size:     number(attribute(attribute(b, unix.NFTA_SET_DESC), unix.NFTA_SET_DESC_SIZE)),
			counters: attribute(b, setExpr) != nil,
		}
		if timeout := attribute(b, unix.NFTA_SET_TIMEOUT); len(timeout) == 8 {
			d.timeout = binary.BigEndian.Uint64(timeout)
		}
		t.sets[text(attribute(b, unix.NFTA_SET_NAME))] = d
		note(attribute(b, setHandle))
	})
	return t, wrap("sets", err)
}

// ReadElements reads the elements of the sets in rules.Sets.
func (c *Conn) ReadElements(t *Table) error {
	t.Elements = rules.Elements{}
	for id := range rules.Sets {
		s := &rules.Sets[id]
		if _, ok := t.sets[s.Name]; !ok {
			continue
		}
		retry := func() {
			maps.DeleteFunc(t.Elements, func(r rules.Ref, _ rules.Value) bool {
				return r.Set == rules.SetID(id)
			})
		}
		err := c.elements(t.family, s.Name, retry, func(b []byte) {
			r, v := elementOf(rules.SetID(id), b)
			t.Elements[r] = v
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ListElements asks for the elements of a set in rules.Sets, which NextElements then returns in parts.
// Between two parts other sockets may change the set: the kernel lists an element that is there all the time
// at most once more, or not at all, if others come or go before it in its order.
func (c *Conn) ListElements(f k8s.Family, id rules.SetID) error {
	return c.ask(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, family(f), func(m *message) {
		m.object(rules.TableName, unix.NFTA_SET_ELEM_LIST_SET, rules.Sets[id].Name)
	})
}

// NextElements calls each for the elements in the kernel's next message (32 KiB at most:
// net/netlink/af_netlink.c, netlink_dump), and reports whether it was the last.
func (c *Conn) NextElements(id rules.SetID, each func(rules.Ref, rules.Value)) (done bool, err error) {
	done, err = c.answered(func(h header) bool {
		if h.kind == unix.NLMSG_DONE {
			return true
		}
		for _, e := range attributes(attribute(h.data[genericSize:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			each(elementOf(id, e))
		}
		return false
	})
	return done, wrap("elements of "+rules.Sets[id].Name, err)
}

// elementOf returns the element of a set in rules.Sets that has these attributes.
func elementOf(id rules.SetID, b []byte) (rules.Ref, rules.Value) {
	return rules.Ref{Set: id, Key: string(dataValue(b, unix.NFTA_SET_ELEM_KEY))},
		rules.Value{End: string(dataValue(b, setElemKeyEnd)), Data: elementData(&rules.Sets[id], b)}
}

// Count is what an element has counted.
type Count struct {
	rules.Value
	Packets, Bytes uint64
}

// Counters returns the counters of a set's elements that have counted any packet: of millions, few have.
func (c *Conn) Counters(f k8s.Family, id rules.SetID) (map[rules.Ref]Count, error) {
	s, counts := &rules.Sets[id], map[rules.Ref]Count{}
	err := c.elements(f, s.Name, func() { clear(counts) }, func(b []byte) {
		if n, ok := countOf(b); ok && n.Packets > 0 {
			n.Data = elementData(s, b)
			counts[rules.Ref{Set: id, Key: string(dataValue(b, unix.NFTA_SET_ELEM_KEY))}] = n
		}
	})
	return counts, err
}

// countOf returns what the element with these attributes has counted, without its Value; ok is false if it
// does not count.
func countOf(b []byte) (n Count, ok bool) {
	counter := attribute(attribute(b, setElemExpressions), unix.NFTA_LIST_ELEM) // several expressions
	if counter == nil {
		counter = attribute(b, unix.NFTA_SET_ELEM_EXPR)
	}
	data := attribute(counter, unix.NFTA_EXPR_DATA)
	packets, bytes := attribute(data, unix.NFTA_COUNTER_PACKETS), attribute(data, unix.NFTA_COUNTER_BYTES)
	if len(packets) != 8 || len(bytes) != 8 {
		return n, false
	}
	n.Packets, n.Bytes = binary.BigEndian.Uint64(packets), binary.BigEndian.Uint64(bytes)
	return n, true
}

// Counted returns the packets that the rules with counters of a chain have counted, in the order of the
// rules.
func (t *Table) Counted(chain string) (packets []uint64) {
	for _, r := range t.chains[chain].rules {
		for _, e := range attributes(r) {
			if text(attribute(e, unix.NFTA_EXPR_NAME)) != "counter" {
				continue
			}
			if n := attribute(attribute(e, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS); len(n) == 8 {
				packets = append(packets, binary.BigEndian.Uint64(n))
			}
		}
	}
	return packets
}

// Clients returns the clients in a map of clients by their keys, with their endpoints.
func (c *Conn) Clients(f k8s.Family, set string) (map[string]string, error) {
	clients := map[string]string{}
	err := c.elements(f, set, func() { clear(clients) }, func(b []byte) {
		clients[string(dataValue(b, unix.NFTA_SET_ELEM_KEY))] = string(dataValue(b, unix.NFTA_SET_ELEM_DATA))
	})
	return clients, err
}

func (c *Conn) elements(f k8s.Family, set string, retry func(), each func(b []byte)) error {
	err := c.objects(unix.NFT_MSG_GETSETELEM, family(f), func(m *message) {
		m.object(rules.TableName, unix.NFTA_SET_ELEM_LIST_SET, set)
	}, retry, func(b []byte, note func(...[]byte)) {
		for _, e := range attributes(attribute(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			each(e)
			note(attribute(e, unix.NFTA_SET_ELEM_KEY), attribute(e, setElemKeyEnd),
				attribute(e, unix.NFTA_SET_ELEM_DATA))
		}
	})
	return wrap("elements of "+set, err)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("read the %s of table %s: %w", what, rules.TableName, err)
}

// dataValue returns the value in an element's attribute.
func dataValue(element []byte, kind uint16) []byte {
	return attribute(attribute(element, kind), unix.NFTA_DATA_VALUE)
}

func elementData(s *rules.Set, element []byte) string {
	if !s.Verdicts {
		return string(dataValue(element, unix.NFTA_SET_ELEM_DATA))
	}
	v := attribute(attribute(element, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VERDICT)
	word := "other"
	switch number(attribute(v, unix.NFTA_VERDICT_CODE)) {
	case verdictGoto:
		word = "goto"
	case verdictJump:
		word = "jump"
	}
	return word + " " + text(attribute(v, unix.NFTA_VERDICT_CHAIN))
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
