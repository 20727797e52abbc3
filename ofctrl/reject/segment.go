package reject

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

const protoUDP = 17

// Segment is a TCP segment or a UDP datagram without data.
type Segment struct {
	EthSrc, EthDst [6]byte
	TCP            bool
	From, To       netip.AddrPort
	Flags          byte // of TCP, like Seq and Ack
	Seq, Ack       uint32
	// Unreachable is the sender of an ICMP error (destination unreachable) that quotes the segment; the zero
	// Addr: the segment itself was received.
	Unreachable netip.Addr
}

// Frame returns the Ethernet frame of the segment.
func (s *Segment) Frame() []byte {
	from, to := s.From.Addr(), s.To.Addr()
	p := packet{v6: from.Is6(), src: to.AsSlice(), dst: from.AsSlice()} // header answers a packet
	proto, size, etherType := byte(protoUDP), 8, uint16(etherIPv4)
	if s.TCP {
		proto, size = protoTCP, 20
	}
	if p.v6 {
		etherType = etherIPv6
	}
	out := append(append([]byte{}, s.EthDst[:]...), s.EthSrc[:]...)
	out, l3 := p.header(binary.BigEndian.AppendUint16(out, etherType), proto, size, 0)

	l4, field := len(out), 6 // of the checksum
	out = binary.BigEndian.AppendUint16(out, s.From.Port())
	out = binary.BigEndian.AppendUint16(out, s.To.Port())
	if s.TCP {
		const window = 0xffff
		field = 16
		out = binary.BigEndian.AppendUint32(out, s.Seq)
		out = binary.BigEndian.AppendUint32(out, s.Ack)
		out = append(out, 5<<4, s.Flags, window>>8, window&0xff, 0, 0, 0, 0)
	} else {
		out = append(out, 0, 8, 0, 0)
	}
	p.sum(out[l3:], out[l4:], out[l4+field:], proto)
	if !s.TCP && out[l4+field] == 0 && out[l4+field+1] == 0 { // 0 would mean that there is none
		out[l4+field], out[l4+field+1] = 0xff, 0xff
	}
	return out
}

// ReadSegment reads a frame with a TCP segment, a UDP datagram, or an ICMP error that quotes one.
func ReadSegment(frame []byte) (s Segment, err error) {
	link, etherType, l3, err := ethernet(frame)
	if err != nil {
		return s, err
	}
	s.EthDst, s.EthSrc = [6]byte(link), [6]byte(link[6:])

	p, err := readIP(etherType, l3)
	if errors.Is(err, ErrICMP) {
		const header = 8
		typ := byte(3)
		if p.v6 {
			typ = 1
		}
		if len(p.l4) < header || p.l4[0] != typ {
			return s, ErrICMP
		}
		s.Unreachable, _ = netip.AddrFromSlice(p.src)
		p, err = readIP(etherType, p.l4[header:])
	}

	switch {
	case err != nil:
		return s, err
	case p.proto != protoTCP && p.proto != protoUDP || len(p.l4) < 8:
		return s, ErrTruncated
	}

	from, _ := netip.AddrFromSlice(p.src)
	to, _ := netip.AddrFromSlice(p.dst)
	s.From, s.To = netip.AddrPortFrom(from, be16(p.l4)), netip.AddrPortFrom(to, be16(p.l4[2:]))
	if s.TCP = p.proto == protoTCP; s.TCP && len(p.l4) >= 20 { // an error may quote less
		s.Seq, s.Ack, s.Flags = be32(p.l4[4:]), be32(p.l4[8:]), p.l4[13]
	}
	return s, nil
}

// readIP reads an IP packet.
func readIP(etherType uint16, b []byte) (packet, error) {
	switch etherType {
	case etherIPv4:
		return ipv4(b)
	case etherIPv6:
		return ipv6(b)
	}
	return packet{}, ErrNotIP
}
