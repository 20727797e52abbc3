package memswitch

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var errShort = errors.New("message is cut off")

// apply changes the tables. The caller holds the lock.
func (s *Switch) apply(typ byte, body []byte) error {
	switch typ {
	case flowMod:
		return s.flow(body)
	case groupMod:
		return s.group(body)
	case meterMod:
		return s.meter(body)
	}
	return fmt.Errorf("message of type %d changes nothing", typ)
}

// flow applies an ofp_flow_mod (§7.3.4.2). Its entry is an ofp_flow_desc (§7.3.5.2).
func (s *Switch) flow(b []byte) error {
	const fixed = 40
	if len(b) < fixed+4 {
		return errShort
	}
	const add, del, delStrict = 0, 3, 4
	cookie, mask, table, command := b[:8], binary.BigEndian.Uint64(b[8:]), b[16], b[17]
	priority := b[22:24]
	match := int(binary.BigEndian.Uint16(b[fixed+2:])+7) &^ 7
	if fixed+match > len(b) {
		return errShort
	}
	key := string(append([]byte{table, priority[0], priority[1]}, b[fixed:fixed+match]...))
	switch command {
	case add:
		e := make([]byte, 0, 24+len(b)-fixed+8)
		e = append(e, 0, 0, 0, 0, table, 0, priority[0], priority[1])
		e = append(e, b[18:22]...) // idle and hard timeout
		e = append(e, b[36:40]...) // flags, importance
		e = append(e, cookie...)
		e = append(e, b[fixed:fixed+match]...)
		e = append(e, 0, 0, 0, 4, 0, 0, 0, 0) // ofp_stats without fields (§7.2.4)
		e = append(e, b[fixed+match:]...)
		binary.BigEndian.PutUint16(e, uint16(len(e)))
		s.flows[key] = e
	case delStrict:
		if e := s.flows[key]; e != nil && bears(e, cookie, mask) {
			delete(s.flows, key)
		}
	case del: // of learned flows, which there are none of: all of a table with a cookie
		for k, e := range s.flows {
			if k[0] == table && bears(e, cookie, mask) {
				delete(s.flows, k)
			}
		}
	default:
		return fmt.Errorf("flow command %d is unknown", command)
	}
	return nil
}

// bears reports whether a flow entry has this cookie in the bits of mask.
func bears(entry, cookie []byte, mask uint64) bool {
	return (binary.BigEndian.Uint64(entry[16:])^binary.BigEndian.Uint64(cookie))&mask == 0
}

// group applies an ofp_group_mod (§7.3.4.3). Its entry is an ofp_group_desc (§7.3.5.10).
func (s *Switch) group(b []byte) error {
	const fixed = 16
	if len(b) < fixed {
		return errShort
	}
	const add, modify, del, insertBucket, addOrModify = 0, 1, 2, 3, 0x8000
	command, id := binary.BigEndian.Uint16(b), binary.BigEndian.Uint32(b[4:])
	buckets := int(binary.BigEndian.Uint16(b[8:]))
	if fixed+buckets > len(b) {
		return errShort
	}
	switch command {
	case add, modify, addOrModify:
		e := make([]byte, 0, len(b))
		e = append(e, 0, 0, b[2], 0)
		e = append(e, b[4:10]...) // id, length of the buckets
		e = append(e, 0, 0, 0, 0, 0, 0)
		e = append(e, b[fixed:]...)
		binary.BigEndian.PutUint16(e, uint16(len(e)))
		s.groups[id] = e
	case insertBucket:
		return errors.New("groups of more than one message are not kept here")
	case del:
		delete(s.groups, id)
	default:
		return fmt.Errorf("group command %d is unknown", command)
	}
	return nil
}

// meter applies an ofp_meter_mod (§7.3.4.4). Its entry is an ofp_meter_config (§7.3.5.13).
func (s *Switch) meter(b []byte) error {
	if len(b) < 8 {
		return errShort
	}
	const del = 2
	id := binary.BigEndian.Uint32(b[4:])
	if binary.BigEndian.Uint16(b) == del {
		delete(s.meters, id)
		return nil
	}
	e := append([]byte{0, 0}, b[2:]...) // flags, id, bands
	binary.BigEndian.PutUint16(e, uint16(len(e)))
	s.meters[id] = e
	return nil
}
