package pipeline

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Session affinity by client address. A pin is a learned flow that binds a client's address to an endpoint. A packet that opens
// a connection is resubmitted to tablePins, where its pin loads the client's endpoint into reg2, then to tablePinned, which
// translates to that endpoint if it is still in force. Otherwise a group picks one by the client's address and tableLearn pins
// it. Only new connections match a pin, so its idle timeout runs from the last new connection, as in kube-proxy.
//
// Source addresses can be spoofed, so pins are bounded: per Service port by the learn action's limit, which the switch enforces, and in
// total by Layout.NoPins, a flow that nkp installs while there are too many. A client without a pin
// keeps its endpoint by the hash of its address, as long as the endpoints stay the same.

// MaxAffinitySeconds is the longest affinity that a pin can hold: an idle timeout has 16 bits
// (OpenFlow 1.5.1 §7.3.4.2). Longer ones are cut to it.
const MaxAffinitySeconds = 65535

// The largest group Open vSwitch can describe has 65,463 bytes of buckets: asked for a larger one
// (OFPMP_GROUP_DESC, by any controller), Open vSwitch 3.1.0 overflows a length field and may abort. A bucket of an affinity group takes 48.
const (
	maxAffinityBuckets = 1024
	maxAffinityParts   = 15
	// MaxAffinityEndpoints is how many endpoints a Service port with session affinity can have; the rest are left
	// out, and Compiler.Missing reports it.
	MaxAffinityEndpoints = maxAffinityBuckets * maxAffinityParts
)

// DefaultAffinityLimit is how many clients of a Service port have a pin at most. At this size a client
// without a pin costs the switch about as much CPU time as one that gets a pin (docs/decisions/0014-pins-are-bounded.md).
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
	s.add(tableLearn, 100, s.id, m, flow.Learn{
		Table: s.Layout.table(tablePins), Priority: 100, IdleTimeout: pinTimeout(s.sp),
		Cookie:  s.Layout.cookie(cookieLearned, s.id),
		Limit:   s.AffinityLimit,
		EthType: ethType(s.sp.Name.Family),
		Match:   [2]flow.Subfield{client, {Field: flow.Reg1, Ofs: markIDShift, N: 32 - markIDShift}},
		Load:    flow.Whole(flow.Reg2),
	}, s.resubmit(tablePinned))
}

// affinityGroup adds the select group that hashes the client's address over the endpoints of policy p, and the flows that translate to a
// pinned endpoint.
func (s *service) affinityGroup(p k8s.Policy, es []k8s.Endpoint) {
	es = es[:min(len(es), MaxAffinityEndpoints)]
	g := &flow.Group{ID: s.group(p), Method: flow.HashSrc}
	if s.sp.Name.Family == k8s.IPv6 {
		g.Method = flow.HashSrc6
	}
	parts := [][]k8s.Endpoint{es}
	if len(es) > maxAffinityBuckets {
		// Two levels: the top group selects a part, the part's group an endpoint. The hash includes the bucket id, so that the two selections
		// are independent.
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
	ids := endpointIDs(s.sp)
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
			s.add(tablePinned, 100, s.id, m, s.translate(e))
		}
		s.groups = append(s.groups, g)
	}
	s.add(tablePinned, 50, s.id, s.marked(p), flow.ToGroup{ID: s.group(p)})
}

// endpointIDs returns every endpoint of a Service port a number for reg2 that stays the same when others come
// and go, so that a pin never refers to a different endpoint, and so that the hash of a select group, which
// includes the bucket id, remaps no client unnecessarily.
func endpointIDs(sp *k8s.ServicePort) map[netip.AddrPort]uint32 {
	ids := map[netip.AddrPort]uint32{}
	taken := map[uint32]bool{}
	for _, es := range [][]k8s.Endpoint{sp.ClusterEndpoints, sp.LocalEndpoints} {
		for _, e := range es {
			if _, ok := ids[e.Addr]; ok {
				continue
			}
			h := fnv.New32a()
			b := e.Addr.Addr().As16()
			h.Write(b[:])
			h.Write(binary.BigEndian.AppendUint16(nil, e.Addr.Port()))
			id := h.Sum32()&0x7fffffff | 1<<30 // below the reserved bucket ids, never 0
			for taken[id] {
				id++
			}
			ids[e.Addr], taken[id] = id, true
		}
	}
	return ids
}
