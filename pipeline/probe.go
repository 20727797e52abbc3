package pipeline

import (
	"net/netip"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Probe is a connection to a Service port that nkp itself opens, to see what becomes of its packets.
type Probe struct {
	Port             k8s.PortName
	Client, Frontend netip.AddrPort
	InPort           uint32 // by which the client's packets come
	// Divert sends the answers to the controller, not to the client: a pod that did not open the connection
	// would reset it.
	Divert bool
}

// prioProbe is higher than any priority of a Compiler's flows.
const prioProbe = 1000

// probeBytes is how much of an answer the controller gets: enough for the headers in an ICMPv6 error.
const probeBytes = 256

// Probe returns the flows that keep a probe apart from the Service's clients: its packets are not counted and
// leave no pin. id is that of the Service port. The flows match no other connection. They are not part of a
// Compiler's State: they are to be added for seconds only.
func (l Layout) Probe(p Probe, id uint32) []*flow.Flow {
	b := builder{Config: &Config{Layout: l}}
	add := func(table uint8, m flow.Match, actions ...flow.Action) {
		b.add(table, prioProbe, id, m, actions...)
		b.flows[len(b.flows)-1].Cookie = l.cookie(cookieProbe, id)
	}
	out := toAddr(p.Frontend.Addr())
	out.Dst = netip.Prefix{} // an endpoint's, once it is translated
	out.InPort, out.IPProto = p.InPort, ipProto(p.Port.Protocol)
	out.Src, out.SrcPort = host(p.Client.Addr()), flow.Bits{Value: uint32(p.Client.Port()), Mask: 0xffff}
	add(tableCount, out)
	out.Reg[3] = flow.Exactly(0)
	add(tableSeed, out, setChoice(choosePinless, 0xffffffff))

	// Open vSwitch compares ct_mark before addresses, so that cached flows of other Services stay as they
	// are.
	in := toAddr(p.Client.Addr())
	in.CTState = flow.Bits{Value: flow.CTTracked | flow.CTReply, Mask: flow.CTTracked | flow.CTReply}
	in.CTMark = flow.Bits{Value: id<<markIDShift | markService, Mask: markIDMask | markService}
	in.IPProto, in.DstPort = out.IPProto, p.Client.Port()
	add(tableCount, in)

	// An ICMP error that quotes the probe's packet.
	quoted := flow.Match{
		EthType:   in.EthType,
		Dst:       in.Dst,
		CTMark:    in.CTMark,
		CTProto:   in.IPProto,
		CTSrcPort: p.Client.Port(),
	}
	quoted.CTState = flow.Bits{Value: flow.CTTracked | flow.CTRel, Mask: flow.CTTracked | flow.CTRel}
	quoted.IPProto = flow.ProtoICMP
	if quoted.EthType == flow.EthIPv6 {
		quoted.IPProto = flow.ProtoICMPv6
	}
	add(tableCount, quoted)

	if p.Divert {
		in.Src = host(p.Frontend.Addr())
		in.SrcPort = flow.Bits{Value: uint32(p.Frontend.Port()), Mask: 0xffff}
		add(tableOutput, in, flow.ToController{MaxLen: probeBytes})
		add(tableOutput, quoted, flow.ToController{MaxLen: probeBytes})
	}
	return b.flows
}

// ProbeCookies returns the cookies of the flows of probes.
func (l Layout) ProbeCookies() flow.Cookies {
	return flow.Cookies{Cookie: l.cookie(cookieProbe, 0), Mask: 0xffffffff << 32}
}
