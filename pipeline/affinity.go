package pipeline

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Session affinity by client address. A pin is a learned flow that binds a client's address to an endpoint. A
// packet that opens a connection is resubmitted to tablePins, where its pin loads the client's endpoint into
// reg2, then to tablePinned, which translates to that endpoint if it is still in force. Otherwise a group
// picks one by a hash of the client's address and of a seed in reg3, and tableLearn pins it. Only new
// connections match a pin, so its idle timeout runs from the last new connection, as in kube-proxy. The seed
// is the same for all clients and changes while clients choose (Layout.Seed), so that a client whose pin has
// expired chooses anew, and connections that it opens at once all choose the same endpoint
// (docs/decisions/session-affinity.md).
//
// Source addresses can be spoofed, so pins are bounded: per Service port by the learn action's limit, which
// the switch enforces, and in total by Layout.NoPins, a flow that nkp installs while there are too many. A
// client without a pin chooses without the seed: it keeps its endpoint by the hash of its address, as long as
// the endpoints stay the same.

// Bits of reg3 while a client of session affinity chooses. The other bits are the seed.
const (
	choosePinless = 1 << 31 // without a seed: the client gets no pin
	chooseTried   = 1 << 30 // the learn action was executed
	chooseLearned = 1 << 29 // its result: there is a pin
	seedMask      = chooseLearned - 1
)

// endpointIDBit is set in every endpoint's number.
const endpointIDBit = 1 << 30

// MaxAffinitySeconds is the longest affinity that a pin can hold: an idle timeout has 16 bits
// (OpenFlow 1.5.1 §7.3.4.2). Longer ones are cut to it.
const MaxAffinitySeconds = 65535

// The largest group Open vSwitch can describe has 65,463 bytes of buckets: asked for a larger one
// (OFPMP_GROUP_DESC, by any controller), Open vSwitch 3.1.0 overflows a length field and may abort. A bucket
// of an affinity group takes 48.
const (
	maxAffinityBuckets = 1024
	maxAffinityParts   = 15
	// MaxAffinityEndpoints is how many endpoints a Service port with session affinity can have; the rest are
	// left out, and Compiler.Missing reports it.
	MaxAffinityEndpoints = maxAffinityBuckets * maxAffinityParts
)

// DefaultAffinityLimit is how many clients of a Service port have a pin at most. At this size a client
// without a pin costs the switch about as much CPU time as one that gets a pin
// (docs/decisions/session-affinity.md).
const DefaultAffinityLimit = 10_000

// pinTimeout returns the idle timeout of a Service port's pins in seconds; 0 without session affinity.
func pinTimeout(sp *k8s.ServicePort) uint16 {
	return uint16(min(sp.AffinitySeconds, MaxAffinitySeconds))
}

func (s *service) affinity() {
	client := flow.Whole(flow.IPSrc)
	if s.sp.Name.Family == k8s.IPv6 {
		client = flow.Whole(flow.IPv6Src)
	}
	m := ethIs(s.sp.Name.Family)
	m.Reg[1] = flow.Bits{Value: s.id << markIDShift, Mask: markIDMask}
	s.add(tableLearn, 100, s.id, m, setChoice(chooseTried, chooseTried), flow.Learn{
		Table: s.Layout.table(tablePins), Priority: 100, IdleTimeout: pinTimeout(s.sp),
		Cookie:  s.Layout.cookie(cookieLearned, s.id),
		Limit:   s.AffinityLimit,
		Result:  flow.Subfield{Field: flow.Reg3, Ofs: 29, N: 1}, // chooseLearned
		EthType: ethType(s.sp.Name.Family),
		Match:   [2]flow.Subfield{client, {Field: flow.Reg1, Ofs: markIDShift, N: 32 - markIDShift}},
		Load:    flow.Whole(flow.Reg2),
	}, s.resubmit(tablePinned))

	// A client that the limit refused a pin chooses again, without the seed and without a learn action.
	var refused, pinless flow.Match
	refused.Reg[2] = flow.Bits{Value: endpointIDBit, Mask: endpointIDBit}
	refused.Reg[3] = flow.Bits{Value: chooseTried, Mask: chooseTried | chooseLearned}
	s.share(tablePinned, 200, 0, refused,
		flow.SetField{Field: flow.Reg2, Mask: 0xffffffff},
		setChoice(choosePinless, 0xffffffff),
		s.resubmit(tablePinned))
	pinless.Reg[3] = flow.Bits{Value: choosePinless, Mask: choosePinless}
	s.share(tableLearn, 200, 0, pinless, s.resubmit(tablePinned))
}

// setChoice writes the bits of reg3 under mask.
func setChoice(value, mask uint32) flow.Action {
	return flow.SetField{Field: flow.Reg3, Value: uint64(value), Mask: uint64(mask)}
}

// Seed returns the flow that loads the seed of session affinity's choices, of which the low 29 bits of seed
// count. Without it clients choose by their address alone. Like NoPins, which replaces it, it is not part of
// a Compiler's State.
func (l Layout) Seed(seed uint32) *flow.Flow { return l.chooser(cookieSeed, seed&seedMask) }

// NoPins returns the flow that keeps the switch from adding pins for any Service port. Existing pins stay in
// force. The flow is not part of a Compiler's State, because it depends on traffic.
func (l Layout) NoPins() *flow.Flow { return l.chooser(cookieNoPins, choosePinless) }

// chooser returns the flow of tableSeed: both Seed and NoPins have its key.
func (l Layout) chooser(kind uint64, choice uint32) *flow.Flow {
	b := builder{Config: &Config{Layout: l}}
	var m flow.Match
	m.Reg[3] = flow.Exactly(0) // not again after choosePinless
	f := b.flow(tableSeed, 100, 0, m, setChoice(choice, 0xffffffff))
	f.Cookie = l.cookie(kind, 0)
	return f
}

// affinityGroup adds the select group that spreads clients over the endpoints of a set, and the flows that
// translate to a pinned endpoint.
func (s *service) affinityGroup(p k8s.Set, es []k8s.Endpoint) {
	es = es[:min(len(es), MaxAffinityEndpoints)]
	g := &flow.Group{ID: s.group(p), Method: flow.HashSrc}
	if s.sp.Name.Family == k8s.IPv6 {
		g.Method = flow.HashSrc6
	}

	parts := [][]k8s.Endpoint{es}
	if len(es) > maxAffinityBuckets {
		// Two levels: the top group selects a part, the part's group an endpoint. The hash includes the
		// bucket id, so that the two selections are independent.
		n := (len(es) + maxAffinityBuckets - 1) / maxAffinityBuckets
		parts = slices.Collect(slices.Chunk(es, (len(es)+n-1)/n))
		top := g
		for i := range parts {
			top.Buckets = append(top.Buckets, flow.Bucket{ID: uint32(i), Weight: 1, Actions: []flow.Action{
				flow.ToGroup{ID: top.ID + uint32(i) + 1},
			}})
		}
		s.groups = append(s.groups, top)
		g = &flow.Group{ID: top.ID + 1, Method: top.Method}
	}

	ids := endpointIDs(s.sp.ClusterEndpoints, s.sp.LocalEndpoints)
	for i, part := range parts {
		if i > 0 {
			g = &flow.Group{ID: g.ID + 1, Method: g.Method}
		}
		for _, e := range part {
			id := ids[e.Addr]
			g.Buckets = append(g.Buckets, flow.Bucket{ID: id, Weight: 1, Actions: []flow.Action{
				flow.SetField{Field: flow.Reg2, Value: uint64(id), Mask: 0xffffffff}, s.resubmit(tableLearn),
			}})

			m := s.marked(p)
			m.IPProto = ipProto(s.sp.Name.Protocol)
			m.Reg[2] = flow.Exactly(id)
			// reg3 would give the rest of the connection's way a recirculation id for each seed.
			s.add(tablePinned, 100, s.id, m, setChoice(0, 0xffffffff), s.translate(e))
		}
		s.groups = append(s.groups, g)
	}

	s.add(tablePinned, 50, s.id, s.marked(p), s.resubmit(tableSeed), flow.ToGroup{ID: s.group(p)})
}

// endpointIDs returns a number for reg2 for each endpoint. It stays the same when others come and go, so that
// a pin never refers to a different endpoint, and so that the hash of a select group, which includes the
// bucket id, remaps no client unnecessarily.
func endpointIDs(lists ...[]k8s.Endpoint) map[netip.AddrPort]uint32 {
	ids := map[netip.AddrPort]uint32{}
	taken := map[uint32]bool{}
	for _, es := range lists {
		for _, e := range es {
			if _, ok := ids[e.Addr]; ok {
				continue
			}
			h := fnv.New32a()
			b := e.Addr.Addr().As16()
			h.Write(b[:])
			h.Write(binary.BigEndian.AppendUint16(nil, e.Addr.Port()))
			id := h.Sum32()&0x7fffffff | endpointIDBit // below the reserved bucket ids, never 0
			for taken[id] {
				id = (id+1)&0x7fffffff | endpointIDBit
			}
			ids[e.Addr], taken[id] = id, true
		}
	}
	return ids
}
