package ofctrl

import (
	"encoding/binary"
	"fmt"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// wireVersion is OpenFlow 1.5 in a message header (OpenFlow 1.5.1 §7.1.1).
const wireVersion = 6

// headerLen is the length of ofp_header.
const headerLen = 8

// maxMessage is the longest message, in bytes.
const maxMessage = flow.MaxMessage

// msgType is the type field of a message header (OpenFlow 1.5.1 §7.1.1, enum ofp_type).
type msgType uint8

const (
	typeHello            msgType = 0
	typeError            msgType = 1
	typeEchoRequest      msgType = 2
	typeEchoReply        msgType = 3
	typeExperimenter     msgType = 4
	typeFeaturesRequest  msgType = 5
	typeFeaturesReply    msgType = 6
	typeSetConfig        msgType = 9
	typePacketIn         msgType = 10
	typePacketOut        msgType = 13
	typeFlowMod          msgType = 14
	typeGroupMod         msgType = 15
	typeMultipartRequest msgType = 18
	typeMultipartReply   msgType = 19
	typeBarrierRequest   msgType = 20
	typeBarrierReply     msgType = 21
	typeSetAsync         msgType = 28
	typeMeterMod         msgType = 29
	typeRequestForward   msgType = 32
	typeBundleControl    msgType = 33
	typeBundleAdd        msgType = 34
)

var typeNames = map[msgType]string{
	typeHello: "HELLO", typeError: "ERROR", typeEchoRequest: "ECHO_REQUEST", typeEchoReply: "ECHO_REPLY",
	typeExperimenter:     "EXPERIMENTER",
	typeFeaturesRequest:  "FEATURES_REQUEST",
	typeFeaturesReply:    "FEATURES_REPLY",
	typeSetConfig:        "SET_CONFIG",
	typePacketIn:         "PACKET_IN",
	typePacketOut:        "PACKET_OUT",
	typeFlowMod:          "FLOW_MOD",
	typeGroupMod:         "GROUP_MOD",
	typeMultipartRequest: "MULTIPART_REQUEST",
	typeMultipartReply:   "MULTIPART_REPLY",
	typeBarrierRequest:   "BARRIER_REQUEST", typeBarrierReply: "BARRIER_REPLY", typeSetAsync: "SET_ASYNC",
	typeMeterMod: "METER_MOD", typeRequestForward: "REQUESTFORWARD", typeBundleControl: "BUNDLE_CONTROL",
	typeBundleAdd: "BUNDLE_ADD_MESSAGE",
}

func (t msgType) String() string {
	if s := typeNames[t]; s != "" {
		return s
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Experimenter identifiers.
const vendorNX = 0x00002320 // Nicira: Open vSwitch's extensions

// frame is one whole message; its length field equals len and is at least headerLen.
type frame []byte

func (f frame) version() uint8 { return f[0] }
func (f frame) typ() msgType   { return msgType(f[1]) }
func (f frame) xid() uint32    { return binary.BigEndian.Uint32(f[4:]) }
func (f frame) body() []byte   { return f[headerLen:] }

// begin appends a message header without length, and end fills it in. at is where the message starts.
func begin(b []byte, t msgType, xid uint32) (out []byte, at int) {
	at = len(b)
	b = append(b, wireVersion, byte(t), 0, 0)
	return binary.BigEndian.AppendUint32(b, xid), at
}

func end(b []byte, at int) error {
	n := len(b) - at
	if n > flow.MaxMessage {
		return fmt.Errorf("%w: %d bytes", ErrTooLong, n)
	}
	binary.BigEndian.PutUint16(b[at+2:], uint16(n))
	return nil
}

// message builds a message of its own from parts that are known to be short.
func message(t msgType, xid uint32, body ...byte) []byte {
	b, _ := begin(make([]byte, 0, headerLen+len(body)), t, xid)
	b = append(b, body...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

// pad8 appends zeros until b is a multiple of 8 bytes longer than at.
func pad8(b []byte, at int) []byte { return append(b, make([]byte, -(len(b)-at)&7)...) }

func u16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func u32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

func put16(b []byte, v uint16) []byte { return binary.BigEndian.AppendUint16(b, v) }
func put32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }
func put64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }
