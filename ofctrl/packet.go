package ofctrl

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// PacketIn is a packet that a flow sent to the controller (OpenFlow 1.5.1 §7.4.1).
type PacketIn struct {
	Cookie uint64 // of the flow
	Table  uint8
	InPort uint32 // where it came in
	Data   []byte // the Ethernet frame, as far as it was sent
}

func decodePacketIn(f frame) (*PacketIn, error) {
	b := f.body()
	if len(b) < 16 {
		return nil, short("packet-in")
	}
	p := &PacketIn{Table: b[7], Cookie: u64(b[8:])}
	m, n, err := decodeMatch(b[16:])
	if err != nil {
		return nil, err
	}
	b = b[16+n:]
	if len(b) < 2 {
		return nil, short("packet-in")
	}
	p.InPort = m.InPort
	p.Data = bytes.Clone(b[2:])
	return p, nil
}

// xidPacketOut is the transaction id of every packet-out. No call has it, and an error under it is not taken
// for one without an id.
const xidPacketOut = math.MaxUint32

// PacketOut sends a frame through actions as if it had come in by inPort (OpenFlow 1.5.1 §7.3.6). To send it
// back where a packet came from, give that port and the action Output{PortInPort}.
func (c *Conn) PacketOut(ctx context.Context, inPort uint32, data []byte, actions ...flow.Action) error {
	p := getBuffer()
	b, at := begin(*p, typePacketOut, xidPacketOut)
	b = put32(b, noBuffer)
	b = append(b, 0, 0, 0, 0) // length of the actions, padding
	m := len(b)
	b = append(b, 0, 1, 0, 12) // the match with the port
	b = append(put32(put32(b, oxmInPort), inPort), 0, 0, 0, 0)
	from := len(b)
	b, err := newEncoder().actions(b, actions)
	if err != nil {
		return fmt.Errorf("packet-out: %w", err)
	}
	if len(b)-from > maxMessage {
		return fmt.Errorf("packet-out: %w", ErrTooLong)
	}
	binary.BigEndian.PutUint16(b[m-4:], uint16(len(b)-from))
	b = append(b, data...)
	if err := end(b, at); err != nil {
		return fmt.Errorf("packet-out: %w", err)
	}
	*p = b
	return c.send(ctx, p)
}
