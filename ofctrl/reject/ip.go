package reject

import "net/netip"

// IP protocol numbers (IANA).
const (
	protoHopByHop = 0
	protoICMP     = 1
	protoTCP      = 6
	protoRouting  = 43
	protoFragment = 44
	protoAH       = 51
	protoICMPv6   = 58
	protoDestOpts = 60
	protoMobility = 135
)

// packet is an IP packet that may be answered.
type packet struct {
	v6       bool
	src, dst []byte
	proto    uint8
	whole    []byte // from the IP header on, without what Ethernet pads
	l4       []byte // the part that was received
	l4len    int    // according to the headers
	fragment bool   // the first fragment, with others to follow
}

// ipv4 reads an IPv4 header (RFC 791). The packet may be shorter than its total length, as flows may send
// only the beginning to the controller.
func ipv4(b []byte) (packet, error) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return packet{}, ErrTruncated
	}
	header, total := int(b[0]&15)*4, int(be16(b[2:]))
	if header < 20 || header > len(b) || total < header {
		return packet{}, ErrTruncated
	}
	whole := b[:min(total, len(b))]
	p := packet{
		src: b[12:16], dst: b[16:20],
		proto: b[9],
		whole: whole, l4: whole[header:], l4len: total - header,
	}
	const moreFragments, offsetMask = 0x2000, 0x1fff
	frag := be16(b[6:])
	if frag&offsetMask != 0 {
		return p, ErrFragment
	}
	p.fragment = frag&moreFragments != 0
	return p, p.check()
}

// maxHeaders bounds the chain of IPv6 extension headers that is followed.
const maxHeaders = 16

// ipv6 reads an IPv6 header and its extension headers (RFC 8200 §4).
func ipv6(b []byte) (packet, error) {
	const header = 40
	if len(b) < header || b[0]>>4 != 6 {
		return packet{}, ErrTruncated
	}

	total := header + int(be16(b[4:]))
	whole := b[:min(total, len(b))]
	p := packet{
		v6:  true,
		src: b[8:24], dst: b[24:40],
		proto: b[6],
		whole: whole, l4: whole[header:], l4len: total - header,
	}

	for range maxHeaders {
		var size int
		switch p.proto {
		case protoHopByHop, protoRouting, protoDestOpts, protoMobility, protoFragment, protoAH:
			if len(p.l4) < 8 {
				return p, ErrTruncated
			}
			size = 8 * (int(p.l4[1]) + 1)
		default:
			return p, p.check()
		}

		switch p.proto {
		case protoFragment:
			size = 8
			const moreFragments, offsetMask = 1, 0xfff8
			frag := be16(p.l4[2:])
			if frag&offsetMask != 0 {
				return p, ErrFragment
			}
			p.fragment = frag&moreFragments != 0
		case protoAH:
			size = 4 * (int(p.l4[1]) + 2) // RFC 4302 §2.2
		}

		if size > len(p.l4) || size > p.l4len {
			return p, ErrTruncated
		}
		p.proto = p.l4[0]
		p.l4 = p.l4[size:]
		p.l4len -= size
	}
	return p, ErrTruncated
}

// check refuses what must never be answered: RFC 1122 §3.2.2, RFC 4443 §2.4 (e).
func (p *packet) check() error {
	if !unicast(p.src) || !unicast(p.dst) {
		return ErrAddress
	}
	switch {
	case p.proto == protoICMP && !p.v6:
		if len(p.l4) < 8 {
			return ErrTruncated
		}
		switch p.l4[0] {
		case 0, 8, 13, 14, 15, 16, 17, 18: // echo, timestamp, information, address mask
		default:
			return ErrICMP
		}
	case p.proto == protoICMPv6 && p.v6:
		if len(p.l4) < 8 {
			return ErrTruncated
		}
		if t := p.l4[0]; t != 128 && t != 129 { // echo
			return ErrICMP
		}
	}
	return nil
}

func unicast(ip []byte) bool {
	a, _ := netip.AddrFromSlice(ip)
	a = a.Unmap()
	return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != broadcast
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})
