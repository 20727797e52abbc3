package pipeline

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/golden"
)

// pinged compiles Service ports with or without answers to pings.
func pinged(t *testing.T, answers bool, ports ...*k8s.ServicePort) *Compiler {
	t.Helper()
	cfg := testConfig()
	cfg.AnswerPing = answers
	return compile(t, cfg, ports...)
}

// What pings add, and to nothing else: the rest is as without them, flow by flow.
func TestPings(t *testing.T) {
	web := shape{Name: "web", Cluster: 2, Types: all}.ServicePort()
	other := shape{Name: "other", Cluster: 2, Types: all, Protocol: "UDP"}.ServicePort() // the same addresses
	six := shape{Name: "six", Cluster: 2, Family: k8s.IPv6, Types: all}.ServicePort()
	local := shape{Name: "local", Cluster: 2, VIP: 1, External: k8s.Local, Types: all}.ServicePort()
	none := shape{Name: "none", VIP: 2, Types: all}.ServicePort()
	ranged := shape{Name: "ranged", Cluster: 1, VIP: 3, Types: all[2:3], Ranges: []netip.Prefix{
		prefix("192.168.0.0/24"), prefix("192.168.0.0/16")}}.ServicePort()
	ports := []*k8s.ServicePort{web, other, six, local, none, ranged}

	with, without := pinged(t, true, ports...), pinged(t, false, ports...)
	d := flow.Diff(without.State(), with.State())
	if len(d.DelFlows) > 0 || len(d.SetGroups)+len(d.DelGroups) > 0 {
		t.Errorf("pings change more: %v %v", d.DelFlows, d.SetGroups)
	}
	own := flow.NewState()
	own.Apply(&flow.Delta{SetFlows: d.SetFlows})
	golden.Check(t, "testdata/pings.txt", text(t, own))

	at := map[string]int{} // flows of an address
	for _, f := range d.SetFlows {
		if f.Priority == prioPinged {
			at[f.Match.Dst.String()]++
		}
	}
	for vip, want := range map[string]int{"40.0.0.1/32": 1, "30.0.0.1/32": 1, "20.0.0.1/32": 1, // shared by two Service ports
		"fd00:28::1/128": 1, "40.0.0.2/32": 1, "20.0.0.2/32": 2, "20.0.0.3/32": 0, "20.0.0.4/32": 2} {
		if at[vip] != want {
			t.Errorf("%s has %d flows, want %d", vip, at[vip], want)
		}
	}

	// As one Service port goes, the other keeps the address answered; then the flow goes, too.
	gone := func(name k8s.PortName) bool {
		return slices.ContainsFunc(with.Update(map[k8s.PortName]*k8s.ServicePort{name: nil}).DelFlows, func(f *flow.Flow) bool {
			return f.Priority == prioPinged && f.Match.Dst == prefix("40.0.0.1/32")
		})
	}
	if gone(web.Name) || !gone(other.Name) {
		t.Error("a flow is not that of the last Service port with its address")
	}
}

// Every pod's port has a share of the rate of pings, as it has of refusals; ports far apart may have one together.
func TestPingMeters(t *testing.T) {
	cfg := testConfig()
	cfg.AnswerPing, cfg.RejectRate = true, 800
	cfg.Senders = []uint32{11, 12, 11 + pingShares}
	c := compile(t, cfg)
	pings, rate := map[uint32]flow.Meter{}, uint32(0)
	for _, m := range c.Meters() {
		if c.Config().Layout.IsPingMeter(m.ID) {
			pings[m.ID], rate = m, rate+m.Rate
		}
	}
	if len(pings) != 3 || rate > 800 {
		t.Errorf("meters of pings: %v", pings)
	}
	for _, f := range c.State().Flows {
		for _, a := range f.Actions {
			if m, ok := a.(flow.ToMeter); ok && f.Table == tableTrack && pings[m.ID].ID == 0 {
				t.Errorf("no such meter: %v", f)
			}
		}
	}
	if s := text(t, c.State()); strings.Count(s, "cookie=0x6e6b700108000000") != 2 {
		t.Errorf("not one flow of each family counts the answers:\n%s", s)
	}
}
