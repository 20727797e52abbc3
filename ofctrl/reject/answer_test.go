package reject

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
)

var (
	macA = []byte{2, 0, 0, 0, 0, 0xa}
	macB = []byte{2, 0, 0, 0, 0, 0xb}
	a4   = netip.MustParseAddr("10.0.0.11")
	b4   = netip.MustParseAddr("40.0.0.1")
	a6   = netip.MustParseAddr("fd00:a::11")
	b6   = netip.MustParseAddr("fd00:40::1")
)

// eth puts a frame from macA to macB around an IP packet, with VLAN tags.
func eth(l3 []byte, tags ...uint16) []byte {
	f := append(append([]byte{}, macB...), macA...)
	for i, t := range tags {
		f = append(f, 0x81, 0)
		if i == 0 && len(tags) > 1 {
			f[len(f)-2], f[len(f)-1] = 0x88, 0xa8
		}
		f = binary.BigEndian.AppendUint16(f, t)
	}
	if l3[0]>>4 == 6 {
		f = append(f, 0x86, 0xdd)
	} else {
		f = append(f, 8, 0)
	}
	return append(f, l3...)
}

func ip4(proto byte, frag uint16, options []byte, l4 []byte) []byte {
	b := []byte{byte(4<<4 | (5 + len(options)/4)), 0, 0, 0, 0x12, 0x34, byte(frag >> 8), byte(frag), 63, proto, 0, 0}
	b = append(append(b, a4.AsSlice()...), b4.AsSlice()...)
	b = append(append(b, options...), l4...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

func ip6(next byte, l4 []byte) []byte {
	b := []byte{6 << 4, 0, 0, 0, byte(len(l4) >> 8), byte(len(l4)), next, 63}
	b = append(append(b, a6.AsSlice()...), b6.AsSlice()...)
	return append(b, l4...)
}

func tcp(flags byte, seq, ack uint32, optWords int, payload string) []byte {
	b := []byte{0x30, 0x39, 0, 80}
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint32(b, ack)
	b = append(b, byte(5+optWords)<<4, flags, 1, 0, 0, 0, 0, 0)
	b = append(b, make([]byte, 4*optWords)...)
	return append(b, payload...)
}

func udp(n int) []byte {
	b := make([]byte, 8+n)
	copy(b, []byte{0x30, 0x39, 0, 53, byte((8 + n) >> 8), byte(8 + n)})
	for i := range n {
		b[8+i] = byte(i)
	}
	return b
}

// checksum is the plain reading of RFC 1071: the sum over everything with the checksum in it is ffff.
func checksum(parts ...[]byte) uint32 {
	b := bytes.Join(parts, nil)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	var s uint32
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
		if s > 0xffff {
			s -= 0xffff
		}
	}
	return s
}

// parsed is an answer taken apart, its checksums verified.
type parsed struct {
	link  []byte
	proto byte
	l4    []byte
	size  int // of the IP packet
}

func parse(t *testing.T, frame, out []byte, tags int) parsed {
	t.Helper()
	n := 14 + 4*tags
	if !bytes.Equal(out[:6], frame[6:12]) || !bytes.Equal(out[6:12], frame[:6]) || !bytes.Equal(out[12:n], frame[12:n]) {
		t.Fatalf("Ethernet header %x", out[:n])
	}
	p, q := out[n:], frame[n:]
	r := parsed{link: out[:n], size: len(p)}
	var pseudo []byte
	if p[0]>>4 == 4 {
		if checksum(p[:20]) != 0xffff || int(binary.BigEndian.Uint16(p[2:])) != len(p) || p[0] != 0x45 || p[8] == 0 {
			t.Fatalf("IPv4 header %x", p[:20])
		}
		if !bytes.Equal(p[12:16], q[16:20]) || !bytes.Equal(p[16:20], q[12:16]) {
			t.Fatalf("addresses %x", p[12:20])
		}
		r.proto, r.l4 = p[9], p[20:]
		if r.proto == 6 {
			pseudo = append(append(pseudo, p[12:20]...), 0, 6, byte(len(r.l4)>>8), byte(len(r.l4)))
		}
	} else {
		if int(binary.BigEndian.Uint16(p[4:])) != len(p)-40 || p[7] == 0 {
			t.Fatalf("IPv6 header %x", p[:40])
		}
		if !bytes.Equal(p[8:24], q[24:40]) || !bytes.Equal(p[24:40], q[8:24]) {
			t.Fatalf("addresses %x", p[8:40])
		}
		r.proto, r.l4 = p[6], p[40:]
		pseudo = append(append(pseudo, p[8:40]...), 0, 0, byte(len(r.l4)>>8), byte(len(r.l4)), 0, 0, 0, r.proto)
	}
	if checksum(pseudo, r.l4) != 0xffff {
		t.Fatalf("checksum of %x", r.l4)
	}
	return r
}

// TestReset has segments of every kind; the numbers are those of RFC 9293 §3.10.7.1.
func TestReset(t *testing.T) {
	const fin, syn, rst, psh, ack = 1, 2, 4, 8, 16
	for name, tc := range map[string]struct {
		l4       []byte
		seq, ack uint32
		flags    byte
	}{
		"SYN":                 {tcp(syn, 1000, 0, 0, ""), 0, 1001, rst | ack},
		"SYN with options":    {tcp(syn, 1000, 0, 5, ""), 0, 1001, rst | ack},
		"SYN with data":       {tcp(syn, 1000, 0, 2, "hello"), 0, 1006, rst | ack},
		"SYN at the wrap":     {tcp(syn, 0xffffffff, 0, 0, ""), 0, 0, rst | ack},
		"ACK":                 {tcp(ack, 1000, 77, 0, ""), 77, 0, rst},
		"data":                {tcp(ack|psh, 1000, 77, 0, "hello"), 77, 0, rst},
		"SYN ACK":             {tcp(syn|ack, 1000, 0xfffffff0, 0, ""), 0xfffffff0, 0, rst},
		"FIN ACK":             {tcp(fin|ack, 1000, 5, 0, ""), 5, 0, rst},
		"FIN without ACK":     {tcp(fin, 1000, 0, 0, "abc"), 0, 1004, rst | ack},
		"nothing set":         {tcp(0, 1000, 0, 0, "abc"), 0, 1003, rst | ack},
		"SYN FIN, odd length": {tcp(syn|fin, 1000, 0, 0, "abcde"), 0, 1007, rst | ack},
	} {
		for family, frame := range map[string][]byte{
			"IPv4": eth(ip4(6, 0x4000, nil, tc.l4)), "IPv4 with options": eth(ip4(6, 0, make([]byte, 40), tc.l4)),
			"IPv6": eth(ip6(6, tc.l4)), "IPv6 with headers": eth(ip6(0, append([]byte{60, 0, 1, 4, 0, 0, 0, 0, 6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, tc.l4...))),
			"padded": append(eth(ip4(6, 0, nil, tc.l4)), make([]byte, 20)...),
		} {
			out, err := Answer(frame)
			if err != nil {
				t.Errorf("%s, %s: %v", name, family, err)
				continue
			}
			p := parse(t, frame, out, 0)
			b := p.l4
			if p.proto != 6 || len(b) != 20 || !bytes.Equal(b[:4], []byte{0, 80, 0x30, 0x39}) || be32(b[4:]) != tc.seq || be32(b[8:]) != tc.ack || b[12] != 5<<4 || b[13] != tc.flags {
				t.Errorf("%s, %s: %x", name, family, b)
			}
		}
	}
}

// TestUnreachable has what is not TCP, of many lengths.
func TestUnreachable(t *testing.T) {
	for _, tags := range [][]uint16{nil, {5}, {5, 6}} {
		for _, n := range []int{0, 1, 519, 520, 521, 1183, 1184, 1185, 1400, 9000} {
			v4, v6 := ip4(17, 0x4000, nil, udp(n)), ip6(17, udp(n))
			for _, l3 := range [][]byte{v4, v6, ip4(132, 0, nil, udp(n)), ip6(132, udp(n)), ip4(47, 0, nil, udp(n)), ip4(17, 0, make([]byte, 40), udp(n)), ip4(17, 0x2000, nil, udp(n))} {
				frame := eth(l3, tags...)
				out, err := Answer(frame)
				if err != nil {
					t.Fatal(err)
				}
				p := parse(t, frame, out, len(tags))
				most, header, want := 576, 20, []byte{3, 3}
				if l3[0]>>4 == 6 {
					most, header, want = 1280, 40, []byte{1, 4}
				}
				quote := min(len(l3), most-header-8)
				if p.size != header+8+quote || !bytes.Equal(p.l4[8:], l3[:quote]) || !bytes.Equal(p.l4[:2], want) || !bytes.Equal(p.l4[4:8], make([]byte, 4)) {
					t.Errorf("length %d: answer of %d bytes, %x", n, p.size, p.l4[:8])
				}
			}
		}
	}
	echo := eth(ip4(1, 0, nil, []byte{8, 0, 0, 0, 0, 1, 0, 1}))
	if out, err := Answer(echo); err != nil || parse(t, echo, out, 0).proto != 1 {
		t.Error(err)
	}
	echo = eth(ip6(58, []byte{128, 0, 0, 0, 0, 1, 0, 1}))
	if out, err := Answer(echo); err != nil || parse(t, echo, out, 0).proto != 58 {
		t.Error(err)
	}
	// only the beginning of a packet is at hand
	whole := eth(ip4(17, 0, nil, udp(1000)))
	if out, err := Answer(whole[:128]); err != nil || parse(t, whole, out, 0).size != 20+8+128-14 {
		t.Error(err)
	}
	syn := eth(ip4(6, 0, nil, tcp(2, 1, 0, 0, string(make([]byte, 1000)))))
	if out, err := Answer(syn[:64]); err != nil || be32(parse(t, syn, out, 0).l4[8:]) != 1002 {
		t.Error(err)
	}
}

// TestNoAnswer has what must not be answered.
func TestNoAnswer(t *testing.T) {
	change := func(f []byte, at int, b ...byte) []byte {
		f = bytes.Clone(f)
		copy(f[at:], b)
		return f
	}
	u4, u6 := eth(ip4(17, 0, nil, udp(4))), eth(ip6(17, udp(4)))
	ext := func(headers ...byte) []byte { return eth(ip6(headers[0], append(bytes.Clone(headers[1:]), udp(4)...))) }
	many := []byte{60}
	for range 20 {
		many = append(many, 60, 0, 1, 4, 0, 0, 0, 0)
	}
	for name, tc := range map[string]struct {
		frame []byte
		want  error
	}{
		"empty":                 {nil, ErrTruncated},
		"short":                 {u4[:13], ErrTruncated},
		"only Ethernet":         {u4[:14], ErrTruncated},
		"ARP":                   {change(u4, 12, 8, 6), ErrNotIP},
		"three tags":            {eth(ip4(17, 0, nil, udp(4)), 1, 2, 3), ErrNotIP},
		"tag cut off":           {eth(ip4(17, 0, nil, udp(4)), 1)[:15], ErrTruncated},
		"to broadcast MAC":      {change(u4, 0, 255, 255, 255, 255, 255, 255), ErrAddress},
		"to multicast MAC":      {change(u4, 0, 1), ErrAddress},
		"from multicast MAC":    {change(u4, 6, 1), ErrAddress},
		"to 255.255.255.255":    {change(u4, 30, 255, 255, 255, 255), ErrAddress},
		"to 224.0.0.1":          {change(u4, 30, 224, 0, 0, 1), ErrAddress},
		"from 0.0.0.0":          {change(u4, 26, 0, 0, 0, 0), ErrAddress},
		"from 127.0.0.1":        {change(u4, 26, 127, 0, 0, 1), ErrAddress},
		"from 255.255.255.255":  {change(u4, 26, 255, 255, 255, 255), ErrAddress},
		"from 239.1.1.1":        {change(u4, 26, 239, 1, 1, 1), ErrAddress},
		"to ff02::1":            {change(u6, 38, 0xff, 2), ErrAddress},
		"from ::":               {change(u6, 22, make([]byte, 16)...), ErrAddress},
		"from ::1":              {change(u6, 22, append(make([]byte, 15), 1)...), ErrAddress},
		"from mapped broadcast": {change(u6, 22, append(make([]byte, 10), 255, 255, 255, 255, 255, 255)...), ErrAddress},
		"fragment":              {eth(ip4(17, 1, nil, udp(4))), ErrFragment},
		"last fragment":         {eth(ip4(17, 0x1fff, nil, udp(4))), ErrFragment},
		"first of TCP":          {eth(ip4(6, 0x2000, nil, tcp(2, 1, 0, 0, ""))), ErrFragment},
		"IPv6 fragment":         {ext(44, 17, 0, 0, 8, 0, 0, 0, 1), ErrFragment},
		"reset":                 {eth(ip4(6, 0, nil, tcp(4, 1, 0, 0, ""))), ErrReset},
		"reset ACK":             {eth(ip6(6, tcp(4|16, 1, 0, 0, ""))), ErrReset},
		"ICMP error":            {eth(ip4(1, 0, nil, []byte{3, 3, 0, 0, 0, 0, 0, 0})), ErrICMP},
		"ICMP redirect":         {eth(ip4(1, 0, nil, []byte{5, 3, 0, 0, 0, 0, 0, 0})), ErrICMP},
		"ICMP of no kind":       {eth(ip4(1, 0, nil, []byte{77, 3, 0, 0, 0, 0, 0, 0})), ErrICMP},
		"ICMP cut off":          {eth(ip4(1, 0, nil, []byte{8})), ErrTruncated},
		"ICMPv6 error":          {eth(ip6(58, []byte{1, 4, 0, 0, 0, 0, 0, 0})), ErrICMP},
		"neighbour":             {eth(ip6(58, []byte{135, 0, 0, 0, 0, 0, 0, 0})), ErrICMP},
		"ICMPv6 redirect":       {eth(ip6(58, []byte{137, 0, 0, 0, 0, 0, 0, 0})), ErrICMP},
		"ICMPv6 cut off":        {eth(ip6(58, []byte{128})), ErrTruncated},
		"IPv4 version 5":        {change(u4, 14, 0x55), ErrTruncated},
		"header of 16":          {change(u4, 14, 0x44), ErrTruncated},
		"header of 60":          {change(u4, 14, 0x4f), ErrTruncated},
		"total below header":    {change(u4, 16, 0, 19), ErrTruncated},
		"TCP cut off":           {eth(ip4(6, 0, nil, tcp(2, 1, 0, 0, "")))[:50], ErrTruncated},
		"TCP offset 4":          {change(eth(ip4(6, 0, nil, tcp(2, 1, 0, 0, ""))), 46, 0x40), ErrTruncated},
		"TCP offset 15":         {change(eth(ip4(6, 0, nil, tcp(2, 1, 0, 0, ""))), 46, 0xf0), ErrTruncated},
		"IPv6 cut off":          {u6[:53], ErrTruncated},
		"extension cut off":     {ext(60, 17, 200, 0, 0, 0, 0, 0, 0), ErrTruncated},
		"too many extensions":   {ext(many...), ErrTruncated},
	} {
		if out, err := Answer(tc.frame); !errors.Is(err, tc.want) || out != nil {
			t.Errorf("%s: %x, %v; want %v", name, out, err, tc.want)
		}
	}
}

// FuzzAnswer checks what is answered: no answer to an answer of ours, the sizes, and the input stays as it is.
func FuzzAnswer(f *testing.F) {
	for _, l3 := range [][]byte{
		ip4(6, 0, nil, tcp(2, 1, 0, 3, "x")), ip4(17, 0, make([]byte, 8), udp(30)), ip6(6, tcp(2, 1, 0, 0, "")), ip6(17, udp(2000)),
		ip6(0, append([]byte{44, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0, 1, 0, 0, 0, 9}, udp(4)...)), ip4(1, 0, nil, []byte{8, 0, 0, 0, 0, 0, 0, 0}),
		ip6(51, append([]byte{6, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, tcp(2, 1, 0, 0, "")...)),
	} {
		f.Add(eth(l3))
		f.Add(eth(l3, 7))
		f.Add(eth(l3, 7, 8))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := bytes.Clone(frame)
		out, err := Answer(frame)
		if !bytes.Equal(before, frame) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if out != nil {
				t.Fatal("an answer and an error")
			}
			return
		}
		if len(out) > 14+4*maxTags+maxAnswer6 {
			t.Fatalf("answer of %d bytes", len(out))
		}
		if again, err := Answer(out); err == nil {
			t.Fatalf("the answer %x is answered with %x", out, again)
		}
	})
}
