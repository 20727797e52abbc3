package pipeline

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Priorities of a Service's flows in table 1. A frontend that names its address comes before a NodePort,
// which is served on every address of the node, as in kube-proxy. Flows for a source with a policy of its own
// (pods, the node) come before those for all sources.
//
// A frontend that drops or refuses has a priority of its own (Drops), because Open vSwitch keeps the counters
// of a flow whose actions change.
const (
	prioFrontendSource = 310
	prioFrontend       = 300
	prioNodePortSource = 290
	prioNodePort       = 280
	prioFrontendReset  = 315 // a packet of an unknown connection, if connections to removed endpoints end
	prioNodePortReset  = 295
	refuses            = 1 // above: no endpoint
	drops              = 2 // above: policy Local without a local endpoint
)

// Guards cover this much of the address space around an endpoint: the usual pod range of a node.
const (
	guardBits4 = 24
	guardBits6 = 64
)

// service compiles one Service port.
type service struct {
	*builder
	*placed
	router k8s.Router
	// used records which sets of endpoints some frontend reaches, so that only those become groups.
	used map[k8s.Set]bool
	// atNode reports whether packets to any frontend are looked up in zone SNAT first.
	atNode bool
	// ranged records for which sets the source ranges, which are the Service's, have flows.
	ranged [len(k8s.Sets)]bool
}

// port adds everything of one Service port.
func (b *builder) port(p *placed) {
	s := &service{builder: b, placed: p, router: b.router(), used: map[k8s.Set]bool{}}
	s.atNode = slices.ContainsFunc(s.sp.Frontends, s.servesNode)
	for i := range s.sp.Frontends {
		if f := &s.sp.Frontends[i]; s.router.Serves(f) {
			s.frontend(f)
			s.pinged(f)
		}
	}
	s.counters()
	if s.sp.AffinitySeconds > 0 {
		s.affinity()
	}
	for _, set := range k8s.Sets {
		if s.used[set] {
			s.endpoints(set)
		}
	}
	if s.sp.Consistent != nil {
		s.consistent()
	}
	s.surroundings()
}

// mark is the id and the bits of reg1 for traffic to the endpoints of a set.
func (s *service) mark(p k8s.Set, masquerade bool) uint32 {
	m := s.id<<markIDShift | markService
	if p == k8s.OnNode {
		m |= markLocal
	}
	if masquerade {
		m |= markMasquerade
	}
	return m
}

// marked matches packets whose reg1 carries this Service port and policy.
func (s *service) marked(p k8s.Set) flow.Match {
	m := ethIs(s.sp.Name.Family)
	m.Reg[1] = flow.Bits{Value: s.id<<markIDShift | localBit(p), Mask: markIDMask | markLocal}
	return m
}

func localBit(p k8s.Set) uint32 {
	if p == k8s.OnNode {
		return markLocal
	}
	return 0
}

// frontend adds the flows of table 1 for one address, or for every address of the node.
func (s *service) frontend(f *k8s.Frontend) {
	everyone, source := uint16(prioFrontend), uint16(prioFrontendSource)
	if f.Type == k8s.NodePort {
		everyone, source = prioNodePort, prioNodePortSource
	}
	m := ethIs(s.sp.Name.Family)
	m.IPProto, m.DstPort, m.CTState = ipProto(s.sp.Name.Protocol), f.Port, newConnection
	if f.Address.IsValid() {
		m.Dst = host(f.Address)
	} else {
		m.Reg[0] = flow.Bits{Value: toNode, Mask: toNode}
	}

	routes := s.router.Routes(s.sp, f)
	outside := routes[k8s.Outside]
	if len(f.SourceRanges) == 0 || outside.Empty != "" {
		s.reset(f, m)
	}
	if f.Type == k8s.ClusterIP {
		// With affinity a SYN that is sent again would choose again, and could move the client's pin.
		if s.sp.AffinitySeconds == 0 {
			m.CTState = opening
		}
		// Table 0 has set the masquerade bit by the packet's source; that bit stays.
		s.enter(everyone, m, f, outside, setMark(s.mark(outside.Set, false), ^uint32(markMasquerade)))
		if !s.sp.Partial {
			s.unserved(f)
		}
		return
	}
	s.enter(everyone, m, f, outside, setMark(s.mark(outside.Set, outside.Masquerade), 0xffffffff))
	for _, from := range []k8s.ClientKind{k8s.ThisNode, k8s.Pod} {
		r := routes[from]
		if r.Set == outside.Set && r.Masquerade == outside.Masquerade {
			continue
		}
		its := m
		its.Reg[0].Value |= uint32(from)
		its.Reg[0].Mask |= sourceMask
		s.enter(source, its, f, r, setMark(s.mark(r.Set, r.Masquerade), 0xffffffff))
	}
}

// unserved adds the flow that refuses the ports of a ClusterIP which no Service port serves.
func (s *service) unserved(f *k8s.Frontend) {
	m := ethIs(s.sp.Name.Family)
	m.Dst, m.CTState = host(f.Address), newConnection
	s.share(tableServices, prioUnserved, cookieUnserved, s.toService(m), s.resubmit(tableReject))
}

// unknownConnection returns m for TCP packets that belong to no connection of a Service's and do not open
// one.
func unknownConnection(m flow.Match) flow.Match {
	m.CTState = newConnection
	m.CTMark, m.TCPFlags = flow.Bits{Mask: markService}, flow.Bits{Mask: flow.TCPSyn}
	return m
}

// reset adds the flow of table 1 that answers packets of unknown connections to a frontend with a reset, if
// connections to removed endpoints end: their entries are deleted (ClosingFrontends), and no other endpoint
// may get their packets. Source ranges come before it (sourceRanges).
func (s *service) reset(f *k8s.Frontend, m flow.Match) {
	if s.sp.Removed == nil || s.untracked(f) {
		return
	}
	priority := uint16(prioNodePortReset)
	if f.Type != k8s.NodePort {
		priority = prioFrontendReset
	}
	if f.Address.IsValid() {
		m = s.toService(m)
	}
	s.add(tableServices, priority, s.id|cookieDrops, unknownConnection(m), s.resubmit(tableReject))
}

// enter adds one flow of table 1: it leads to the endpoints of a route or, if there are none, rejects or
// drops the packet.
func (s *service) enter(priority uint16, match flow.Match, f *k8s.Frontend, r k8s.Route, mark flow.Action) {
	m := match
	if f.Address.IsValid() {
		m = s.toService(m)
	}
	switch r.Empty {
	case k8s.Drop:
		s.add(tableServices, priority+drops, s.id|cookieDrops, m)
		return
	case k8s.Reject:
		s.add(tableServices, priority+refuses, s.id|cookieDrops, m, s.resubmit(tableReject))
		return
	}
	if s.NoNullNAT && s.isOwnEndpoint(f, r.Set) {
		s.add(tableServices, priority, s.id, m, s.resubmit(tableOutput))
		return
	}
	s.used[r.Set] = true
	s.fragments(priority, match, f, r.Set, mark)
	if len(f.SourceRanges) > 0 {
		s.add(tableServices, priority, s.id, m, mark, s.resubmit(tableRanges))
		s.sourceRanges(f, r.Set)
		return
	}
	s.add(tableServices, priority, s.id, m, append([]flow.Action{mark}, s.choose(r.Set)...)...)
}

// untranslated returns a line for each frontend of a Service port that is not translated, because the switch
// can crash on a translation without a change.
func (c *Config) untranslated(sp *k8s.ServicePort) (lines []string) {
	if !c.NoNullNAT {
		return nil
	}
	s, router := &service{builder: &builder{Config: c}, placed: &placed{sp: sp}}, c.router()
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		if router.Serves(f) && s.untracked(f) {
			where := fmt.Sprint(f.Port)
			if f.Address.IsValid() {
				where = netip.AddrPortFrom(f.Address, f.Port).String()
			}
			lines = append(lines, fmt.Sprintf(
				"Service %s: %s %s is an endpoint itself and gets all connections to it, "+
					"because this Open vSwitch can crash by a translation that changes nothing",
				sp.Name, f.Type, where))
		}
	}
	return lines
}

// untracked reports whether packets to a frontend are neither translated nor tracked for some client.
func (s *service) untracked(f *k8s.Frontend) bool {
	return s.NoNullNAT && (s.isOwnEndpoint(f, k8s.Anywhere) || s.isOwnEndpoint(f, k8s.OnNode))
}

// isOwnEndpoint reports whether an endpoint of a set has the frontend's address and port, so that a
// translation to it would change nothing. The userspace datapath before Open vSwitch 3.3 tracks SCTP without
// ports.
func (s *service) isOwnEndpoint(f *k8s.Frontend, p k8s.Set) bool {
	at := s.LocalIPs
	if f.Address.IsValid() {
		at = []netip.Addr{f.Address}
	}
	es, port := s.sp.Endpoints(p), f.Port
	if s.sp.Name.Protocol == "SCTP" {
		port = 0
	}
	return slices.ContainsFunc(at, func(ip netip.Addr) bool {
		to := netip.AddrPortFrom(ip, port)
		i, _ := slices.BinarySearchFunc(es, to, func(e k8s.Endpoint, to netip.AddrPort) int {
			return e.Addr.Compare(to)
		})
		return i < len(es) && s.sameTarget(es[i], f.Address, f.Port)
	})
}

// sameTarget reports whether an endpoint is at an address and port; the zero Addr: any address of the node.
func (s *service) sameTarget(e k8s.Endpoint, at netip.Addr, port uint16) bool {
	ip := e.Addr.Addr()
	here := ip == at || !at.IsValid() && slices.Contains(s.LocalIPs, ip)
	return here && (e.Addr.Port() == port || s.sp.Name.Protocol == "SCTP")
}

// choose picks one endpoint of a set for a marked packet, and counts it.
func (s *service) choose(p k8s.Set) []flow.Action { return s.counted(s.pick(p)...) }

// pick picks one endpoint of a set for a marked packet. A single endpoint needs no group, whose hash would be
// one more pass through the datapath, in sixteen cached flows or more for each client
// (README.md, "The first packet").
func (s *service) pick(p k8s.Set) []flow.Action {
	es := s.sp.Endpoints(p)
	switch {
	case s.sp.AffinitySeconds > 0:
		return []flow.Action{s.resubmit(tablePins), s.resubmit(tablePinned)}
	case len(es) == 1:
		return []flow.Action{s.translate(es[0])}
	}
	return []flow.Action{flow.ToGroup{ID: s.group(p)}}
}

func (s *service) group(p k8s.Set) uint32 {
	kind := uint32(groupCluster)
	switch affinity := s.sp.AffinitySeconds > 0; {
	case affinity && p == k8s.OnNode:
		kind = groupAffinityLocal
	case affinity:
		kind = groupAffinityCluster
	case p == k8s.OnNode:
		kind = groupLocal
	}
	return s.Layout.group(s.id, kind, 0)
}

// sourceRanges lets only the allowed clients of a LoadBalancer address through. The ranges belong to the
// Service: all its LoadBalancer addresses share the flows.
func (s *service) sourceRanges(f *k8s.Frontend, p k8s.Set) {
	clients := s.router.Clients(f)
	if s.ranged[p] {
		clients = clients[len(f.SourceRanges):] // its own address
	}
	for _, r := range clients {
		m := s.marked(p)
		m.Src = matched(r)
		s.addOnce(tableRanges, prioInRange, s.id, m, s.choose(p)...)
		if s.sp.Removed != nil {
			m.IPProto = flow.ProtoTCP
			s.addOnce(tableRanges, prioRangeReset, s.id|cookieDrops, unknownConnection(m),
				s.resubmit(tableReject))
		}
	}
	if !s.ranged[p] {
		s.add(tableRanges, prioNotInRange, s.id|cookieDrops, s.marked(p))
	}
	s.ranged[p] = true
}

// endpoints adds the group that picks an endpoint of a set.
func (s *service) endpoints(p k8s.Set) {
	es := s.sp.Endpoints(p)
	if s.sp.AffinitySeconds > 0 {
		s.affinityGroup(p, es)
		return
	}
	if len(es) == 1 {
		return // pick
	}

	if t := s.slotTables.of(p); t != nil {
		s.choice(p, es, t)
		return
	}

	shares := newShares(weights(es), s.turn(len(es)))
	weight, owner := bucketWeights(shares) // fewer buckets than slots: newSlots
	if sum(shares) > maxSlots || !releasesAgree(weight) {
		s.choice(p, es, newSlots(shares))
		return
	}

	g := &flow.Group{ID: s.group(p), Method: flow.DPHash, Buckets: make([]flow.Bucket, 0, len(weight))}
	for i, w := range weight {
		g.Buckets = append(g.Buckets, flow.Bucket{
			ID: uint32(i), Weight: uint16(w), Actions: []flow.Action{s.translate(es[owner[i]])},
		})
	}
	s.groups = append(s.groups, g)
}

// translate commits the connection with its destination changed to the endpoint and the Service's mark.
func (s *service) translate(e k8s.Endpoint) flow.Action { return s.translateTo(e.Addr) }

func (b *builder) translateTo(endpoint netip.AddrPort) flow.Action {
	return flow.CT{
		Commit: true, Zone: b.Layout.ZoneDNAT, Table: b.Layout.table(tableOutput), MarkFromReg1: true,
		NAT: flow.NAT{Kind: flow.NATDst, Addr: endpoint.Addr(), PortMin: endpoint.Port()},
	}
}

// surroundings adds hairpin flows for the endpoints that may be on this node, and guards.
//
// A guard commits direct connections to the prefix of an endpoint. Without it, if a client uses one source
// port through a Service and then directly to the same endpoint, the replies would be translated as if they
// belonged to the first connection. The guard commits with a source translation that changes nothing, so that
// conntrack finds the reply tuple taken and assigns the second connection another port
// (README.md, "Port-reuse guards").
func (s *service) surroundings() {
	guard := []flow.Action{flow.CT{
		Commit: true, Zone: s.Layout.ZoneDNAT, Table: s.Layout.table(tableOutput),
		NAT: flow.NAT{Kind: flow.NATSrc, Addr: s.sp.Name.Family.Unspecified()},
	}}
	for _, es := range [][]k8s.Endpoint{s.sp.ClusterEndpoints, s.sp.LocalEndpoints} {
		for _, e := range es {
			ip := e.Addr.Addr()
			if e.Local || e.Unplaced {
				s.hairpin(ip)
			}

			if s.NoGuards || s.Uplink == 0 {
				continue // without the uplink a packet that comes back from the router cannot be recognized
			}

			size := guardBits4
			if ip.Is6() {
				size = guardBits6
			}
			around, err := ip.Prefix(size)
			if err != nil {
				continue // a zone: k8s admits none
			}

			s.share(tableServices, prioGuard, 0, flow.Match{
				EthType: ethTypeOf(ip), Dst: around,
				IPProto: ipProto(s.sp.Name.Protocol), DstPort: e.Addr.Port(),
				CTState: newConnection,
			}, guard...)
		}
	}
}
