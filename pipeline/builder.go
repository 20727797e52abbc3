package pipeline

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// objects collects the flows and groups of one source: a Service port, or the common part.
type objects struct {
	flows  []*flow.Flow
	groups []*flow.Group
	// shared flows may be needed by several sources, which all define them identically. A flow stays until
	// its last source is gone.
	shared []*flow.Flow
}

// append adds the flows and groups of other objects, without the shared ones.
func (o *objects) append(other objects) {
	o.flows = append(o.flows, other.flows...)
	o.groups = append(o.groups, other.groups...)
}

// builder makes flows in one layout; its methods hide table bases, cookies and address families.
type builder struct {
	*Config
	objects
	isShared keys // of shared
	isOnce   keys // of what addOnce adds
}

func (b *builder) flow(
	table uint8, priority uint16, id uint32,
	m flow.Match, actions ...flow.Action,
) *flow.Flow {
	if table == tableEntry && b.Layout.passes() { // not again what nkp has passed on
		m.Clear31 = b.Layout.ExitRegister
	}
	return &flow.Flow{
		Key:     flow.Key{Table: b.Layout.table(table), Priority: priority, Match: m},
		Cookie:  b.Layout.cookie(cookieStatic, id),
		Actions: actions,
	}
}

func (b *builder) add(table uint8, priority uint16, id uint32, m flow.Match, actions ...flow.Action) {
	b.flows = append(b.flows, b.flow(table, priority, id, m, actions...))
}

// share adds a shared flow, once for each source. id is 0, or cookieUnserved.
func (b *builder) share(table uint8, priority uint16, id uint32, m flow.Match, actions ...flow.Action) {
	if f := b.flow(table, priority, id, m, actions...); b.isShared.enter(f.Key) {
		b.shared = append(b.shared, f)
	}
}

// addOnce adds a flow unless it was called with the same key before. Flows that add adds have other keys.
func (b *builder) addOnce(table uint8, priority uint16, id uint32, m flow.Match, actions ...flow.Action) {
	if f := b.flow(table, priority, id, m, actions...); b.isOnce.enter(f.Key) {
		b.flows = append(b.flows, f)
	}
}

// keys is a set of keys of flows.
type keys struct {
	few  []flow.Key // while a map costs more than it saves
	many map[flow.Key]bool
}

// enter adds a key and reports whether it is new.
func (k *keys) enter(key flow.Key) bool {
	if k.many == nil {
		if slices.Contains(k.few, key) {
			return false
		}
		if k.few = append(k.few, key); len(k.few) > 16 {
			k.many = map[flow.Key]bool{}
			for _, f := range k.few {
				k.many[f] = true
			}
		}
		return true
	}
	known := k.many[key]
	k.many[key] = true
	return !known
}

func (b *builder) resubmit(table uint8) flow.Action {
	return flow.Resubmit{Table: b.Layout.table(table)}
}

// ct looks a packet up in zone and applies the connection's translation if there is an entry.
func (b *builder) ct(zone uint16, table uint8) flow.Action {
	return flow.CT{Zone: zone, Table: b.Layout.table(table), NAT: flow.NAT{Kind: flow.NATExisting}}
}

// setMark writes the bits of reg1 under mask.
func setMark(value, mask uint32) flow.Action {
	return flow.SetField{Field: flow.Reg1, Value: uint64(value), Mask: uint64(mask)}
}

// newConnection matches tracked packets of connections without a reply so far. opening matches these and
// untracked packets: those that bypassed conntrack because they open a connection (table 3).
var (
	newConnection = flow.Bits{Value: flow.CTNew | flow.CTTracked, Mask: flow.CTNew | flow.CTTracked}
	opening       = flow.Bits{Mask: flow.CTEst | flow.CTRel | flow.CTInvalid}
)

// openingFlags matches a SYN that is no answer.
var openingFlags = flow.Bits{Value: flow.TCPSyn, Mask: flow.TCPSyn | flow.TCPAck}

func ethType(f k8s.Family) uint16 {
	if f == k8s.IPv6 {
		return flow.EthIPv6
	}
	return flow.EthIPv4
}

func ethTypeOf(a netip.Addr) uint16 { return ethType(k8s.FamilyOf(a)) }

func ipProto(p k8s.Protocol) uint8 {
	switch p {
	case "UDP":
		return flow.ProtoUDP
	case "SCTP":
		return flow.ProtoSCTP
	}
	return flow.ProtoTCP
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// toAddr matches packets to one address.
func toAddr(a netip.Addr) flow.Match { return flow.Match{EthType: ethTypeOf(a), Dst: host(a)} }

// fromNet matches packets from a prefix, toNet packets to one.
func fromNet(p netip.Prefix) flow.Match {
	return flow.Match{EthType: ethTypeOf(p.Addr()), Src: matched(p)}
}

func toNet(p netip.Prefix) flow.Match {
	return flow.Match{EthType: ethTypeOf(p.Addr()), Dst: matched(p)}
}

// matched returns the prefix as a match field: unset if it contains every address.
func matched(p netip.Prefix) netip.Prefix {
	if p.Bits() == 0 {
		return netip.Prefix{}
	}
	return p.Masked()
}

func ethIs(f k8s.Family) flow.Match { return flow.Match{EthType: ethType(f)} }
