package reject

import "encoding/binary"

// How long an answer may be without its Ethernet header: RFC 1812 §4.3.2.3 and RFC 4443 §3.1, §2.4 (c).
const (
	maxAnswer4 = 576
	maxAnswer6 = 1280
)

const (
	ttl = 64
	// tosControl is the precedence "internetwork control" of ICMP errors (RFC 1812 §4.3.2.5).
	tosControl = 0xc0
)

// Flags of TCP (RFC 9293 §3.1).
const (
	flagFIN = 1 << 0
	FlagSYN = 1 << 1
	FlagRST = 1 << 2
	FlagACK = 1 << 4
)

// reset appends the segment that a closed port sends (RFC 9293 §3.10.7.1).
func (p *packet) reset(out []byte) ([]byte, error) {
	t := p.l4
	if len(t) < 20 {
		return nil, ErrTruncated
	}

	header := int(t[12]>>4) * 4
	switch flags := t[13]; {
	case header < 20 || header > p.l4len:
		return nil, ErrTruncated
	case flags&FlagRST != 0:
		return nil, ErrReset
	case p.fragment: // its length, which the answer acknowledges, is not known
		return nil, ErrFragment
	}

	var seq, ack uint32
	flags := byte(FlagRST)
	if t[13]&FlagACK != 0 {
		seq = be32(t[8:])
	} else {
		flags |= FlagACK
		ack = be32(t[4:]) + uint32(p.l4len-header)
		if t[13]&FlagSYN != 0 {
			ack++
		}
		if t[13]&flagFIN != 0 {
			ack++
		}
	}

	out, l3 := p.header(out, protoTCP, 20, 0)
	l4 := len(out)
	out = append(out, t[2], t[3], t[0], t[1])
	out = binary.BigEndian.AppendUint32(out, seq)
	out = binary.BigEndian.AppendUint32(out, ack)
	out = append(out, 5<<4, flags, 0, 0, 0, 0, 0, 0)
	p.sum(out[l3:], out[l4:], out[l4+16:], protoTCP)
	return out, nil
}

// unreachable appends "destination unreachable: port" with as much of the packet as may be (RFC 792, RFC 4443
// §3.1).
func (p *packet) unreachable(out []byte) ([]byte, error) {
	typ, code, proto, most := byte(3), byte(3), byte(protoICMP), maxAnswer4-20-8
	if p.v6 {
		typ, code, proto, most = 1, 4, protoICMPv6, maxAnswer6-40-8
	}
	quote := p.whole[:min(len(p.whole), most)]
	out, l3 := p.header(out, proto, 8+len(quote), tosControl)
	l4 := len(out)
	out = append(out, typ, code, 0, 0, 0, 0, 0, 0)
	out = append(out, quote...)
	p.sum(out[l3:], out[l4:], out[l4+2:], proto)
	return out, nil
}

// header appends the IP header of the answer and returns its offset.
func (p *packet) header(out []byte, proto byte, size int, tos byte) ([]byte, int) {
	l3 := len(out)
	if p.v6 {
		out = append(out, 6<<4, 0, 0, 0)
		out = binary.BigEndian.AppendUint16(out, uint16(size))
		out = append(out, proto, ttl)
		out = append(out, p.dst...)
		return append(out, p.src...), l3
	}
	out = append(out, 4<<4|5, tos)
	out = binary.BigEndian.AppendUint16(out, uint16(20+size))
	out = append(out, 0, 0, 0x40, 0, ttl, proto, 0, 0) // do not fragment, so no identification (RFC 6864)
	out = append(out, p.dst...)
	out = append(out, p.src...)
	binary.BigEndian.PutUint16(out[l3+10:], ^fold(add(0, out[l3:])))
	return out, l3
}

// sum fills in the checksum of a transport header: of all but ICMP over a pseudo header, too
// (RFC 9293 §3.1, RFC 768, RFC 8200 §8.1).
func (p *packet) sum(l3, l4, field []byte, proto byte) {
	var s uint64
	if proto != protoICMP {
		from, to := 12, 20
		if p.v6 {
			from, to = 8, 40
		}
		s = add(uint64(proto)+uint64(len(l4)), l3[from:to])
	}
	binary.BigEndian.PutUint16(field, ^fold(add(s, l4)))
}

// add sums 16-bit words (RFC 1071).
func add(s uint64, b []byte) uint64 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(be16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}

func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
