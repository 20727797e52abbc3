package flow

import (
	"bytes"
	"cmp"
	"net/netip"
	"strings"
)

// compareFlows orders flows by table, descending priority, match and cookie. It compares fields instead of
// formatted text, because there may be many flows.
func compareFlows(a, b *Flow) int {
	if n := cmp.Compare(a.Table, b.Table); n != 0 {
		return n
	}
	if n := cmp.Compare(b.Priority, a.Priority); n != 0 {
		return n
	}
	if n := a.Match.compare(&b.Match); n != 0 {
		return n
	}
	return cmp.Compare(a.Cookie, b.Cookie)
}

// compare defines a total order of matches. It compares the fields that are most likely to differ first.
func (m *Match) compare(o *Match) int {
	if n := comparePrefixes(m.Dst, o.Dst); n != 0 {
		return n
	}
	if n := cmp.Compare(m.DstPort, o.DstPort); n != 0 {
		return n
	}
	for i := range m.Reg {
		if n := m.Reg[i].compare(o.Reg[i]); n != 0 {
			return n
		}
	}
	if n := m.CTMark.compare(o.CTMark); n != 0 {
		return n
	}

	return cmp.Or(
		comparePrefixes(m.Src, o.Src),
		m.CTState.compare(o.CTState),
		cmp.Compare(m.CTSrcPort, o.CTSrcPort),
		cmp.Compare(m.CTDstPort, o.CTDstPort),
		cmp.Compare(m.CTZone, o.CTZone),
		m.Frag.compare(o.Frag),
		m.SrcPort.compare(o.SrcPort),
		m.TCPFlags.compare(o.TCPFlags),
		cmp.Compare(m.InPort, o.InPort),
		cmp.Compare(m.EthType, o.EthType),
		bytes.Compare(m.EthDst[:], o.EthDst[:]),
		cmp.Compare(btoi(m.Tagged), btoi(o.Tagged)),
		cmp.Compare(m.IPProto, o.IPProto),
		cmp.Compare(m.CTProto, o.CTProto),
		cmp.Compare(m.ICMPType, o.ICMPType),
		cmp.Compare(m.Clear31, o.Clear31),
		strings.Compare(m.Unknown, o.Unknown),
	)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (b Bits) compare(o Bits) int {
	return cmp.Or(cmp.Compare(b.Value, o.Value), cmp.Compare(b.Mask, o.Mask))
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
