package ofctrltest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

var errShort = errors.New("message is cut off")

// apply changes the tables. The caller holds the lock.
func (s *Switch) apply(m Message) error {
	if len(m) < headerLen {
		return errShort
	}
	switch m.Type() {
	case FlowMod:
		return s.flow(m)
	case GroupMod:
		return s.group(m)
	case MeterMod:
		return s.meter(m)
	}
	return fmt.Errorf("message of type %d changes nothing", m.Type())
}

// flow applies an ofp_flow_mod (§7.3.4.2).
func (s *Switch) flow(m Message) error {
	b := m.Body()
	const add, del, delStrict = 0, 3, 4
	if len(b) < flowFixed+4 || flowFixed+matchLen(b) > len(b) {
		return errShort
	}
	cookie, mask, table := b[:8], binary.BigEndian.Uint64(b[8:]), b[16]
	key := string(append([]byte{table, b[22], b[23]}, b[flowFixed:flowFixed+matchLen(b)]...)) // with the priority
	switch command := b[17]; command {
	case add:
		s.flows[key] = m
	case delStrict:
		if f := s.flows[key]; f != nil && bears(f, cookie, mask) {
			delete(s.flows, key)
		}
	case del: // all of a table, or of all tables, with a cookie
		for k, f := range s.flows {
			if (k[0] == table || table == 0xff) && bears(f, cookie, mask) {
				delete(s.flows, k)
			}
		}
	default:
		return fmt.Errorf("flow command %d is unknown", command)
	}
	return nil
}

const flowFixed = 40 // bytes of an ofp_flow_mod before its match, without the header

// matchLen is the length of an ofp_flow_mod's match with its padding.
func matchLen(b []byte) int { return int(binary.BigEndian.Uint16(b[flowFixed+2:])+7) &^ 7 }

// bears reports whether a flow has this cookie in the bits of mask.
func bears(flow Message, cookie []byte, mask uint64) bool {
	return (binary.BigEndian.Uint64(flow.Body())^binary.BigEndian.Uint64(cookie))&mask == 0
}

// flowDescription is the ofp_flow_desc (§7.3.5.2) of a flow.
func flowDescription(m Message) []byte {
	b := m.Body()
	e := make([]byte, 0, len(b))
	e = append(e, 0, 0, 0, 0, b[16], 0, b[22], b[23]) // table, priority
	e = append(e, b[18:22]...)                        // idle and hard timeout
	e = append(e, b[36:40]...)                        // flags, importance
	e = append(e, b[:8]...)                           // cookie
	e = append(e, b[flowFixed:flowFixed+matchLen(b)]...)
	e = append(e, 0, 0, 0, 4, 0, 0, 0, 0) // ofp_stats without fields (§7.2.4)
	e = append(e, b[flowFixed+matchLen(b):]...)
	binary.BigEndian.PutUint16(e, uint16(len(e)))
	return e
}

// group applies an ofp_group_mod (§7.3.4.3).
func (s *Switch) group(m Message) error {
	b := m.Body()
	if len(b) < groupFixed || groupFixed+int(binary.BigEndian.Uint16(b[8:])) > len(b) {
		return errShort
	}
	const add, modify, del, insertBucket, addOrModify = 0, 1, 2, 3, 0x8000
	id := binary.BigEndian.Uint32(b[4:])
	switch command := binary.BigEndian.Uint16(b); command {
	case add, modify, addOrModify:
		s.groups[id] = m
	case insertBucket:
		return errors.New("groups of more than one message are not kept here")
	case del:
		delete(s.groups, id)
	default:
		return fmt.Errorf("group command %d is unknown", command)
	}
	return nil
}

const groupFixed = 16 // bytes of an ofp_group_mod before its buckets, without the header

// groupDescription is the ofp_group_desc (§7.3.5.10) of a group.
func groupDescription(m Message) []byte {
	b := m.Body()
	e := make([]byte, 0, len(b))
	e = append(e, 0, 0, b[2], 0)
	e = append(e, b[4:10]...) // id, length of the buckets
	e = append(e, 0, 0, 0, 0, 0, 0)
	e = append(e, b[groupFixed:]...)
	binary.BigEndian.PutUint16(e, uint16(len(e)))
	return e
}

// meter applies an ofp_meter_mod (§7.3.4.4).
func (s *Switch) meter(m Message) error {
	b := m.Body()
	if len(b) < 8 {
		return errShort
	}
	const del = 2
	if id := binary.BigEndian.Uint32(b[4:]); binary.BigEndian.Uint16(b) == del {
		delete(s.meters, id)
	} else {
		s.meters[id] = m
	}
	return nil
}

// meterDescription is the ofp_meter_config (§7.3.5.13) of a meter.
func meterDescription(m Message) []byte {
	e := append([]byte{0, 0}, m.Body()[2:]...) // flags, id, bands
	binary.BigEndian.PutUint16(e, uint16(len(e)))
	return e
}

// Dump returns the messages that make the switch's present state: flows, groups and meters, each in the order of their keys. Applied
// to an empty switch they make one whose Dump is the same.
func (s *Switch) Dump() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append(inOrder(s.flows), inOrder(s.groups)...)
	all = append(all, inOrder(s.meters)...)
	for i, m := range all {
		all[i] = bytes.Clone(m)
		binary.BigEndian.PutUint32(all[i][4:], 0) // the transaction is no part of the state
	}
	return all
}

func inOrder[K cmp.Ordered](m map[K]Message) []Message {
	var all []Message
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[k])
	}
	return all
}

// Load applies messages such as Dump returns, without a controller.
func (s *Switch) Load(messages []Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range messages {
		if err := s.apply(m); err != nil {
			return err
		}
	}
	return nil
}
