package reject

import (
	"encoding/binary"
	"errors"
)

// Reasons for not answering.
var (
	ErrTruncated = errors.New("frame is cut off or malformed")
	ErrNotIP     = errors.New("frame is neither IPv4 nor IPv6")
	ErrAddress   = errors.New("source or destination is not a unicast address")
	ErrFragment  = errors.New("fragment that cannot be answered")
	ErrReset     = errors.New("a reset is never answered")
	ErrICMP      = errors.New("ICMP error or neighbour discovery is never answered")
)

// Answer returns the frame that refuses the connection or datagram in frame: the same Ethernet header with
// the addresses swapped and all VLAN tags kept, from the packet's destination to its source. An error says
// why the frame must not be answered.
func Answer(frame []byte) ([]byte, error) {
	link, etherType, l3, err := ethernet(frame)
	if err != nil {
		return nil, err
	}
	p, err := readIP(etherType, l3)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(link)+maxAnswer6)
	out = append(out, frame[6:12]...)
	out = append(out, frame[0:6]...)
	out = append(out, link[12:]...)
	if p.proto == protoTCP {
		return p.reset(out)
	}
	return p.unreachable(out)
}

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100 // IEEE 802.1Q
	etherQinQ = 0x88a8 // IEEE 802.1ad
	maxTags   = 2
	etherLen  = 14
)

// ethernet splits a frame into its header, with tags and type, and what follows.
func ethernet(frame []byte) (link []byte, etherType uint16, rest []byte, err error) {
	if len(frame) < etherLen {
		return nil, 0, nil, ErrTruncated
	}
	const group = 1 // of the first byte: a multicast or broadcast address
	if frame[0]&group != 0 || frame[6]&group != 0 {
		return nil, 0, nil, ErrAddress
	}
	n := etherLen
	for range maxTags {
		t := be16(frame[n-2:])
		if t != etherVLAN && t != etherQinQ {
			break
		}
		if n += 4; len(frame) < n {
			return nil, 0, nil, ErrTruncated
		}
	}
	return frame[:n], be16(frame[n-2:]), frame[n:], nil
}

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
