package pipeline

import (
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Pings of Services' addresses are answered in table 3 (docs/decisions/answered-pings.md). An echo request
// passes stages there, so that its flows are in the cached flows of no other packet:
//
//   - Unfragmented echo requests are recognized, which find their Service by further flows.
//   - Those to an address that answers their sender pass a meter and conntrack. Nothing is committed:
//     conntrack is where the datapath looks a packet up again. Open vSwitch changes ICMP types in
//     ovs-vswitchd only, packet by packet, and what a meter drops must not get there.
//   - Then the packet becomes the answer, and leaves by the port that it came in by.

// Stages of an echo request: a field of reg0, of two bits.
const (
	pingStage    = 1 << 23
	pingMask     = 3 * pingStage
	pingRequest  = 1 * pingStage // an unfragmented echo request
	pingServed   = 2 * pingStage // to an address that answers its sender
	pingAnswered = 3 * pingStage // within the meter's rate
)

// Priorities of the stages in table 3. All are below the flows that count prefixes of IPv6 addresses.
const (
	prioPingRequest  = 85
	prioNotPinged    = 94 // another Service may serve the client at the same address
	prioPinged       = 95
	prioPingMeter    = 96
	prioPingMeterPod = 97
	prioPingAnswer   = 98
)

// Types of ICMP and ICMPv6 messages (RFC 792, RFC 4443 §4).
const (
	icmpEchoRequest, icmpEchoReply     = 8, 0
	icmpv6EchoRequest, icmpv6EchoReply = 128, 129
)

// pingTTL is the TTL or hop limit of answers.
const pingTTL = 64

// inStage matches packets of a family in a stage.
func inStage(f k8s.Family, stage uint32) flow.Match {
	m := flow.Match{EthType: ethType(f), IPProto: icmpProto(f)}
	m.Reg[0] = flow.Bits{Value: stage, Mask: pingMask}
	return m
}

func toStage(stage uint64) flow.Action {
	return flow.SetField{Field: flow.Reg0, Value: stage, Mask: pingMask}
}

// pings adds the flows that all Services' addresses share.
func (b *builder) pings() {
	if !b.AnswerPing {
		return
	}
	for _, f := range families {
		request := inStage(f, 0)
		request.Reg[0].Mask |= lookedUp
		request.Frag = flow.Bits{Mask: flow.FragAny | flow.FragLater}
		request.ICMPType = icmpEchoRequest
		if f == k8s.IPv6 {
			request.ICMPType = icmpv6EchoRequest
		}
		b.add(tableTrack, prioPingRequest, 0, request, toStage(pingRequest), b.resubmit(tableTrack))

		meter := func(priority uint16, port, id uint32) {
			m := inStage(f, pingServed)
			m.InPort = port
			b.add(tableTrack, priority, 0, m, toStage(pingAnswered), flow.ToMeter{ID: id},
				flow.CT{Zone: b.Layout.ZoneDNAT, Table: b.Layout.table(tableTrack)})
		}
		for _, port := range b.meteredPorts() {
			meter(prioPingMeterPod, port, b.Layout.pingMeter(port))
		}
		meter(prioPingMeter, 0, b.Layout.pingMeter(0))

		answered := inStage(f, pingAnswered)
		answered.CTState = flow.Bits{Value: flow.CTTracked, Mask: flow.CTTracked | flow.CTInvalid}
		b.add(tableTrack, prioPingAnswer, cookiePings, answered, answer(f)...)
	}
}

// answer returns the actions that answer an echo request. reg0 to reg3 hold what is swapped.
func answer(f k8s.Family) (as []flow.Action) {
	swap := func(a, b flow.Field) {
		aside := flow.Subfield{Field: flow.XXReg0, N: uint8(a.Bits())}
		as = append(as, flow.Copy{Src: flow.Whole(a), Dst: aside},
			flow.Copy{Src: flow.Whole(b), Dst: flow.Whole(a)}, flow.Copy{Src: aside, Dst: flow.Whole(b)})
	}
	src, dst, icmpType, reply := flow.IPSrc, flow.IPDst, flow.ICMPv4Type, uint64(icmpEchoReply)
	if f == k8s.IPv6 {
		src, dst, icmpType, reply = flow.IPv6Src, flow.IPv6Dst, flow.ICMPv6Type, icmpv6EchoReply
	}

	swap(flow.EthSrc, flow.EthDst)
	swap(src, dst)
	return append(as,
		flow.SetField{Field: flow.TTL, Value: pingTTL, Mask: 0xff},
		flow.SetField{Field: icmpType, Value: reply, Mask: 0xff},
		flow.Output{Port: flow.PortInPort})
}

// pinged adds the flows for pings of a frontend's address, which Service ports at that address share.
func (s *service) pinged(f *k8s.Frontend) {
	if !s.AnswerPing {
		return
	}
	kinds, from := s.router.Pings(s.sp, f)
	if len(kinds) == 0 {
		return
	}

	m := inStage(s.sp.Name.Family, pingRequest)
	when := m
	m.Dst = host(f.Address)
	m = notToNode(s.toServiceIn(tableTrack, when, m))

	add := func(m flow.Match) {
		s.share(tableTrack, prioPinged, 0, m, toStage(pingServed), s.resubmit(tableTrack))
	}
	if len(kinds) < len(k8s.ClientKinds) {
		for _, kind := range k8s.ClientKinds {
			its := m
			its.Reg[0].Value |= uint32(kind)
			its.Reg[0].Mask |= sourceMask
			if slices.Contains(kinds, kind) {
				add(its)
			} else { // the node's kernel could send it back to the bridge, as from the node
				s.share(tableTrack, prioNotPinged, 0, its)
			}
		}
		return
	}
	for _, r := range from {
		its := m
		its.Src = matched(r)
		add(its)
	}
	if from == nil {
		add(m)
	}
}

// Pings returns the table and the cookie, to be matched in all bits, of the flows that answer pings.
func (l Layout) Pings() (table uint8, cookie uint64) {
	return l.table(tableTrack), l.cookie(cookieStatic, cookiePings)
}
