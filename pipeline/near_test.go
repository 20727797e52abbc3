package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A flow that matches more than the shortest prefix of an IPv6 address matches a complete field of reg0, in all tables that packets
// of others, or of all clients of a Service, pass. Packets that it matches find the flows that complete the field, whatever was
// counted in it before. IPv4 has nothing of that. By packet: TestFamiliesCostTheSame.
func TestIPv6ByPrefix(t *testing.T) {
	const fields = 1<<23 - 1<<8
	passed := []uint8{tableEntry, tableUnSNAT, tableTrack, tableServices, tableOutput, tableDeliver}
	implied := func(of, by flow.Bits) bool { return of.Mask&^by.Mask == 0 && by.Value&of.Mask == of.Value }
	within := func(p, in netip.Prefix) bool {
		return !in.IsValid() || p.IsValid() && p.Bits() >= in.Bits() && in.Contains(p.Addr())
	}
	for i := range 8 {
		cfg := testConfig()
		cfg.NodeElsewhere, cfg.NoNullNAT, cfg.Fragments = families[:2*(i&1)], i&2 != 0, i&4 != 0
		cfg.HairpinIPs = append(cfg.HairpinIPs, netip.MustParseAddr("fd00:28::99"))
		cfg.Pods = append(cfg.Pods, Pod{IP: netip.MustParseAddr("fd00:a::b"), OFPort: 11})
		var ports []*k8s.ServicePort
		for n, s := range kinds {
			s.VIP, s.Family = n, k8s.IPv6
			s.Name += "-six"
			s.Ranges = nil
			ports = append(ports, s.ServicePort())
		}
		own := shape{Name: "consistent", Family: k8s.IPv6, Cluster: 3, VIP: len(kinds), Types: []k8s.FrontendType{k8s.ClusterIP, k8s.LoadBalancer}}.ServicePort()
		own.ClusterEndpoints[0].Local = true
		own.Consistent = &k8s.Consistent{Address: own.Frontends[1].Address, Relay: 30000, Endpoints: own.ClusterEndpoints}
		own.Frontends[1].SourceRanges = []netip.Prefix{netip.MustParsePrefix("fd00:c0::/64")} // clients' prefixes are not counted
		ports = append(ports, own)
		flows, full := compile(t, cfg, ports...).State().Flows, 0
		for _, f := range flows {
			m, reg0 := &f.Match, f.Match.Reg[0]
			if m.EthType != flow.EthIPv6 {
				if reg0.Mask&fields != 0 {
					t.Errorf("configuration %d: not IPv6: %v", i, f)
				}
				continue
			}
			counting := slices.ContainsFunc(f.Actions, func(a flow.Action) bool {
				set, ok := a.(flow.SetField)
				return ok && set.Field == flow.Reg0 && set.Mask&fields != 0
			})
			if counting && (cfg.Layout.MayReturn(f) || f.Table == tableTrack && m.Src.IsValid()) {
				t.Errorf("configuration %d: counts without end, or clients: %v", i, f)
			}
			if counting || !slices.Contains(passed, f.Table) || f.Priority == prioGuard || f.Priority == prioFromPod || max(m.Src.Bits(), m.Dst.Bits()) <= nearLengths[0] {
				continue
			}
			full++
			state := m.CTState
			if state.Value&flow.CTNew != 0 { // a new connection is neither established nor invalid
				state.Mask |= flow.CTEst | flow.CTInvalid
			}
			field := uint32(0)
			for bits := uint32(1 << 8); bits < fields; bits <<= 3 {
				if reg0.Mask&(nearMask*bits) != 0 {
					field = bits
				}
			}
			if field == 0 || !implied(flow.Bits{Value: field * uint32(len(nearLengths)), Mask: field * nearMask}, reg0) {
				t.Errorf("configuration %d: no complete field: %v", i, f)
				continue
			}
			for count := range uint32(len(nearLengths)) {
				found := false
				for _, g := range flows {
					n := &g.Match
					found = found || g.Table == f.Table && g.Priority > f.Priority && n.Reg[0] == flow.Bits{Value: field * count, Mask: field * nearMask} &&
						within(m.Src, n.Src) && within(m.Dst, n.Dst) && implied(n.CTState, state) && implied(n.Reg[1], m.Reg[1]) &&
						slices.Contains(g.Actions, flow.Action(flow.SetField{Field: flow.Reg0, Value: uint64(field * (count + 1)), Mask: uint64(field * nearMask)}))
				}
				if !found {
					t.Errorf("configuration %d: no flow counts beyond %d for %v", i, count, f)
				}
			}
		}
		if full < len(kinds) {
			t.Errorf("configuration %d: only %d flows match full addresses", i, full)
		}
	}
}
