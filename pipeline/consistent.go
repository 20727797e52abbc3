package pipeline

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Consistent choice (k8s.Consistent): a packet from outside to the frontend goes to tableSlots, before
// conntrack. There its client's port selects the endpoint. For an endpoint on another node the packet leaves
// with that endpoint's address and the relay port, and is not tracked here, so that any other node can do the
// same with the next packet. The endpoint's node recognizes the relay port, restores the frontend's address
// and port, and goes on as with a packet that reached it first: reg2 remembers the endpoint while conntrack
// looks the connection up, and table 1 commits it (docs/decisions/consistent-choice.md).
//
// A TCP packet in the midst of a connection that the endpoint's node does not know goes on to the endpoint
// that had the slot before (k8s.Consistent.Seconds). So a change of endpoints breaks no connection whose
// endpoint serves. It is sent on once: there it goes to that endpoint, whether its connection is known or
// not.
//
// Fragments of UDP have no ports, and go the way of other frontends.

// prioConsistent is above prioOpening: these packets choose by a slot, not in table 1.
const prioConsistent = 110

// prioChosen is above the frontend's own flows in table 1.
const (
	prioChosen  = 320
	prioUnknown = 319
)

// Priorities in tableSlots.
const (
	prioAllowed    = 40 // of a client to look up in the source ranges (reg2 is unranged): it is in one
	prioNotAllowed = 35 // and it is in none
	prioRelayed    = 30 // to an endpoint here, at the relay port
	prioSecond     = 20 // of an unknown connection (reg2 is an endpoint's number): of one slot
	prioNoMore     = 10 // and of all
)

// placeRanges is up to how many source ranges have a flow in each place where packets enter: at the
// frontend's address, and at each endpoint here. More of them have one flow each, in tableSlots, so that the
// flows are a sum of ranges and endpoints, not a product.
const placeRanges = 4

// unranged is in reg2, with the Service port's id, of packets whose client is to be looked up in the source
// ranges. No endpoint's number has this bit.
const unranged = 1 << 31

// consistent adds the flows of a Service port's consistent choice.
func (s *service) consistent() {
	c := s.sp.Consistent
	i := slices.IndexFunc(s.sp.Frontends, func(f k8s.Frontend) bool { return f.Address == c.Address })
	if i < 0 {
		return
	}
	f := &s.sp.Frontends[i]

	mark := setMark(s.mark(k8s.Anywhere, false), 0xffffffff)
	allowed := s.allowed(f)
	inSlots := len(allowed) > placeRanges

	enter := func(to netip.Addr, port uint16, actions ...flow.Action) {
		m := s.fromOutside(to, port)
		m.Reg[0] = s.near(tableTrack, prioNear, nearService, flow.Match{}, m).Reg[0]
		if inSlots {
			s.add(tableTrack, prioConsistent, s.id, m, setReg2(unranged|s.id), s.resubmit(tableSlots))
			return
		}
		for _, r := range allowed {
			m.Src = matched(r)
			s.add(tableTrack, prioConsistent, s.id, m, actions...)
		}
	}

	enter(c.Address, f.Port, mark, s.resubmit(tableSlots))
	if inSlots {
		s.lookUpRanges(allowed, mark)
	}

	serving := c.Serving()
	ids := endpointIDs(serving)
	s.slotOwners(serving, ids)

	isTCP := s.sp.Name.Protocol == "TCP"
	for _, e := range serving {
		if !e.Local {
			continue
		}
		m := s.fromOutside(c.Address, f.Port)
		m.Reg[0], m.Reg[2], m.CTState = flow.Bits{}, flow.Exactly(ids[e.Addr]), newConnection
		m = s.toService(m)

		translate := s.translate(e)
		if s.NoNullNAT && s.sameTarget(e, c.Address, f.Port) {
			translate = s.resubmit(tableOutput)
		}
		if isTCP {
			s.add(tableServices, prioUnknown, s.id, m, mark, s.resubmit(tableSlots))
			unknown := s.marked(k8s.Anywhere)
			unknown.Reg[2] = m.Reg[2]
			s.add(tableSlots, prioNoMore, s.id, unknown, s.counted(translate)...)
			m.TCPFlags = openingFlags
		}
		s.add(tableServices, prioChosen, s.id, m, append([]flow.Action{mark}, s.counted(translate)...)...)

		if slices.Contains(s.LocalIPs, e.Addr.Addr()) {
			continue // its relay port is a NodePort (notRelayed)
		}
		relayed := append(s.sendTo(netip.AddrPortFrom(c.Address, f.Port)), s.chosen(ids[e.Addr])...)
		enter(e.Addr.Addr(), c.Relay, relayed...)
		if inSlots {
			m := s.marked(k8s.Anywhere)
			m.Dst, m.IPProto, m.DstPort = host(e.Addr.Addr()), ipProto(s.sp.Name.Protocol), c.Relay
			s.add(tableSlots, prioRelayed, s.id, m, relayed...)
		}
	}
}

// slotOwners adds the flows that send the packets of each slot to its endpoint. With TCP, those of unknown
// connections go on to the endpoint that had the slot before.
func (s *service) slotOwners(serving []k8s.Endpoint, ids map[netip.AddrPort]uint32) {
	c := s.sp.Consistent
	owners := c.Slots()
	for slot, i := range owners {
		e := c.Endpoints[i]
		m := s.inSlot(slot, 0)
		if len(c.Endpoints) == 1 {
			if slot > 0 {
				break // one flow matches all
			}
			m.SrcPort = flow.Bits{}
		}
		if e.Local {
			s.add(tableSlots, prioLast, s.id, m, s.chosen(ids[e.Addr])...)
		} else {
			relay := s.sendTo(netip.AddrPortFrom(e.Addr.Addr(), c.Relay))
			s.add(tableSlots, prioLast, s.id, m, append(relay, s.resubmit(tableDeliver))...)
		}
	}

	seconds := c.Seconds(owners)
	isTCP := s.sp.Name.Protocol == "TCP"
	for slot, i := range seconds {
		if owner := c.Endpoints[owners[slot]]; isTCP && i >= 0 && owner.Local && !serving[i].Local {
			s.add(tableSlots, prioSecond, s.id, s.inSlot(slot, ids[owner.Addr]),
				append(s.sendTo(netip.AddrPortFrom(serving[i].Addr.Addr(), c.Relay)),
					flow.SetField{Field: flow.Reg0, Value: sentOn, Mask: sentOn},
					s.resubmit(tableDeliver))...)
		}
	}
}

// lookUpRanges adds the flows that mark packets of allowed clients. Those of others go on as if they had
// entered at no such place.
func (s *service) lookUpRanges(allowed []netip.Prefix, mark flow.Action) {
	m := ethIs(s.sp.Name.Family)
	m.Reg[2] = flow.Exactly(unranged | s.id)
	s.add(tableSlots, prioNotAllowed, s.id, m, setReg2(0), s.ct(s.Layout.ZoneDNAT, tableServices))
	for _, r := range allowed {
		m.Src = matched(r)
		s.add(tableSlots, prioAllowed, s.id, m, mark, setReg2(0), s.resubmit(tableSlots))
	}
}

func setReg2(value uint32) flow.Action {
	return flow.SetField{Field: flow.Reg2, Value: uint64(value), Mask: 0xffffffff}
}

// inSlot matches packets in tableSlots whose client's port is in a slot; of those whose connection is unknown
// if id is not 0.
func (s *service) inSlot(slot int, id uint32) flow.Match {
	m := s.marked(k8s.Anywhere)
	m.IPProto = ipProto(s.sp.Name.Protocol)
	value, mask := k8s.ConsistentPorts(slot)
	m.SrcPort = flow.Bits{Value: uint32(value), Mask: uint32(mask)}
	if id != 0 {
		m.Reg[2] = flow.Exactly(id)
	}
	return m
}

// allowed returns the client prefixes that a frontend serves. Other clients are dropped in table 12.
func (s *service) allowed(f *k8s.Frontend) []netip.Prefix {
	if len(f.SourceRanges) > 0 {
		return f.SourceRanges
	}
	return []netip.Prefix{netip.PrefixFrom(s.sp.Name.Family.Unspecified(), 0)}
}

// fromOutside matches packets from outside the cluster to an address and port. The source is external in
// reg0.
func (s *service) fromOutside(to netip.Addr, port uint16) flow.Match {
	m := toAddr(to)
	m.IPProto, m.DstPort = ipProto(s.sp.Name.Protocol), port
	m.Reg[0] = flow.Bits{Value: uint32(k8s.Outside), Mask: sourceMask}
	if m.IPProto == flow.ProtoUDP {
		m.Frag.Mask = flow.FragAny
	}
	return m
}

// chosen looks the connection up and remembers the endpoint that it is to have if it is new.
func (s *service) chosen(id uint32) []flow.Action {
	return []flow.Action{setReg2(id), s.ct(s.Layout.ZoneDNAT, tableServices)}
}

// sendTo writes a packet's destination.
func (s *service) sendTo(to netip.AddrPort) []flow.Action {
	addr, port := flow.IPDst, flow.TCPDst
	if to.Addr().Is6() {
		addr = flow.IPv6Dst
	}
	if s.sp.Name.Protocol == "UDP" {
		port = flow.UDPDst
	}
	return []flow.Action{
		flow.SetAddr{Field: addr, Addr: to.Addr()},
		flow.SetField{Field: port, Value: uint64(to.Port()), Mask: 0xffff},
	}
}

// notRelayed returns a line for each endpoint that has the address of the node, where the relay port is a
// NodePort.
func (c *Config) notRelayed(sp *k8s.ServicePort) (lines []string) {
	if sp.Consistent == nil {
		return nil
	}
	for _, e := range sp.Consistent.Serving() {
		if e.Local && slices.Contains(c.LocalIPs, e.Addr.Addr()) {
			lines = append(lines, "Service "+sp.Name.String()+
				": endpoint "+e.Addr.String()+" has the node's address: "+
				"with the annotation "+
				k8s.AnnotationConsistent+" connections that other nodes send on to it fail")
		}
	}
	return lines
}
