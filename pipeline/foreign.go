package pipeline

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Shared reports whether others may have flows in a table of nkp's. That is table 0, where all packets enter
// the bridge.
func (l Layout) Shared(table uint8) bool { return table == 0 }

// Precedes reports whether packets to a Service can match a foreign flow of a shared table before nkp's
// flows. They are unicast IP.
func (l Layout) Precedes(f *flow.Flow) bool {
	t, group := f.Match.EthType, f.Match.EthDst[0]&1 != 0 // IEEE 802-2014, 8.2.2: the bit of group addresses
	return f.Priority >= prioFromAny && !group && (t == 0 || t == flow.EthIPv4 || t == flow.EthIPv6)
}

// Enters reports whether a packet that enters the bridge can have the conntrack state and the registers of a
// match: it is not tracked, and its registers are 0.
func Enters(m *flow.Match) bool {
	return m.CTState.Value == 0 &&
		m.CTMark.Value == 0 &&
		!slices.ContainsFunc(m.Reg[:], func(r flow.Bits) bool { return r.Value != 0 })
}

// Ends reports whether the way of a packet that enters the bridge and opens a connection ends with a flow
// that it matches: it does not go on to another table. Such a packet of TCP is a plain SYN. Fields that Match
// cannot represent are taken not to match.
func Ends(f *flow.Flow) bool {
	m := &f.Match
	opens := m.TCPFlags.Value == flow.TCPSyn&m.TCPFlags.Mask
	return m.Unknown == "" && opens && Enters(m) && !slices.ContainsFunc(f.Actions, mayResubmit)
}

// mayResubmit reports whether the packet may go on to another table. That is also assumed of unknown actions,
// of which goto_table is one.
func mayResubmit(a flow.Action) bool {
	switch a := a.(type) {
	case flow.Resubmit, flow.ToGroup, flow.UnknownAction:
		return true
	case flow.CT:
		return a.Table != flow.NoTable
	}
	return false
}

// order lists nkp's tables in the order in which packets pass through them; those of session affinity count
// as one.
var order = [][]uint8{
	{tableEntry},
	{tableUnSNAT},
	{tableTrack},
	{tableServices},
	{tableFragments},
	{tableRanges},
	{tablePins, tablePinned, tableSeed, tableLearn},
	{tableWide}, {tableCount}, {tableReject}, {tableOutput}, {tableDeliver}}

// rank returns the place of a table in order; ok is false if it is none of nkp's.
func (l Layout) rank(table uint8) (place int, ok bool) {
	place = slices.IndexFunc(order, func(same []uint8) bool {
		return slices.Contains(same, table-l.TableBase)
	})
	return place, place >= 0
}

// MayReturn reports whether packets that match a flow in one of nkp's tables may come back to that table. The
// flow is another owner's, or one of nkp's that another program has changed. Where it goes is known of the
// shared table only, for others have flows there that lead to tables of their own. A flow that only counts in
// a register on its way to its own table ends (near.go), and so does one that marks the packet as passed on:
// those that undo that are not looked for here (Returns).
func (l Layout) MayReturn(f *flow.Flow) bool {
	from, _ := l.rank(f.Table)
	again := flow.Action(flow.Resubmit{Table: f.Table})
	if len(f.Actions) == 2 && f.Actions[1] == again && counts(f.Actions[0], &f.Match) {
		return false
	}

	mark := flow.Action(flow.SetField{Field: flow.RegField(l.ExitRegister), Value: passed, Mask: passed})
	marks := l.passes() && slices.Contains(f.Actions, mark)
	goes := func(table uint8) bool {
		switch to, ours := l.rank(table); {
		case marks && table == 0: // no flow of nkp's matches it there
			return false
		case ours:
			return to <= from
		default:
			return !l.Shared(f.Table) && int(table) != l.NextTable
		}
	}

	return slices.ContainsFunc(f.Actions, func(a flow.Action) bool {
		switch a := a.(type) {
		case flow.Resubmit:
			return goes(a.Table)
		case flow.CT:
			return a.Table != flow.NoTable && goes(a.Table)
		case flow.ToGroup, flow.UnknownAction:
			return !l.Shared(f.Table)
		}
		return false
	})
}

// ExitTable returns the table where packets go on that nkp has nothing more to do with. ok is false if they
// leave by NORMAL.
func (l Layout) ExitTable() (table uint8, ok bool) {
	return uint8(max(l.NextTable, 0)), l.passes() || l.NextTable >= 0
}

// PassedOn reports whether a foreign flow can match a packet that nkp has passed on: IP, with the exit's bit
// set if there is one.
func (l Layout) PassedOn(f *flow.Flow) bool {
	m := &f.Match
	return (m.Clear31 != l.ExitRegister || !l.passes()) &&
		(m.EthType == 0 || m.EthType == flow.EthIPv4 || m.EthType == flow.EthIPv6)
}

// Returns reports whether actions may lead a packet that nkp has passed on back to nkp's flows: they may
// clear the exit's bit, or lead to one of nkp's tables.
func (l Layout) Returns(e *flow.Effects) bool {
	return l.passes() && e.Clears>>l.ExitRegister&1 != 0 ||
		slices.ContainsFunc(l.Tables(), func(t uint8) bool {
			return e.LeadTo(t) && !(l.passes() && l.Shared(t))
		})
}

// counts reports whether an action increases a register whose bits the match has.
func counts(a flow.Action, m *flow.Match) bool {
	set, ok := a.(flow.SetField)
	if !ok || set.Field != flow.Reg0 {
		return false
	}
	had := m.Reg[0]
	return uint64(had.Mask)&set.Mask == set.Mask && set.Value&set.Mask > uint64(had.Value)&set.Mask
}

// GroupID returns the id of the Service port that one of nkp's groups belongs to; 0: to none.
func (l Layout) GroupID(group uint32) uint32 { return l.groupID(group) }

// Meets reports whether a client's packet to a frontend of some Service can match the protocol, destination
// and port of m.
func (c *Compiler) Meets(m *flow.Match) bool {
	for _, p := range c.ports {
		n := &p.sp.Name
		otherFamily := m.EthType != 0 && m.EthType != ethType(n.Family)
		if otherFamily || m.IPProto != 0 && m.IPProto != ipProto(n.Protocol) {
			continue
		}
		for i := range p.sp.Frontends {
			f := &p.sp.Frontends[i]
			if m.DstPort != 0 && m.DstPort != f.Port || f.ShadowedBy != "" {
				continue
			}
			to := func(ip netip.Addr) bool {
				return k8s.FamilyOf(ip) == n.Family && (!m.Dst.IsValid() || m.Dst.Contains(ip))
			}
			if f.Address.IsValid() {
				if to(f.Address) {
					return true
				}
			} else if slices.ContainsFunc(c.cfg.LocalIPs, to) { // a NodePort
				return true
			}
		}
	}
	return false
}
