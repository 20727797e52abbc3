package pipeline

import (
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// UDP packets in fragments, on the userspace datapath. Its conntrack holds the fragments of a packet until it
// has all of them, looks the packet up, and passes the fragments on in order, each with the state, the mark
// and the translation of the connection. That is all that an established connection needs. But the first
// packet of a connection has to find its Service, and only its first fragment has a port (ct_tp_dst).
// Conntrack takes one action for all fragments: that of the one that arrives last. So the first fragment is
// made to arrive last, in a zone where a connection gets the Service's mark. All fragments leave it with that
// mark (README.md, "Fragments"):
//
//  1. From zone DNAT, in order. The first fragment goes to zone order. Each later one leaves a copy in zone
//     SNAT and goes to zone order.
//  2. From zone order, in order again. The first fragment finds its frontend and goes to zone SNAT to be
//     committed, where the copies wait for it. Later ones are dropped.
//  3. From zone SNAT, the first fragment and the copies. All have the mark, and go on like packets that
//     found the frontend.
//
// Conntrack keeps the fragments of a packet apart by recirculation id, so steps 1 and 2 both happen in table
// 1 and change no register.

// markRanges is set in reg1 between the steps: loadBalancerSourceRanges apply.
const markRanges = 0x8

// maxTranslations is how many buckets that translate fit into the description of a group (TooWide).
const maxTranslations = 512

// Priorities in tableFragments. Frontends have those of table 1.
const (
	prioOrder = 400
	prioFound = 350
	prioOther = 100
)

var (
	anyFragment   = flow.Bits{Value: flow.FragAny, Mask: flow.FragAny}
	firstFragment = flow.Bits{Value: flow.FragAny, Mask: flow.FragAny | flow.FragLater}
	laterFragment = flow.Bits{Value: flow.FragAny | flow.FragLater, Mask: flow.FragAny | flow.FragLater}
)

// zoneOrder returns the conntrack zone in which fragments are only put in order. It has no connections.
func (l Layout) zoneOrder() uint16 {
	zone := uint16(1003)
	for zone == l.ZoneDNAT || zone == l.ZoneSNAT {
		zone++
	}
	return zone
}

// fragmentOrder adds the flows of tableFragments that belong to no Service.
func (b *builder) fragmentOrder() {
	if !b.Fragments {
		return
	}
	order := flow.CT{Zone: b.Layout.zoneOrder(), Table: b.Layout.table(tableServices)}
	found := flow.CT{Zone: b.Layout.ZoneSNAT, Table: b.Layout.table(tableFragments)}
	aside := found
	aside.Aside = true
	for _, f := range families {
		m := func(zone uint16, frag flow.Bits) flow.Match {
			m := ethIs(f)
			m.CTZone, m.Frag = zone, frag
			return m
		}
		b.add(tableFragments, prioOrder, 0, m(b.Layout.ZoneDNAT, firstFragment), order)
		b.add(tableFragments, prioOrder, 0, m(b.Layout.ZoneDNAT, laterFragment), aside, order)
		b.add(tableFragments, prioOrder, 0, m(order.Zone, laterFragment))
		b.add(tableFragments, prioOther, 0, m(order.Zone, firstFragment), found)
	}
	// No frontend: back to table 1, where fragments match as packets without ports.
	b.add(tableFragments, prioLast, 0, flow.Match{},
		flow.SetField{Field: flow.Reg0, Value: noFrontend, Mask: noFrontend}, b.resubmit(tableServices))
}

// fragments adds the flows for packets in fragments to a UDP frontend with endpoints: m and mark are those of
// its flow in table 1.
func (s *service) fragments(priority uint16, m flow.Match, f *k8s.Frontend, p k8s.Set, mark flow.Action) {
	if !s.Fragments || m.IPProto != flow.ProtoUDP { // TCP and SCTP segments fit
		return
	}
	enter := flow.Match{
		EthType: m.EthType, // without IPProto: later fragments of IPv6 have no protocol
		Dst:     m.Dst,
		Frag:    anyFragment,
		CTState: newConnection,
		CTMark:  flow.Bits{Mask: markService},
		Reg:     [flow.NumRegs]flow.Bits{{Mask: noFrontend}},
	}
	if m.Dst.IsValid() {
		enter = s.toService(enter)
	} else {
		enter.Reg[0] = flow.Bits{Value: toNode, Mask: toNode | noFrontend}
	}
	s.share(tableServices, prioFragments, 0, enter, s.resubmit(tableFragments))

	ranges, next := uint32(0), s.pick(p)
	switch {
	case len(f.SourceRanges) > 0:
		ranges, next = markRanges, []flow.Action{s.resubmit(tableRanges)}
	case s.sp.AffinitySeconds == 0 && len(s.sp.Endpoints(p)) > 1 && s.atNode:
		next = []flow.Action{flow.ToGroup{ID: s.byClient(p)}}
	}
	m.DstPort, m.CTProto, m.CTDstPort = 0, m.IPProto, m.DstPort
	m.CTState, m.CTZone, m.Frag = newConnection, s.Layout.zoneOrder(), firstFragment
	commit := flow.CT{
		Commit:       true,
		Zone:         s.Layout.ZoneSNAT,
		Table:        s.Layout.table(tableFragments),
		MarkFromReg1: true,
	}
	s.add(tableFragments, priority, s.id, m,
		append([]flow.Action{mark}, s.counted(setMark(ranges, markRanges), commit)...)...)

	found := ethIs(s.sp.Name.Family)
	found.CTZone = s.Layout.ZoneSNAT
	found.CTMark = flow.Bits{
		Value: s.id<<markIDShift | localBit(p) | ranges,
		Mask:  markIDMask | markLocal | markRanges,
	}
	s.addOnce(tableFragments, prioFound, s.id, found, append([]flow.Action{
		flow.Copy{Src: flow.Whole(flow.CTMark), Dst: flow.Whole(flow.Reg1)}, setMark(0, markRanges),
	}, next...)...)
}

// servesNode reports whether packets to a frontend are looked up in zone SNAT first (table 0).
func (s *service) servesNode(f k8s.Frontend) bool {
	return f.Type == k8s.NodePort || slices.Contains(s.LocalIPs, f.Address)
}

// byClient adds, once, the group that chooses an endpoint of a set by the client's address, and returns its
// id. The datapath drops a packet that is recirculated more than six times. On their way through a
// masqueraded NodePort fragments are, so that there is no pass left for the datapath's hash.
func (s *service) byClient(p k8s.Set) uint32 {
	es := s.sp.Endpoints(p)
	es = es[:min(len(es), maxTranslations)]
	g := &flow.Group{ID: s.group(p) + 1, Method: flow.HashSrc}
	if s.sp.Name.Family == k8s.IPv6 {
		g.Method = flow.HashSrc6
	}
	if slices.ContainsFunc(s.groups, func(h *flow.Group) bool { return h.ID == g.ID }) {
		return g.ID
	}
	for i, e := range es {
		g.Buckets = append(g.Buckets, flow.Bucket{
			ID: uint32(i), Weight: 1,
			Actions: []flow.Action{s.translate(e)},
		})
	}
	s.groups = append(s.groups, g)
	return g.ID
}
