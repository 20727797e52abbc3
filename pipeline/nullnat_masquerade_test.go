package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Where a translation must change something, a connection whose source is the masquerade address already is committed as it is, before
// the flow that would masquerade it.
func TestMasqueradeToOwnAddress(t *testing.T) {
	for _, noNullNAT := range []bool{true, false} {
		cfg := testConfig()
		cfg.NoNullNAT = noNullNAT
		flows := compile(t, cfg).State().Flows
		// commits returns whether a flow commits in the zone of masquerading, and the address that it translates the source to.
		commits := func(f *flow.Flow) (yes bool, to netip.Addr) {
			for _, a := range f.Actions {
				if ct, ok := a.(flow.CT); ok && ct.Commit && ct.Zone == cfg.Layout.ZoneSNAT {
					yes, to = true, ct.NAT.Addr
				}
			}
			return yes, to
		}
		masquerading := 0
		for _, f := range flows {
			_, ip := commits(f)
			if !slices.Contains(cfg.NodeIPs, ip) || f.Match.Src.IsValid() || f.Match.IPProto == flow.ProtoICMPv6 { // ICMPv6 errors: a copy
				continue
			}
			masquerading++
			found := false
			for _, g := range flows {
				m := g.Match
				m.Src, m.Reg[0] = f.Match.Src, f.Match.Reg[0] // reg0: near.go
				yes, to := commits(g)
				found = found || yes && !to.IsValid() && g.Table == f.Table && g.Priority > f.Priority && m == f.Match && g.Match.Src == host(ip)
			}
			if found != noNullNAT {
				t.Errorf("NoNullNAT %t: connections from %v are committed as they are: %t (%v)", noNullNAT, ip, found, f)
			}
		}
		if masquerading != len(cfg.NodeIPs) {
			t.Errorf("%d flows masquerade to the node's addresses, want one for each of %v", masquerading, cfg.NodeIPs)
		}
	}
}
