package ofctrl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// NXT_CT_FLUSH, by which Open vSwitch 3.1 and later delete single conntrack entries
// (openvswitch/nicira-ext.h, struct nx_ct_flush).
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

// probeEnd is both ends of a connection that cannot exist: an address for documentation (RFC 5737), port 1.
var probeEnd = netip.MustParseAddrPort("192.0.2.1:1")

// ProbeCTFlush checks whether the switch can delete single conntrack entries, as Open vSwitch 3.1 and later
// can, by deleting one that cannot exist. It returns nil, ErrNoCTFlush with the switch's answer, or the
// connection's error.
func (c *Conn) ProbeCTFlush(ctx context.Context) error {
	const what = "deletions of connections"
	errs, err := c.doBatch(ctx, what, 1, func(b []byte, _ int, xid uint32) ([]byte, error) {
		b, at := beginCTFlush(b, xid, 17)
		// Given one complete direction, the switch looks up that entry instead of scanning all entries.
		b, tuple := beginTuple(b, ctOrigTuple)
		b = ctEnd(b, tupleSrc, tupleSrcPort, probeEnd)
		b = ctEnd(b, tupleDst, tupleDstPort, probeEnd)
		b = endTuple(b, tuple)
		return endCTFlush(b, at, 0)
	})
	if err != nil {
		return err
	}
	if e := errs[0]; e != nil {
		return noCTFlush(e)
	}
	return nil
}

// Flush deletes the conntrack entries that the filters select. It returns when the switch has done so.
// Meanwhile the switch does nothing else, and it scans all its entries for each filter without Src. An error
// wraps ErrNoCTFlush or the switch's refusal, of one filter, or is that of the connection or context.
func (c *Conn) Flush(ctx context.Context, filters []flow.CTFilter) error {
	const what = "deletions of conntrack entries"
	errs, err := c.doBatch(ctx, what, len(filters), func(b []byte, i int, xid uint32) ([]byte, error) {
		return ctFlush(b, xid, filters[i])
	})
	if err != nil {
		return err
	}
	for i, e := range errs {
		return fmt.Errorf("delete conntrack entries %s: %w", filters[i], noCTFlush(e))
	}
	return nil
}

// noCTFlush wraps ErrNoCTFlush around the error of a switch that does not know the message.
func noCTFlush(e *SwitchError) error {
	unknown := e.Code == codeBadType || e.Code == codeBadVendor || e.Code == codeBadSubtype
	if e.Type == errBadRequest && unknown {
		return fmt.Errorf("%w (%w)", ErrNoCTFlush, e)
	}
	return e
}

// ctFlush appends the message that flushes the connections of a filter.
func ctFlush(b []byte, xid uint32, f flow.CTFilter) ([]byte, error) {
	if !f.Dst.Addr().IsValid() {
		return b, errors.New("conntrack filter without a destination")
	}
	b, at := beginCTFlush(b, xid, f.IPProto)
	b, tuple := beginTuple(b, ctOrigTuple)
	if f.Src.IsValid() {
		b = ctEnd(b, tupleSrc, tupleSrcPort, f.Src)
	}
	b = endTuple(ctEnd(b, tupleDst, tupleDstPort, f.Dst), tuple)
	if f.Replier.Addr().IsValid() {
		b, tuple = beginTuple(b, ctReplyTuple)
		b = endTuple(ctEnd(b, tupleSrc, tupleSrcPort, f.Replier), tuple)
	}
	return endCTFlush(b, at, f.Zone)
}

func beginCTFlush(b []byte, xid uint32, proto uint8) ([]byte, int) {
	b, at := begin(b, typeExperimenter, xid)
	b = put32(put32(b, vendorNX), nxtCTFlush)
	return append(b, proto, 0, 0, 0, 0, 0, 0, 0), at
}

func endCTFlush(b []byte, at int, zone uint16) ([]byte, error) {
	b = append(b, 0, ctZoneID, 0, 6)
	b = append(put16(b, zone), 0, 0)
	return b, end(b, at)
}

func beginTuple(b []byte, typ uint16) ([]byte, int) {
	at := len(b)
	return append(put16(b, typ), 0, 0, 0, 0, 0, 0), at // length; padding
}

func endTuple(b []byte, at int) []byte {
	binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
	return pad8(b, at)
}

// ctEnd appends an address and, unless it is 0, a port, as properties of these types.
func ctEnd(b []byte, addr, port uint16, ap netip.AddrPort) []byte {
	ip := ap.Addr().As16()
	at := len(b)
	b = append(put16(put16(b, addr), 4+16), ip[:]...)
	b = pad8(b, at)
	if ap.Port() != 0 {
		b = put16(put16(put16(b, port), 4+2), ap.Port())
		b = append(b, 0, 0)
	}
	return b
}
