package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Where two flows of a table have the same priority and a packet can match both, a switch may take either (OpenFlow 1.5.1 §5.3).
// No two flows of nkp's are like that, unless they do the same.
func TestNoAmbiguousFlows(t *testing.T) {
	type place struct {
		table    uint8
		priority uint16
	}
	check := func(name string, ports ...*k8s.ServicePort) {
		at := map[place][]*flow.Flow{}
		cfg := testConfig()
		cfg.AnswerPing = true
		for _, f := range compile(t, cfg, ports...).State().Flows {
			p := place{f.Table, f.Priority}
			at[p] = append(at[p], f)
		}

		for _, flows := range at {
			for i, a := range flows {
				for _, b := range flows[:i] {
					if overlap(&a.Match, &b.Match) && !slices.Equal(a.Actions, b.Actions) {
						t.Errorf("%s: a packet can match both\n%s\n%s", name, a, b)
					}
				}
			}
		}
	}

	for _, k := range kinds {
		check(k.Name, k.ServicePort())
	}
	check("consistent", consistentPort(5, 0))
	check("consistent with source ranges", consistentPort(5, 0, prefix("192.168.0.0/24")))
	for _, protocol := range []k8s.Protocol{"TCP", "UDP", "SCTP"} {
		for _, family := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
			s := shape{Name: "any", Cluster: 3, Local: 1, Protocol: protocol, Family: family, Affinity: 60, External: k8s.Local, Types: all}
			check("affinity and policy Local, "+string(protocol)+", "+family.String(), s.ServicePort())
		}
	}
}

// overlap reports whether a packet can match both, as far as single fields show.
func overlap(a, b *flow.Match) bool {
	bits := func(x, y flow.Bits) bool { return (x.Value^y.Value)&x.Mask&y.Mask == 0 }
	prefixes := func(x, y netip.Prefix) bool { return !x.IsValid() || !y.IsValid() || x.Overlaps(y) }
	if !prefixes(a.Src, b.Src) || !prefixes(a.Dst, b.Dst) || a.EthDst != b.EthDst && !a.EthDst.IsZero() && !b.EthDst.IsZero() {
		return false
	}

	numbers := func(m *flow.Match) []uint32 {
		return []uint32{m.InPort, uint32(m.EthType), uint32(m.IPProto), uint32(m.DstPort), uint32(m.ICMPType), uint32(m.CTZone),
			uint32(m.CTProto), uint32(m.CTSrcPort), uint32(m.CTDstPort)}
	}
	masked := func(m *flow.Match) []flow.Bits {
		return append([]flow.Bits{m.SrcPort, m.TCPFlags, m.Frag, m.CTState, m.CTMark}, m.Reg[:]...)
	}
	y, z := numbers(b), masked(b)
	for i, x := range numbers(a) {
		if x != y[i] && x != 0 && y[i] != 0 {
			return false
		}
	}
	for i, x := range masked(a) {
		if !bits(x, z[i]) {
			return false
		}
	}
	return true
}
