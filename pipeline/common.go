package pipeline

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

var families = []k8s.Family{k8s.IPv4, k8s.IPv6}

// Bits of reg0. Bits 0-1: the k8s.ClientKind of the sender. Bit 2: it is addressed to the node, where
// NodePorts are. Bit 4: it is ICMP, and its connection was looked up. Bit 5: its source address must have
// been masqueraded by now. Bit 7: it goes on to another node. Earlier versions of the pipeline used bit 3 for
// that, with another check. It is not used again, because the datapath's cached flows of such a version still
// set it for some time after an upgrade. Bits 8-22: near.go. Bits 23-24: pings.go.
const (
	sourceMask  = 3
	toNode      = 4
	lookedUp    = 16
	masqueraded = 32
	noFrontend  = 64
	sentOn      = 128
)

// Priorities of the fixed flows. Services' own are in service.go.
const (
	prioBypass      = 300 // table 0: what must never be tracked
	prioOtherPort   = 210 // table 0: the same, to one on another port of the bridge than LOCAL
	prioNode        = 200 // table 0: to the node's address: may be a reply to masqueraded traffic
	prioFromNode    = 120
	prioFromUplink0 = 115 // table 0: not a pod, where every other port leads to one
	prioFromPod     = 110
	prioFromAny     = 100
	prioEstablished = 400 // table 1
	prioFragments   = 350 // table 1: UDP in fragments to a Service's address
	prioUnanswered  = 250 // table 1: below every frontend
	prioUntracked   = 240 // table 1: past the tracker so far, and no frontend that takes such packets
	prioUnserved    = 220 // table 1: a port that a ClusterIP does not serve
	prioHairpinIP   = 216 // table 1: a hairpin address
	prioUnallocated = 215 // table 1: an address of the Service range that no Service has
	prioInvalid     = 214 // table 1: to a Service range, and none of a connection's
	prioNodePorts   = 212 // table 1: directly from a port of the node that may be a NodePort
	prioFromUplink  = 210 // table 1: past the guards
	prioGuard       = 200 // table 1
	prioHairpin     = 400 // table 2
	prioNodeItself  = 390 // table 2: from the node to itself
	prioToNode      = 380 // table 2: to the node from others
	prioMasqNode    = 320 // table 2: from the node's own address
	prioMasquerade6 = 310 // table 2: an ICMPv6 error
	prioMasquerade  = 300
	prioServiceOut  = 200
	prioRangeReset  = 110 // table 12: see prioFrontendReset
	prioInRange     = 100 // table 12
	prioNotInRange  = 50  // table 12
	prioNoPort      = 300 // table 30: not masqueraded, and should be
	prioTagged      = 270 // table 30: the same, to the node itself, by way of flows of others
	prioNodeVLAN    = 260 // table 30: from the node's VLAN to its MAC
	prioVLAN        = 250 // table 30: past all that leaves by a port directly
	prioBack        = 220 // table 30: out by the port that it came in by
	prioToOthers    = 210 // table 30: to an endpoint, by way of flows of others
	prioToPod       = 200
	prioUnchanged   = 160 // table 30: still addressed to a Service range
	prioSentOn      = 150
	prioRoute       = 20  // and the length of the prefix
	prioOpening     = 100 // table 3
	prioICMPError   = 90  // table 3
	prioICMP        = 80  // table 3
	prioDefault     = 1
	prioResting     = 1 // table 14
	prioLast        = 0
)

// Source ports of masqueraded connections; as many connections may be open to one endpoint. They end below
// the NodePorts (the API server's default --service-node-port-range, 30000 to 32767). Zone 1002 does not see
// the NodePort connections of zone 1001, so it could assign a port at which the endpoint's own NodePort
// connection arrives; its packets would be taken for replies. They are also below the kernel's default range
// for the node's own connections (net.ipv4.ip_local_port_range, 32768 to 60999); where that reaches below,
// Config has others of them.
const (
	MasqueradePortMin = 1024
	MasqueradePortMax = 29999
)

// nodePorts are the ports 30000 to 32767 as masked matches.
var nodePorts = []flow.Bits{
	{Value: 0x7530, Mask: 0xfff0},
	{Value: 0x7540, Mask: 0xffc0},
	{Value: 0x7580, Mask: 0xff80},
	{Value: 0x7600, Mask: 0xfe00},
	{Value: 0x7800, Mask: 0xf800},
}

// NextHopMAC is the MAC of the router to which the node's kernel sends packets for Services. It exists only
// in the node's neighbour table and in table 30. Locally administered.
var NextHopMAC = flow.MAC{0x0e, 'n', 'k', 'p', 0, 1}

// rejectMaxLen is how much of a refused packet the controller needs to see: an ICMPv6 error quotes at most
// 1,232 bytes of it (RFC 4443 §3.1: the error fits the minimum MTU of 1,280).
const rejectMaxLen = 1500

// common adds the flows that do not depend on any Service.
func (b *builder) common() {
	b.entry()
	for _, f := range families {
		b.classify(tableEntry, f)
		b.classify(tableUnSNAT, f)
	}
	b.track()
	b.serviceDefaults()
	b.fragmentOrder()
	b.output()
	b.deliver()
	b.canary()
	b.pings()
}

// entry adds table 0: packets that bypass nkp, and possible replies to masqueraded traffic. All other packets
// are classified and tracked. The flow of the lowest priority forwards where others have no flows at all, or
// the bridge would forward nothing (fail_mode=secure). Its priority is 1, because a flow of others at 0 must
// be able to come.
func (b *builder) entry() {
	for _, t := range []uint8{135, 136} { // neighbour solicitation and advertisement, RFC 4861 §4.3, §4.4
		m := flow.Match{EthType: flow.EthIPv6, IPProto: flow.ProtoICMPv6, ICMPType: t}
		b.add(tableEntry, prioBypass, 0, m, b.Layout.exit()...)
	}
	for _, multicast := range []string{"224.0.0.0/4", "ff00::/8"} {
		p := netip.MustParsePrefix(multicast)
		b.add(tableEntry, prioBypass, 0, flow.Match{EthType: ethTypeOf(p.Addr()), Dst: p}, b.Layout.exit()...)
	}
	for _, ip := range b.LocalIPs {
		next := b.resubmit(tableUnSNAT)
		if !b.Elsewhere(k8s.FamilyOf(ip)) && slices.Contains(b.NodeIPs, ip) {
			next = b.ct(b.Layout.ZoneSNAT, tableUnSNAT)
		}
		b.add(tableEntry, prioNode, 0, b.nearEntry(ip),
			flow.SetField{Field: flow.Reg0, Value: toNode, Mask: toNode}, next)
	}
	for _, ip := range b.OtherPorts {
		if m := b.nearEntry(ip); b.Uplink != 0 {
			m.InPort = b.Uplink
			b.add(tableEntry, prioOtherPort, 0, m, b.Layout.exit()...)
		}
	}
	for _, ip := range b.HairpinIPs {
		b.add(tableEntry, prioNode, 0, b.nearEntry(ip), b.ct(b.Layout.ZoneSNAT, tableUnSNAT))
	}
	if b.Others == flow.OthersNone || !b.Layout.passes() {
		rest := b.flow(tableEntry, prioDefault, 0, flow.Match{}, b.Layout.forward())
		rest.Match.Clear31 = 0 // what nkp passes on, too
		b.flows = append(b.flows, rest)
	}
}

// classify records where a packet comes from and whether it would be masqueraded on its way to a ClusterIP,
// and sends it to table 3 to be tracked.
func (b *builder) classify(table uint8, f k8s.Family) {
	router := b.router()
	from := func(priority uint16, m flow.Match, source k8s.ClientKind) {
		var as []flow.Action
		if source != k8s.Outside {
			as = append(as, flow.SetField{Field: flow.Reg0, Value: uint64(source), Mask: sourceMask})
		}
		if router.Route(k8s.ClusterIP, k8s.Anywhere, f, source).Masquerade {
			as = append(as, setMark(markMasquerade, markMasquerade))
		}
		b.add(table, priority, 0, m, append(as, b.resubmit(tableTrack))...)
	}

	at := func(port uint32) flow.Match {
		m := ethIs(f)
		m.InPort = port
		return m
	}

	from(prioFromNode, at(flow.PortLocal), k8s.ThisNode)
	for _, ip := range b.LocalIPs {
		if k8s.FamilyOf(ip) == f {
			from(prioFromNode,
				b.near(table, prioNearSource, nearSource, flow.Match{}, fromNet(host(ip))),
				k8s.ThisNode)
		}
	}

	anyone := k8s.Outside
	switch d := &router.Detector; {
	case d.Bridge != "":
		from(prioFromUplink0, at(b.Uplink), k8s.Outside)
		anyone = k8s.Pod
	case d.InterfacePrefix != "":
		for _, port := range b.PodPorts {
			from(prioFromPod, at(port), k8s.Pod)
		}
	default:
		for _, p := range d.CIDRs {
			if k8s.FamilyOf(p.Addr()) == f {
				from(prioFromPod, fromNet(p), k8s.Pod)
			}
		}
	}
	from(prioFromAny, ethIs(f), anyone)
}

// track adds table 3. A SYN to a Service range needs no conntrack lookup before its Service is known, because
// the commit takes an existing entry into account (a retransmitted SYN keeps its endpoint, one on a finished
// connection begins another). Only ClusterIPs without session affinity take such packets. For every other
// frontend, which may be inside a Service range too, and for packets that are refused or dropped there,
// serviceDefaults sends the packet to conntrack.
func (b *builder) track() {
	for _, p := range b.ServiceCIDRs {
		m := b.near(tableTrack, prioNear, nearService, flow.Match{}, notToNode(toNet(p)))
		m.IPProto = flow.ProtoTCP
		m.TCPFlags = openingFlags
		b.add(tableTrack, prioOpening, 0, m, b.resubmit(tableServices))
	}
	for _, f := range families {
		b.icmpErrors(f)
		b.add(tableTrack, prioLast, 0, ethIs(f), b.ct(b.Layout.ZoneDNAT, tableServices))
	}
}

// icmpErrors translates ICMP errors, both the outer header and the quoted packet. An error belongs to the
// connection of the quoted packet (ct_state rel). A plain ct(nat) is not enough for a Service's connections:
//   - The kernel translates an error about the endpoint's packets, which is in the client's direction, only
//     when it commits (net/openvswitch/conntrack.c, ovs_ct_nat).
//   - Open vSwitch's userspace conntrack mistakes an outer ICMPv6 header for one of the quoted protocol when
//     it adjusts the checksum to a new address (lib/conntrack.c, nat_packet_ipv6). That changes the MTU of
//     an error about UDP, and the quoted source of one about TCP. Where the address is the right one
//     already, nothing is adjusted. The quoted source is written afterwards where the outer destination
//     changes, so that only UDP is left with a wrong MTU there.
//
// So the connection is looked up first, without translation.
func (b *builder) icmpErrors(f k8s.Family) {
	icmp := func(state, mark, reg0 flow.Bits) flow.Match {
		return flow.Match{
			EthType: ethType(f), IPProto: icmpProto(f),
			CTState: state, CTMark: mark,
			Reg: [flow.NumRegs]flow.Bits{reg0},
		}
	}
	related := func(direction uint32) flow.Match {
		state := flow.Bits{
			Value: flow.CTTracked | flow.CTRel | direction,
			Mask:  flow.CTTracked | flow.CTRel | flow.CTReply,
		}
		return icmp(state,
			flow.Bits{Value: markService, Mask: markService},
			flow.Bits{Value: lookedUp, Mask: lookedUp})
	}

	b.add(tableTrack, prioICMP, 0, icmp(flow.Bits{}, flow.Bits{}, flow.Bits{Mask: lookedUp}),
		flow.SetField{Field: flow.Reg0, Value: lookedUp, Mask: lookedUp},
		flow.CT{Zone: b.Layout.ZoneDNAT, Table: b.Layout.table(tableTrack)})
	b.add(tableTrack, prioICMPError, 0, related(0), flow.CT{
		Commit: true,
		Zone:   b.Layout.ZoneDNAT,
		Table:  b.Layout.table(tableServices),
		NAT:    flow.NAT{Kind: flow.NATExisting},
	})
	if f == k8s.IPv6 {
		b.add(tableTrack, prioICMPError, 0, related(flow.CTReply),
			flow.Copy{Src: flow.Whole(flow.CTIPv6Dst), Dst: flow.Whole(flow.IPv6Src)},
			b.ct(b.Layout.ZoneDNAT, tableServices))
	}
}

func icmpProto(f k8s.Family) uint8 {
	if f == k8s.IPv6 {
		return flow.ProtoICMPv6
	}
	return flow.ProtoICMP
}

// notToNode excludes addresses of the node from a match, because they may lie inside a Service range.
func notToNode(m flow.Match) flow.Match {
	m.Reg[0].Mask |= toNode
	return m
}

// serviceDefaults adds the flows of table 1 that belong to no Service, and the reject table.
func (b *builder) serviceDefaults() {
	established := flow.Bits{Value: flow.CTTracked, Mask: flow.CTTracked | flow.CTNew}

	// A known connection without a reply is still new. The userspace datapath has already translated its
	// packet. The kernel's ct(nat) does not translate it (net/openvswitch/conntrack.c, ovs_ct_nat): it still
	// has the Service's address and goes to the Service's group again, whose ct(commit,nat) applies the
	// endpoint that was chosen first.
	//
	// Table 2 reads reg1, not ct_mark: of packets that reach the kernel's ct(commit) together, only the first
	// leaves it with the mark in its key (ovs_ct_set_mark: a mark that the connection has already is not
	// written to the key).
	for _, mark := range []uint32{markService, markService | markMasquerade} {
		bits := flow.Bits{Value: mark, Mask: markService | markMasquerade}
		set := setMark(mark, markService|markMasquerade)
		next := append([]flow.Action{set}, b.counted(b.resubmit(tableOutput))...)
		b.add(tableServices, prioEstablished, 0, flow.Match{CTState: established, CTMark: bits}, next...)
		b.add(tableServices, prioUnanswered, 0, flow.Match{CTState: newConnection, CTMark: bits}, next...)
	}

	if len(b.ServiceCIDRs) > 0 {
		for _, f := range families {
			m := ethIs(f)
			m.CTState = flow.Bits{Mask: flow.CTTracked}
			b.add(tableServices, prioUntracked, 0, m, b.ct(b.Layout.ZoneDNAT, tableServices))
		}
	}

	drop := func(priority uint16, m flow.Match) {
		m.CTState = newConnection
		b.add(tableServices, priority, cookieDrops, m)
	}
	for _, p := range b.ServiceCIDRs {
		drop(prioUnallocated, b.near(tableServices, prioNear, nearService, opensService, notToNode(toNet(p))))

		// Nothing translates a packet that conntrack takes for invalid. It would go to the router, and come
		// back from it until its hop limit is used up. Table 30 drops those of which this shows only after
		// the choice of an endpoint.
		invalid := flow.Bits{Value: flow.CTTracked | flow.CTInvalid, Mask: flow.CTTracked | flow.CTInvalid}
		m := b.near(tableServices, prioNear, nearService, flow.Match{CTState: invalid}, notToNode(toNet(p)))
		m.CTState = invalid
		b.add(tableServices, prioInvalid, cookieDrops, m)
	}

	for _, ip := range b.HairpinIPs {
		// Only answers are sent there.
		drop(prioHairpinIP, b.near(tableServices, prioNear, nearService, opensService, toAddr(ip)))
	}

	b.fromNodePorts()
	if b.Uplink != 0 {
		b.add(tableServices, prioFromUplink, 0, flow.Match{InPort: b.Uplink}, b.resubmit(tableOutput))
	}
	b.add(tableServices, prioLast, 0, flow.Match{}, b.resubmit(tableOutput))
	b.refuse()
}

// fromNodePorts commits direct TCP connections whose source is an address of the node with a port that may be
// a NodePort: the kernel's masquerading takes any port from 1024 on. Without an entry their answers, which
// are addressed to that port, would be taken for connections to the NodePort. As a guard does, the commit
// moves a connection to another port if an entry has its reply direction already: here the entry of a
// NodePort's client that has the endpoint's address and port.
//
// A NodePort's answers to a client, which have the same addresses and ports, can pass the bridge a second
// time, from the router, and must not be committed. In TCP they are no SYNs; in UDP nothing distinguishes
// them.
func (b *builder) fromNodePorts() {
	for _, f := range families {
		commit := flow.CT{Commit: true, Zone: b.Layout.ZoneDNAT, Table: b.Layout.table(tableOutput)}
		if !b.NoNullNAT {
			commit.NAT = flow.NAT{Kind: flow.NATSrc, Addr: f.Unspecified()}
		}
		for _, ports := range nodePorts {
			m := ethIs(f)
			m.CTState, m.IPProto, m.TCPFlags, m.SrcPort = newConnection, flow.ProtoTCP, openingFlags, ports
			m.Reg[0] = flow.Bits{Value: uint32(k8s.ThisNode), Mask: sourceMask}
			b.add(tableServices, prioNodePorts, 0, m, commit)
		}
	}
}

// output is table 2: masquerade in its own zone, then the exit. The hairpin flows of pods are shared
// (hairpin).
func (b *builder) output() {
	for _, f := range families {
		if ip, ok := b.masqueradeIP(f); ok {
			m := clientDirection(ethType(f), markService|markMasquerade)
			b.add(tableOutput, prioMasquerade, 0, m, b.masqueradeAs(ip)...)
			if b.NoNullNAT {
				b.masqueradeNode(m, ip)
			}
			if f == k8s.IPv6 { // see icmpErrors
				m.IPProto = flow.ProtoICMPv6
				source := flow.SetAddr{Field: flow.IPv6Src, Addr: ip}
				b.add(tableOutput, prioMasquerade6, 0, m,
					append([]flow.Action{source}, b.masqueradeAs(ip)...)...)
			}
		}
	}

	for _, ip := range b.LocalIPs {
		if !b.Elsewhere(k8s.FamilyOf(ip)) {
			b.nodeAsEndpoint(ip)
		}
	}

	b.add(tableOutput, prioServiceOut, 0,
		flow.Match{Reg: [flow.NumRegs]flow.Bits{1: {Value: markService, Mask: markService}}},
		b.resubmit(tableDeliver))
	b.add(tableOutput, prioLast, 0, flow.Match{}, b.Layout.exit()...)
	for _, p := range b.Pods {
		b.hairpin(p.IP)
	}
}

// clientDirection matches packets of the client's direction whose reg1 has all bits of mark.
func clientDirection(ethType uint16, mark uint32) flow.Match {
	return flow.Match{
		EthType: ethType,
		CTState: flow.Bits{Value: flow.CTTracked, Mask: flow.CTTracked | flow.CTReply},
		Reg:     [flow.NumRegs]flow.Bits{1: {Value: mark, Mask: mark}},
	}
}

// masqueradeAs returns the actions that give a connection the source address ip, so that replies come back to
// the bridge. If no port is free, Open vSwitch's userspace conntrack (3.1) passes the packet on untranslated
// and creates no connection. Table 30 drops such packets. It recognizes them by their ct_mark, because every
// connection that exists gets one here. ct_state's snat bit shows the same, but a NIC cannot match it
// (docs/offload.md).
func (b *builder) masqueradeAs(ip netip.Addr) []flow.Action {
	return []flow.Action{
		flow.SetField{Field: flow.Reg0, Value: masqueraded, Mask: masqueraded},
		flow.CT{
			Commit: true, Zone: b.Layout.ZoneSNAT, Table: b.Layout.table(tableDeliver), MarkFromReg1: true,
			NAT: flow.NAT{Kind: flow.NATSrc, Addr: ip, PortMin: b.MasqueradeMin, PortMax: b.MasqueradeMax},
		},
	}
}

// masqueradeNode commits, without translation, connections whose source is the masquerade address already: a
// translation to the same address may keep the port and so change nothing. The entry keeps other connections
// from being masqueraded to that port. It gets a mark as those do, so that the replies of both share cached
// flows.
func (b *builder) masqueradeNode(m flow.Match, ip netip.Addr) {
	own := m
	own.Src = host(ip)
	b.add(tableOutput, prioMasqNode, 0, b.near(tableOutput, prioNearMasq, nearSource, m, own), flow.CT{
		Commit: true, Zone: b.Layout.ZoneSNAT, Table: b.Layout.table(tableDeliver), MarkFromReg1: true,
	})
}

// nodeAsEndpoint adds the flows for Services whose endpoint is the node itself. Masqueraded as the node, a
// packet would have its destination as its source address, and the kernel drops such packets. Clients keep
// their addresses instead, as they do when kube-proxy delivers to a local process, because the node's replies
// pass the bridge in any case. The node as its own client gets the hairpin address.
func (b *builder) nodeAsEndpoint(ip netip.Addr) {
	toIt := func(mark uint32) flow.Match {
		m := clientDirection(ethTypeOf(ip), mark)
		m.Dst = host(ip)
		return b.near(tableOutput, prioNear, nearLocal, clientDirection(m.EthType, markService), m)
	}
	b.add(tableOutput, prioToNode, 0, toIt(markService|markMasquerade), b.resubmit(tableDeliver))
	if hairpin := k8s.FamilyOf(ip).First(b.HairpinIPs); hairpin.IsValid() {
		m := toIt(markService)
		m.Reg[0].Value |= uint32(k8s.ThisNode)
		m.Reg[0].Mask |= sourceMask
		b.add(tableOutput, prioNodeItself, 0, m, b.masqueradeAs(hairpin)...)
	}
}

// hairpin masquerades the packets that a local pod sends to itself through a Service: without it the pod
// would answer itself directly, past the translation.
func (b *builder) hairpin(pod netip.Addr) {
	ip, ok := b.podHairpinIP(k8s.FamilyOf(pod))
	if !ok || slices.Contains(b.LocalIPs, pod) {
		return // pods of the host's network have the node's address: nodeAsEndpoint
	}
	m := clientDirection(ethTypeOf(pod), markService)
	m.Src, m.Dst = host(pod), host(pod)
	m = b.near(tableOutput, prioNear, nearPods, clientDirection(m.EthType, markService), m)
	b.share(tableOutput, prioHairpin, 0, m, b.masqueradeAs(ip)...)
}

// routes adds the node's routes to table 30, for what the node sends to NextHopMAC and what others send to
// the node. The default routes lead to the uplink. Other next hops may be behind any port: the bridge has
// learned which, or the flows of others know it. It forwards what it would route as what LOCAL sends: in its
// VLAN, and back to the port where it came from, too.
func (b *builder) routes() {
	routes := slices.Clone(b.Routes)
	for _, f := range families {
		all := netip.PrefixFrom(f.Unspecified(), 0)
		isDefault := func(r Route) bool { return r.Dst == all }
		if !b.GatewayMAC.IsZero() && !slices.ContainsFunc(routes, isDefault) {
			routes = append(routes, Route{Dst: all, MAC: b.GatewayMAC})
		}
	}

	for _, f := range families {
		if len(routes) == 0 {
			return
		}
		again := ethIs(f) // addressed to a pod here, and sent on (consistent.go)
		again.Reg[0] = flow.Bits{Value: sentOn, Mask: sentOn}
		b.add(tableDeliver, prioSentOn, 0, again, setEth(flow.EthDst, b.NodeMAC),
			flow.SetField{Field: flow.Reg0, Mask: sentOn}, b.resubmit(tableDeliver))
	}

	for _, r := range routes {
		m := toNet(r.Dst)
		if r.Dst.Bits() > nearLengths[len(nearLengths)-1] {
			m = b.near(tableDeliver, prioNear, nearLocal, flow.Match{}, m)
		}
		priority := prioRoute + uint16(r.Dst.Bits())
		m.EthDst = NextHopMAC
		if r.Closed {
			b.add(tableDeliver, priority, 0, m)
		}
		if r.MAC.IsZero() {
			m.EthDst = b.NodeMAC
			b.add(tableDeliver, priority, 0, m, flow.ClearInPort{}, flow.Output{Port: flow.PortLocal})
			continue
		}

		sent := b.leave() // by the node itself, so that its Ethernet source and port are true
		routed := sent
		if r.Dst.Bits() == 0 && b.Uplink != 0 && !b.NodeVLAN {
			routed = []flow.Action{flow.Output{Port: b.Uplink}}
			if !b.OthersDecide() {
				sent = routed
			}
		}

		b.add(tableDeliver, priority, 0, m, append([]flow.Action{setEth(flow.EthDst, r.MAC)}, sent...)...)
		m.EthDst = b.NodeMAC
		b.add(tableDeliver, priority, 0, m, append([]flow.Action{
			setEth(flow.EthSrc, b.NodeMAC),
			setEth(flow.EthDst, r.MAC),
			flow.DecTTL{},
			flow.FromLocal{},
		}, routed...)...)
	}
}

func setEth(f flow.Field, m flow.MAC) flow.Action {
	return flow.SetField{Field: f, Value: m.Uint64(), Mask: 1<<48 - 1}
}

// leave returns the actions for packets of Services that leave as the bridge forwards.
func (b *builder) leave() []flow.Action {
	if b.OthersDecide() {
		return b.Layout.exit()
	}
	return []flow.Action{b.Layout.forward()}
}

// deliver is table 30: the next hop of Service packets. Only they come here.
func (b *builder) deliver() {
	if b.LocalDelivery {
		for _, p := range b.Pods {
			var as []flow.Action
			if !b.GatewayMAC.IsZero() {
				as = append(as, setEth(flow.EthSrc, b.GatewayMAC))
			}
			b.deliverTo(p.IP, p.OFPort, append(as, setEth(flow.EthDst, p.MAC))...)
		}
	}

	if !b.NodeMAC.IsZero() {
		for _, ip := range b.LocalIPs {
			b.deliverTo(ip, flow.PortLocal, setEth(flow.EthDst, b.NodeMAC))
			// Others see the tag, without which the bridge would not forward to LOCAL.
			if b.NodeVLAN && b.OthersDecide() {
				m := b.nearDelivery(ip)
				m.Tagged, m.EthDst, m.CTState = true, b.NodeMAC, flow.Bits{Mask: flow.CTReply}
				b.add(tableDeliver, prioTagged, 0, m, b.Layout.exit()...)
			}
		}
		b.routes()
		// Packets that the node would route. LOCAL gets them without a tag, and those that leave get the tag
		// of LOCAL's VLAN.
		if b.NodeVLAN {
			b.add(tableDeliver, prioNodeVLAN, 0,
				flow.Match{Tagged: true, EthDst: b.NodeMAC},
				flow.PopVLAN{}, b.resubmit(tableDeliver))
		}
	}

	leave := b.leave()
	// What leaves by a port directly is in no VLAN of the bridge's: a pod in one would leave it, with a tag
	// of its own, or untagged for the native one. So such packets go on as the bridge forwards.
	b.add(tableDeliver, prioVLAN, 0, flow.Match{Tagged: true}, leave...)
	for _, port := range b.VLANPorts {
		if port != b.Uplink && port != flow.PortLocal {
			b.add(tableDeliver, prioVLAN, 0, flow.Match{InPort: port}, leave...)
		}
	}

	// Conntrack had no room for the connection, or takes the packet for invalid: it was not translated. Pods
	// and the node may have addresses in a Service range; they come first.
	for _, p := range b.ServiceCIDRs {
		b.add(tableDeliver, prioUnchanged, cookieDrops,
			b.near(tableDeliver, prioNear, nearLocal, flow.Match{}, toNet(p)))
	}

	// Connections that could not be masqueraded: the client would get replies from an address that it does
	// not know.
	for _, f := range families {
		// SCTP has no ports in Open vSwitch's own conntrack.
		for _, proto := range []uint8{flow.ProtoTCP, flow.ProtoUDP} {
			m := ethIs(f)
			m.IPProto = proto
			m.CTMark = flow.Bits{Mask: markService}
			m.Reg[0] = flow.Bits{Value: masqueraded, Mask: masqueraded}
			b.add(tableDeliver, prioNoPort, cookieDrops, m)
		}
	}

	b.add(tableDeliver, prioLast, 0, flow.Match{}, leave...)
}

// deliverTo adds the flows for packets to an address on this bridge. set are the actions that set their
// Ethernet addresses, the destination last. Where others decide, packets to an endpoint go on to them. Their
// source address and ingress port stay, so that a learning switch learns nothing wrong. nkp sends by itself
// what leaves by the port that it came in by, and answers: they come from the Service's address, which no
// policy about pods can know.
func (b *builder) deliverTo(ip netip.Addr, port uint32, set ...flow.Action) {
	m := b.nearDelivery(ip)
	out := append(slices.Clone(set), flow.ClearInPort{}, flow.Output{Port: port})
	b.add(tableDeliver, prioToPod, 0, m, out...)
	if b.OthersDecide() {
		back, client := m, m
		back.InPort = port
		client.CTState = flow.Bits{Mask: flow.CTReply}
		b.add(tableDeliver, prioBack, 0, back, out...)
		b.add(tableDeliver, prioToOthers, 0, client,
			append(slices.Clone(set[len(set)-1:]), b.Layout.exit()...)...)
	}
}
