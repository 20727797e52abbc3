package ofctrl

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// NXT_CT_FLUSH, by which Open vSwitch 3.1 and later forget single connections (openvswitch/nicira-ext.h,
// struct nx_ct_flush).
const nxtCTFlush = 32

// Properties of NXT_CT_FLUSH, and those nested in a tuple. Each has a type and a length that covers its own
// header and not the padding to 8 bytes that follows it.
const (
	ctOrigTuple  = 0
	ctReplyTuple = 1
	ctZoneID     = 2

	tupleSrc     = 0 // 16 bytes, an IPv4 address mapped into IPv6
	tupleDst     = 1
	tupleSrcPort = 2
	tupleDstPort = 3
)

// ctFlush appends the message that flushes the connections of a filter.
func ctFlush(b []byte, xid uint32, f flow.CTFilter) ([]byte, error) {
	if !f.Dst.Addr().IsValid() {
		return b, errors.New("connections are flushed by their destination")
	}
	b, at := begin(b, typeExperimenter, xid)
	b = put32(put32(b, vendorNX), nxtCTFlush)
	b = append(b, f.IPProto, 0, 0, 0, 0, 0, 0, 0)
	b = ctTuple(b, ctOrigTuple, tupleDst, tupleDstPort, f.Dst)
	if f.Replier.Addr().IsValid() {
		b = ctTuple(b, ctReplyTuple, tupleSrc, tupleSrcPort, f.Replier)
	}
	b = append(b, 0, ctZoneID, 0, 6)
	b = append(put16(b, f.Zone), 0, 0)
	return b, end(b, at)
}

func ctTuple(b []byte, typ, addr, port uint16, ap netip.AddrPort) []byte {
	at := len(b)
	b = append(put16(b, typ), 0, 0, 0, 0, 0, 0) // length; padding
	ip := ap.Addr().As16()
	prop := len(b)
	b = append(put16(put16(b, addr), 4+16), ip[:]...)
	b = pad8(b, prop)
	if ap.Port() != 0 {
		b = put16(put16(put16(b, port), 4+2), ap.Port())
		b = append(b, 0, 0)
	}
	binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
	return pad8(b, at)
}
