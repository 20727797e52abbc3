package pipeline

import (
	"net/netip"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A canary is a datagram that nkp sends to a Service of its own every few seconds, by a packet-out into the
// first table. It passes the flows that Services' packets pass, and ends at nkp
// (docs/decisions/canaries.md). That Service is no Service port of the model: its flows and groups are
// common ones, with id 0.
//
// All of its flows match the ingress port CONTROLLER, which only a packet-out can have: packets of pods, of
// the node and from outside match none of them. Open vSwitch compares the ingress port, which is in every
// cached flow, before addresses, so that the cached flows of other packets stay as they are.

// CanaryPort is the UDP port of the canary's frontends and endpoints.
const CanaryPort = 9

// CanaryAddrs are the addresses of one family that a canary has: link-local (RFC 3927) or unique local
// (RFC 4193), beside the default hairpin addresses. No device has them.
type CanaryAddrs struct {
	Client, Frontend netip.Addr
	Endpoints        [2]netip.Addr
	all              netip.Prefix
}

var canaryAddrs = map[k8s.Family]CanaryAddrs{
	k8s.IPv4: newCanaryAddrs("169.254.110.112/30"),
	k8s.IPv6: newCanaryAddrs("fd6e:6b70:6e6b::70/126"),
}

func newCanaryAddrs(all string) (c CanaryAddrs) {
	c.all = netip.MustParsePrefix(all)
	c.Client = c.all.Addr()
	c.Frontend = c.Client.Next()
	c.Endpoints = [...]netip.Addr{c.Frontend.Next(), c.Frontend.Next().Next()}
	return c
}

// Canary returns the addresses of a family's canary.
func Canary(f k8s.Family) CanaryAddrs { return canaryAddrs[f] }

// prioCanary is above all other flows of table 30.
const prioCanary = 420

// canaryBytes is how much of a canary the controller gets: all of it.
const canaryBytes = 128

// canary adds the frontends, groups and the end of the path of both families' canaries.
func (b *builder) canary() {
	if !b.Canary {
		return
	}
	for i, f := range families {
		addrs := canaryAddrs[f]
		add := func(table uint8, priority uint16, m flow.Match, actions ...flow.Action) {
			m.EthType, m.InPort = ethType(f), flow.PortController
			b.add(table, priority, canaryBits(f), m, actions...)
		}

		g := &flow.Group{ID: b.Layout.group(0, uint32(i), 0), Method: flow.DPHash}
		for n, e := range addrs.Endpoints {
			g.Buckets = append(g.Buckets, flow.Bucket{
				ID: uint32(n), Weight: 1,
				Actions: []flow.Action{b.translateTo(netip.AddrPortFrom(e, CanaryPort))},
			})
		}
		b.groups = append(b.groups, g)

		opens := flow.Match{Dst: host(addrs.Frontend), IPProto: flow.ProtoUDP, DstPort: CanaryPort}
		opens.CTState = newConnection
		add(tableServices, prioFrontend, opens,
			append([]flow.Action{setMark(markService, 0xffffffff)}, b.counted(flow.ToGroup{ID: g.ID})...)...)
		add(tableDeliver, prioCanary, flow.Match{Dst: addrs.all}, flow.ToController{MaxLen: canaryBytes})
	}
}

// canaryBits are the bits of the cookie of a family's flows.
func canaryBits(f k8s.Family) uint32 {
	if f == k8s.IPv6 {
		return cookieCanary | cookieCanary6
	}
	return cookieCanary
}

// CanaryCookie returns the cookie of the flows of a family's canary, which no other flow has. They are in the
// tables FrontendTable and DeliveryTable.
func (l Layout) CanaryCookie(f k8s.Family) uint64 { return l.cookie(cookieStatic, canaryBits(f)) }

// DeliveryTable is the table of the next hops of Service packets, where the path of a canary ends.
func (l Layout) DeliveryTable() uint8 { return l.table(tableDeliver) }

// Entry returns the action by which a packet-out begins where packets of pods do: in table 0, or where that
// is not nkp's, in nkp's first table.
func (l Layout) Entry() flow.Action {
	if l.TableBase == 0 {
		return flow.Output{Port: flow.PortTable}
	}
	return flow.Resubmit{Table: l.TableBase}
}
