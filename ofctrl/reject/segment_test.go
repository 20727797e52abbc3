package reject

import (
	"net/netip"
	"testing"
)

// A segment is read as it was written, and so is one that an ICMP error quotes; its checksums are right.
func TestSegment(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, s := range []Segment{
		{TCP: true, From: at("10.0.0.5:61234"), To: at("40.0.0.1:80"), Flags: FlagSYN, Seq: 0xfffffffe},
		{TCP: true, From: at("[fd00::5]:61234"), To: at("[fd00:40::1]:80"), Flags: FlagRST | FlagACK, Seq: 1, Ack: 2},
		{From: at("10.0.0.5:61234"), To: at("40.0.0.1:53")},
		{From: at("[fd00::5]:61234"), To: at("[fd00:40::1]:53")},
	} {
		s.EthSrc, s.EthDst = [6]byte{2, 0, 0, 0, 0, 5}, [6]byte{2, 0, 0, 0, 0, 1}
		frame := s.Frame()
		if got, err := ReadSegment(frame); err != nil || got != s {
			t.Errorf("%+v is read as %+v, %v", s, got, err)
		}
		if answered, err := Answer(frame); err != nil && s.Flags&FlagRST == 0 {
			t.Errorf("%+v: %v", s, err)
		} else if !s.TCP {
			got, err := ReadSegment(answered)
			if err != nil || got.Unreachable != s.To.Addr() || got.From != s.From || got.To != s.To {
				t.Errorf("quoted, %+v is read as %+v, %v", s, got, err)
			}
		}
		_, etherType, l3, _ := ethernet(frame)
		p, err := readIP(etherType, l3)
		if err != nil {
			t.Fatal(err)
		}
		pseudo := add(uint64(p.proto)+uint64(p.l4len), append(append([]byte{}, p.src...), p.dst...))
		if sum := fold(add(pseudo, p.l4)); sum != 0xffff {
			t.Errorf("%+v: checksum %#x", s, sum)
		}
		for n := range frame { // cut off anywhere, it is no segment, or does no harm
			_, _ = ReadSegment(frame[:n])
		}
	}
}
