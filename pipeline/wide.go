package pipeline

import (
	"math/bits"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A dp_hash group has at most 256 slots: with more buckets Open vSwitch hashes in the slow path, one upcall for
// every new connection, and not far below that the slots no longer divide evenly. For a wide set of endpoints
// the group therefore has a single bucket. Executing it makes the datapath compute its hash; the bucket copies
// as many bits of it to reg3 as the set needs and goes on in tableWide, where flows divide the values of reg3
// among the endpoints (docs/decisions/0003-wide-services.md).

func (s *service) wide(p k8s.Policy, es []k8s.Endpoint) {
	// Four to eight values for each endpoint: no endpoint gets more than a quarter above the fair share.
	nbits := bits.Len(uint(4*len(es) - 1))
	s.groups = append(s.groups, &flow.Group{ID: s.group(p), Method: flow.DPHash, Buckets: []flow.Bucket{{
		Weight: 1,
		Actions: []flow.Action{
			flow.Copy{
				Src: flow.Subfield{Field: flow.DPHashValue, N: uint8(nbits)},
				Dst: flow.Subfield{Field: flow.Reg3, N: uint8(nbits)},
			},
			s.resubmit(tableWide),
		},
	}}})
	shares := apportion(1<<nbits, len(es), int(s.id)%len(es))
	for _, block := range hashBlocks(shares, nbits) {
		m := s.marked(p)
		m.IPProto = ipProto(s.sp.Name.Protocol)
		m.Reg[3] = flow.Bits{Value: block.value, Mask: block.mask}
		// reg3 is cleared before the packet is tracked: what it holds would otherwise become part of the state
		// that the switch keeps for packets coming back from the tracker.
		s.add(tableWide, 100, s.id, m,
			flow.SetField{Field: flow.Reg3, Mask: 0xffffffff}, s.translate(es[block.owner]))
	}
}
