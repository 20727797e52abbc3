//go:build linux

package netlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nft"
	"github.com/nkp-proxy/nkp/k8s"
)

// ErrInterrupted is returned when another program changed the tables during a dump.
var ErrInterrupted = errors.New("nf_tables: another program changed the tables while they were read")

// dump calls f for each message of a dump, with what follows the netfilter header.
func (c *Conn) dump(kind uint16, fam byte, fill func(*message), f func(b []byte)) error {
	var m message
	c.seq++
	start := m.begin(subsystem<<8|kind, unix.NLM_F_DUMP, c.seq, fam, 0)
	fill(&m)
	m.end(start)
	c.drain()
	if err := c.send(m.b); err != nil {
		return err
	}
	interrupted := false
	for {
		n, err := c.receive(0)
		if err != nil {
			return err
		}
		for h := range messages(c.buf[:n]) {
			if h.seq != c.seq {
				continue
			}
			interrupted = interrupted || h.flags&unix.NLM_F_DUMP_INTR != 0
			code := int32(0)
			if len(h.data) >= 4 {
				code = int32(binary.NativeEndian.Uint32(h.data))
			}
			switch {
			case (h.kind == unix.NLMSG_DONE || h.kind == unix.NLMSG_ERROR) && code < 0:
				return unix.Errno(-code)
			case h.kind == unix.NLMSG_DONE && interrupted:
				return ErrInterrupted
			case h.kind == unix.NLMSG_DONE:
				return nil
			case len(h.data) >= genericSize:
				f(h.data[genericSize:])
			}
		}
	}
}

// Table is what is installed of nkp's table of one family.
type Table struct {
	family k8s.Family
	// Sets are the sets by name; Chains the chains by name, with the expressions of their rules.
	sets   map[string]description
	chains map[string]chain
	// Elements are those of the sets in nft.Sets.
	Elements nft.Elements
}

// chain is an installed chain.
type chain struct {
	hook, priority uint32
	kind           string // "": no base chain
	rules          [][]byte
}

// ReadChains returns the table without elements; nil if there is none.
func (c *Conn) ReadChains(f k8s.Family) (*Table, error) {
	t := &Table{family: f, sets: map[string]description{}, chains: map[string]chain{}}
	found := false
	named := func(kind uint16) func(*message) { return func(m *message) { m.text(kind, nft.TableName) } }
	err := c.dump(unix.NFT_MSG_GETTABLE, family(f), func(*message) {}, func(b []byte) {
		found = found || text(attribute(b, unix.NFTA_TABLE_NAME)) == nft.TableName
	})
	if err != nil || !found {
		return nil, wrap("tables", err)
	}
	err = c.dump(unix.NFT_MSG_GETCHAIN, family(f), named(unix.NFTA_CHAIN_TABLE), func(b []byte) {
		if text(attribute(b, unix.NFTA_CHAIN_TABLE)) != nft.TableName {
			return
		}
		hook := attribute(b, unix.NFTA_CHAIN_HOOK)
		t.chains[text(attribute(b, unix.NFTA_CHAIN_NAME))] = chain{
			hook: number(attribute(hook, unix.NFTA_HOOK_HOOKNUM)), priority: number(attribute(hook, unix.NFTA_HOOK_PRIORITY)),
			kind: text(attribute(b, unix.NFTA_CHAIN_TYPE)),
		}
	})
	if err != nil {
		return nil, wrap("chains", err)
	}
	err = c.dump(unix.NFT_MSG_GETRULE, family(f), named(unix.NFTA_RULE_TABLE), func(b []byte) {
		name := text(attribute(b, unix.NFTA_RULE_CHAIN))
		ch := t.chains[name]
		ch.rules = append(ch.rules, bytes.Clone(attribute(b, unix.NFTA_RULE_EXPRESSIONS)))
		t.chains[name] = ch
	})
	if err != nil {
		return nil, wrap("rules", err)
	}
	err = c.dump(unix.NFT_MSG_GETSET, family(f), named(unix.NFTA_SET_TABLE), func(b []byte) {
		d := description{flags: number(attribute(b, unix.NFTA_SET_FLAGS)), keyType: number(attribute(b, unix.NFTA_SET_KEY_TYPE)),
			keyLen: number(attribute(b, unix.NFTA_SET_KEY_LEN)), dataType: number(attribute(b, unix.NFTA_SET_DATA_TYPE)),
			dataLen: number(attribute(b, unix.NFTA_SET_DATA_LEN)), size: number(attribute(attribute(b, unix.NFTA_SET_DESC), unix.NFTA_SET_DESC_SIZE)),
			counters: attribute(b, setExpr) != nil}
		if timeout := attribute(b, unix.NFTA_SET_TIMEOUT); len(timeout) == 8 {
			d.timeout = binary.BigEndian.Uint64(timeout)
		}
		t.sets[text(attribute(b, unix.NFTA_SET_NAME))] = d
	})
	return t, wrap("sets", err)
}

// ReadElements reads the elements of the sets in nft.Sets.
func (c *Conn) ReadElements(t *Table) error {
	t.Elements = nft.Elements{}
	for id := range nft.Sets {
		s := &nft.Sets[id]
		if _, ok := t.sets[s.Name]; !ok {
			continue
		}
		err := c.eachElement(t.family, s.Name, func(b []byte) {
			r := nft.Ref{Set: nft.SetID(id), Key: string(dataValue(b, unix.NFTA_SET_ELEM_KEY))}
			t.Elements[r] = nft.Value{End: string(dataValue(b, setElemKeyEnd)), Data: elementData(s, b)}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Counters calls f for each element of a set with its counter of packets.
func (c *Conn) Counters(f k8s.Family, id nft.SetID, each func(r nft.Ref, v nft.Value, packets uint64)) error {
	s := &nft.Sets[id]
	return c.eachElement(f, s.Name, func(b []byte) {
		counter := attribute(attribute(b, setElemExpressions), unix.NFTA_LIST_ELEM) // several expressions
		if counter == nil {
			counter = attribute(b, unix.NFTA_SET_ELEM_EXPR)
		}
		packets := attribute(attribute(counter, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS)
		if len(packets) == 8 {
			each(nft.Ref{Set: id, Key: string(dataValue(b, unix.NFTA_SET_ELEM_KEY))}, nft.Value{Data: elementData(s, b)}, binary.BigEndian.Uint64(packets))
		}
	})
}

// Counted returns the packets that the rules with counters of a chain have counted, in the order of the rules.
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

// Clients calls f for each client in a map of clients, with its key and endpoint.
func (c *Conn) Clients(f k8s.Family, set string, each func(key, endpoint string)) error {
	return c.eachElement(f, set, func(b []byte) {
		each(string(dataValue(b, unix.NFTA_SET_ELEM_KEY)), string(dataValue(b, unix.NFTA_SET_ELEM_DATA)))
	})
}

func (c *Conn) eachElement(f k8s.Family, set string, each func(b []byte)) error {
	err := c.dump(unix.NFT_MSG_GETSETELEM, family(f), func(m *message) {
		m.text(unix.NFTA_SET_ELEM_LIST_TABLE, nft.TableName)
		m.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	}, func(b []byte) {
		for _, e := range attributes(attribute(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			each(e)
		}
	})
	return wrap("elements of "+set, err)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("read the %s of table %s: %w", what, nft.TableName, err)
}

// dataValue returns the value in an element's attribute.
func dataValue(element []byte, kind uint16) []byte {
	return attribute(attribute(element, kind), unix.NFTA_DATA_VALUE)
}

func elementData(s *nft.Set, element []byte) string {
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
