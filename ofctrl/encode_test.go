//go:build linux

package ofctrl

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// TestRoundTrip encodes actions and matches and decodes them without a switch.
func TestRoundTrip(t *testing.T) {
	// TestShapes meets all other fields.
	for name, h := range map[string]uint32{"NXM_OF_ETH_DST": nxmEthDst, "NXM_OF_ETH_SRC": nxmEthSrc} {
		if want := field(name, false).MarshalHeader(); h != want {
			t.Errorf("%s: %#x, libOpenflow has %#x", name, h, want)
		}
	}
	if f, _ := unmasked(0x0001d307); f == nxmCTState {
		t.Error("an odd length passes for a masked field")
	}
	e, d := newEncoder(), newDecoder()
	for _, v6 := range []bool{false, true} {
		d.v6 = v6
		for _, as := range actionShapes(v6) {
			b, err := e.actions(nil, as)
			must(t, err)
			got, err := d.actions(nil, b)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(as) {
				t.Errorf("%v: %v, %v", as, got, err)
			}
		}
	}
	for _, m := range matchShapes() {
		b, err := match(nil, &m, false)
		must(t, err)
		got, n, err := decodeMatch(b)
		if err != nil || n != len(b) || got != m {
			t.Errorf("%v: %v (%d of %d bytes), %v", m, got, n, len(b), err)
		}
	}
}

// TestEveryBitCounts changes single bits of what a switch describes: what is decoded then must be something else than before, or
// unknown, or an error. A difference that is decoded as none is never repaired. Bits that the specification calls padding are exempt,
// and so are counters.
func TestEveryBitCounts(t *testing.T) {
	e, d := newEncoder(), newDecoder()
	flip := func(b []byte, exempt func(i int) bool, what any, same func(b []byte) bool) {
		t.Helper()
		if !same(b) {
			t.Fatalf("%v: is not decoded as it was encoded", what)
		}
		for i := range b {
			for bit := 0; bit < 8 && !exempt(i); bit++ {
				changed := slices.Clone(b)
				changed[i] ^= 1 << bit
				if same(changed) {
					t.Errorf("%v: bit %d of byte %d does not count: %x", what, bit, i, b)
				}
			}
		}
	}
	for _, v6 := range []bool{false, true} {
		d.v6 = v6
		for _, as := range actionShapes(v6) {
			for _, a := range as {
				b, err := e.actions(nil, []flow.Action{a})
				must(t, err)
				flip(b, func(i int) bool { return paddingOf(b, i) }, a, func(b []byte) bool {
					got, err := d.actions(nil, b)
					return err == nil && fmt.Sprintf("%#v", got) == fmt.Sprintf("%#v", []flow.Action{a})
				})
			}
		}
	}
	for _, m := range matchShapes() {
		b, err := match(nil, &m, false)
		must(t, err)
		length := int(u16(b[2:]))
		// Fields of UDP and SCTP differ in a bit, and those of TCP's and UDP's source; a switch takes the one of the protocol alone (§7.2.3.6).
		port := func(i int) bool {
			return i >= 2 && i+2 <= len(b) && slices.Contains([]uint32{oxmUDPDst, oxmSCTPDst, oxmTCPSrc, oxmUDPSrc, masked(oxmTCPSrc), masked(oxmUDPSrc)}, u32(b[i-2:]))
		}
		flip(b, func(i int) bool { return i >= length || port(i) }, m, func(b []byte) bool {
			got, _, err := decodeMatch(b)
			return err == nil && got == m
		})
	}
	flows := 0
	for _, f := range seedFrames(t) {
		if f.typ() != typeMultipartReply || u16(f.body()) != mpFlowDesc {
			continue
		}
		must(t, records(f.body()[mpHeaderLen:], "", flowDescLen, 0, func(b []byte) error {
			flows++
			want, err := d.flowDesc(b)
			must(t, err)
			flip(b[:flowDescLen], func(i int) bool { return i < 4 || i == 5 }, want.flow, func(head []byte) bool {
				got, err := d.flowDesc(append(head, b[flowDescLen:]...))
				return err == nil && got.timed == want.timed && fmt.Sprint(got.flow) == fmt.Sprint(want.flow)
			})
			return nil
		}))
	}
	if flows == 0 {
		t.Error("no flow descriptions among the frames")
	}
}

// paddingOf reports whether byte i of an encoded action is padding, or is ignored for another field's sake (OpenFlow 1.5.1 §7.2.6,
// openvswitch/nicira-ext.h).
func paddingOf(b []byte, i int) bool {
	switch {
	case u16(b) == actOutput && u32(b[4:]) != flow.PortController: // a length is for the controller alone
		return i >= 8
	case u16(b) == actOutput:
		return i >= 10
	case u16(b) == actDecTTL:
		return i >= 4
	case u16(b) == actSetField:
		return i >= 8+int(b[7])
	case u16(b) == actCopyField:
		return i == 10 || i == 11 || i >= 20
	case u16(b) != actExperimenter:
		return false
	}
	switch u16(b[8:]) {
	case nxResubmitTable:
		return i >= 13
	case nxClone:
		return i >= 10 && i < cloneHeaderLen || i >= cloneHeaderLen && paddingOf(b[cloneHeaderLen:], i-cloneHeaderLen)
	case nxCT:
		for at := ctHeaderLen; at <= i; at += int(u16(b[at+2:])) {
			if n := int(u16(b[at+2:])); i < at+n {
				return paddingOf(b[at:at+n], i-at)
			}
		}
		return i >= 19 && i < 22
	case nxNAT:
		end := natHeaderLen
		for flag, size := range map[uint16]int{natIPv4Min: 4, natIPv6Min: 16, natProtoMin: 2, natProtoMax: 2} {
			if u16(b[14:])&flag != 0 {
				end += size
			}
		}
		return i == 10 || i == 11 || i >= end
	case nxLearn, nxLearn2: // a header of 0 ends the specifications; the shapes have two bytes after it
		return i >= len(b)-2
	}
	return false
}

// TestSizes compares the sizes that package flow computes with encodings.
func TestSizes(t *testing.T) {
	e := newEncoder()
	var bs []flow.Bucket
	for _, v6 := range []bool{false, true} {
		for _, as := range actionShapes(v6) {
			bs = append(bs, flow.Bucket{ID: uint32(len(bs)), Actions: as})
		}
	}
	for _, b := range bs {
		raw, err := e.bucket(nil, &b)
		if err != nil || len(raw) != b.EncodedSize() {
			t.Errorf("%v: %d bytes, EncodedSize says %d; %v", b, len(raw), b.EncodedSize(), err)
		}
	}
	for m := flow.DPHash; m < flow.UnknownMethod; m++ {
		g := &flow.Group{ID: 1, Method: m, Buckets: bs}
		raw, err := e.groupPart(nil, 1, g, g.Buckets, 0)
		if err != nil || len(raw)+16 != g.EncodedSize() {
			t.Errorf("method %d: %d bytes, EncodedSize says %d; %v", m, len(raw), g.EncodedSize(), err)
		}
		for _, limit := range []int{200, 500, 1000, 5000, maxMessage} {
			n := 0
			for i, part := range g.Parts(limit) {
				raw, err := e.groupPart(nil, 1, g, part, i)
				if err != nil || len(raw)+16 > limit && len(part) > 1 {
					t.Errorf("limit %d: part %d has %d bytes; %v", limit, i, len(raw)+16, err)
				}
				for _, b := range part {
					if b.ID != uint32(n) {
						t.Errorf("limit %d: bucket %d at place %d", limit, b.ID, n)
					}
					n++
				}
			}
			if n != len(bs) {
				t.Errorf("limit %d: %d of %d buckets", limit, n, len(bs))
			}
		}
	}
}

// TestWideLimit finds the widest group by size and compares with what Open vSwitch's description would need.
func TestWideLimit(t *testing.T) {
	g := &flow.Group{}
	for !g.TooWide() {
		g.Buckets = append(g.Buckets, flow.Bucket{Weight: 1, Actions: []flow.Action{dnat("10.0.0.1", 80)}})
	}
	if n := len(g.Buckets) - 1; n != (65535-16-16-40)/88 {
		t.Errorf("%d buckets", n)
	}
}

// Padding of the instruction before the actions is zero (§7.2.5). The match is the shortest, of 8 bytes.
func TestInstructionPadding(t *testing.T) {
	f := &flow.Flow{Actions: []flow.Action{flow.Output{Port: flow.PortNormal}}}
	b, err := new(encoder).flowAdd(nil, 1, f)
	const at = 48 + 8
	if err != nil || len(b) < at+8 || b[at+1] != instrApplyActions || [4]byte(b[at+4:]) != [4]byte{} {
		t.Errorf("%x, %v", b, err)
	}
}
