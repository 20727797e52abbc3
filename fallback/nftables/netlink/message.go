//go:build linux

package netlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// The netlink header and the netfilter header behind it, and an attribute's header, in bytes.
const (
	headerSize    = 16
	genericSize   = 4
	attributeSize = 4
)

// maxElements bounds the bytes of the elements in one message: an attribute's length has 16 bits.
const maxElements = 60_000

func family(f k8s.Family) byte {
	if f == k8s.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// message is a netlink message, or several, under construction.
type message struct{ b []byte }

// begin begins a message and returns its offset, for end.
func (m *message) begin(kind, flags uint16, seq uint32, fam byte, id uint16) int {
	start := len(m.b)
	m.b = append(m.b, make([]byte, headerSize)...)
	h := m.b[start:]
	binary.NativeEndian.PutUint16(h[4:], kind)
	binary.NativeEndian.PutUint16(h[6:], unix.NLM_F_REQUEST|flags)
	binary.NativeEndian.PutUint32(h[8:], seq)
	m.b = append(m.b, fam, unix.NFNETLINK_V0, byte(id>>8), byte(id))
	return start
}

func (m *message) end(start int) {
	binary.NativeEndian.PutUint32(m.b[start:], uint32(len(m.b)-start))
}

func (m *message) attr(kind uint16, data []byte) {
	m.b = binary.NativeEndian.AppendUint16(m.b, uint16(attributeSize+len(data)))
	m.b = binary.NativeEndian.AppendUint16(m.b, kind)
	m.b = append(m.b, data...)
	m.pad()
}

func (m *message) pad() {
	for len(m.b)%4 != 0 {
		m.b = append(m.b, 0)
	}
}

func (m *message) text(kind uint16, s string) { m.attr(kind, append([]byte(s), 0)) }

func (m *message) number(kind uint16, n uint32) { m.attr(kind, binary.BigEndian.AppendUint32(nil, n)) }

// tableName is the attribute of the table's name, the same in all kinds of messages about what is in a table
// (NFTA_TABLE_NAME and others).
const tableName = unix.NFTA_TABLE_NAME

// object adds the names of a table and of an object in it; kind is the attribute of the latter.
func (m *message) object(table string, kind uint16, name string) {
	m.text(tableName, table)
	m.text(kind, name)
}

// nest begins an attribute that holds attributes, and returns its offset, for endNest.
func (m *message) nest(kind uint16) int {
	start := len(m.b)
	m.attr(kind|unix.NLA_F_NESTED, nil)
	return start
}

func (m *message) endNest(start int) {
	binary.NativeEndian.PutUint16(m.b[start:], uint16(len(m.b)-start))
}

// The attributes of messages that golang.org/x/sys/unix lacks.
const (
	setDescConcat      = 2    // NFTA_SET_DESC_CONCAT
	setFieldLen        = 1    // NFTA_SET_FIELD_LEN
	setElemKeyEnd      = 10   // NFTA_SET_ELEM_KEY_END
	setElemExpressions = 0x11 // NFTA_SET_ELEM_EXPRESSIONS
	setElemCatchall    = 2    // NFT_SET_ELEM_CATCHALL
	setHandle          = 0x10 // NFTA_SET_HANDLE
	setExpr            = 0x11 // NFTA_SET_EXPR
	setConcat          = 0x80 // NFT_SET_CONCAT
	setDataTypeVerdict = 0xffffff00
	verdictGoto        = uint32(0xfffffffc) // NFT_GOTO, -4
	verdictJump        = uint32(0xfffffffd) // NFT_JUMP, -3
	batchBegin         = unix.NFNL_MSG_BATCH_BEGIN
	batchEnd           = unix.NFNL_MSG_BATCH_END
	subsystem          = unix.NFNL_SUBSYS_NFTABLES
	udataKeyByteOrder  = 0 // NFTNL_UDATA_SET_KEYBYTEORDER
	udataDataByteOrder = 1
	udataKeyTypeof     = 3
	udataDataTypeof    = 4
	udataInterval      = 6
	byteOrderBigEndian = 2
)

// typeNumber is nft's number of a type (TYPE_* in nftables' datatype.h), by which it prints elements.
var typeNumber = map[rules.Type]uint32{rules.Proto: 12, rules.Port: 13, rules.Number: 4}

func numberOf(f k8s.Family, t rules.Type) uint32 {
	switch {
	case t == rules.Addr && f == k8s.IPv6:
		return 8
	case t == rules.Addr:
		return 7
	}
	return typeNumber[t]
}

// concatenated returns nft's number of a concatenation of types, and its size in bytes.
func concatenated(f k8s.Family, types []rules.Type) (number, size uint32) {
	for _, t := range types {
		number = number<<6 | numberOf(f, t)
		size += uint32(t.Size(f)+3) &^ 3
	}
	if len(types) == 1 {
		size = uint32(types[0].Size(f))
	}
	return number, size
}
