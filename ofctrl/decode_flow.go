package ofctrl

import (
	"encoding/hex"
	"fmt"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// flowDesc is one entry of a flow description (OpenFlow 1.5.1 §7.3.5, ofp_flow_desc).
type flowDesc struct {
	flow          *flow.Flow
	timed         string // timeouts, flags or importance in words; "" if there are none
	packets, size uint64 // counters; size in bytes
}

const flowDescLen = 24

// flowDesc parses an entry.
func (d *decoder) flowDesc(b []byte) (fd flowDesc, err error) {
	f := &flow.Flow{Cookie: u64(b[16:])}
	f.Table, f.Priority = b[4], u16(b[6:])
	idle, hard, flags, importance := u16(b[8:]), u16(b[10:]), u16(b[12:]), u16(b[14:])
	if idle|hard|flags|importance != 0 {
		fd.timed = fmt.Sprintf("idle_timeout=%d,hard_timeout=%d,flags=%#x,importance=%d",
			idle, hard, flags, importance)
	}

	b = b[flowDescLen:]
	var k int
	if f.Match, k, err = decodeMatch(b); err != nil {
		return fd, err
	}
	b = b[k:]
	if k, fd.packets, fd.size, err = flowStats(b); err != nil {
		return fd, err
	}

	d.v6 = f.Match.EthType == flow.EthIPv6
	f.Actions, err = d.instructions(b[k:])
	fd.flow = f
	return fd, err
}

// OXS fields: class, field and length (§7.2.4).
const (
	oxsPackets = 0x80020808
	oxsBytes   = 0x80020a08
)

// flowStats parses an ofp_stats with its padding (§7.2.4) and returns its length.
func flowStats(b []byte) (n int, packets, size uint64, err error) {
	if len(b) < 4 {
		return 0, 0, 0, short("flow statistics")
	}
	length := int(u16(b[2:]))
	n = (length + 7) &^ 7
	if length < 4 || n > len(b) {
		return 0, 0, 0, fmt.Errorf("%w: flow statistics of %d bytes", ErrProtocol, length)
	}
	for s := b[4:length]; len(s) > 0; {
		if len(s) < 4 || 4+int(s[3]) > len(s) {
			return 0, 0, 0, short("flow statistics")
		}
		switch u32(s) {
		case oxsPackets:
			packets = u64(s[4:])
		case oxsBytes:
			size = u64(s[4:])
		}
		s = s[4+int(s[3]):]
	}
	return n, packets, size, nil
}

// instructions reads a list of instructions (§7.2.5). Only apply-actions becomes actions.
func (d *decoder) instructions(b []byte) ([]flow.Action, error) {
	var out []flow.Action
	for len(b) > 0 {
		if len(b) < 8 {
			return nil, short("instruction")
		}
		n := int(u16(b[2:]))
		if n < 8 || n%8 != 0 || n > len(b) {
			return nil, fmt.Errorf("%w: instruction of %d bytes", ErrProtocol, n)
		}
		if u16(b) == instrApplyActions {
			if out == nil {
				out = make([]flow.Action, 0, 4)
			}
			var err error
			if out, err = d.actions(out, b[8:n]); err != nil {
				return nil, err
			}
		} else {
			out = append(out, flow.UnknownAction{
				Text: "instruction=" + hex.EncodeToString(b[:n]), Effects: instructionEffects(b[:n])})
		}
		b = b[n:]
	}
	return out, nil
}
