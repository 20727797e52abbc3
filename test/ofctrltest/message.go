package ofctrltest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// Types of messages (§7.1.1).
const (
	Hello            = 0
	Error            = 1
	EchoRequest      = 2
	EchoReply        = 3
	Experimenter     = 4
	FeaturesRequest  = 5
	FeaturesReply    = 6
	PacketIn         = 10
	PortStatus       = 12
	FlowMod          = 14
	GroupMod         = 15
	MultipartRequest = 18
	MultipartReply   = 19
	BarrierRequest   = 20
	BarrierReply     = 21
	MeterMod         = 29
	BundleControl    = 33
	BundleAdd        = 34
)

// Types of multipart messages (§7.3.5.1).
const (
	FlowDesc   = 1
	Aggregate  = 2
	TableStats = 3
	GroupStats = 6
	GroupDesc  = 7
	MeterDesc  = 10
)

const headerLen = 8

// Message is an OpenFlow message with its header (§7.1).
type Message []byte

// Type is the type of message.
func (m Message) Type() byte { return m[1] }

// XID is the transaction's identifier.
func (m Message) XID() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// Body is what follows the header.
func (m Message) Body() []byte { return m[headerLen:] }

// NewMessage returns a message of OpenFlow 1.5.
func NewMessage(typ byte, xid uint32, body ...byte) Message {
	m := append(make(Message, 0, headerLen+len(body)), 6, typ, 0, 0)
	binary.BigEndian.PutUint16(m[2:], uint16(headerLen+len(body)))
	m = binary.BigEndian.AppendUint32(m, xid)
	return append(m, body...)
}

// BundleDone returns the answer that reports success to a control message of a bundle (§7.3.9.2): its type is the request's plus one.
func BundleDone(m Message) Message {
	body := bytes.Clone(m.Body())
	body[5]++
	return NewMessage(BundleControl, m.XID(), body...)
}

// readMessage reads the next message.
func readMessage(r *bufio.Reader) (Message, error) {
	head, err := r.Peek(headerLen)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(head[2:]))
	if n < headerLen {
		return nil, fmt.Errorf("a message of %d bytes is shorter than its header", n)
	}
	m := make(Message, n)
	_, err = io.ReadFull(r, m)
	return m, err
}
