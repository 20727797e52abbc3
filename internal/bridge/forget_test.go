package bridge

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Each part of a filter counts; what it leaves open does not.
func TestSelected(t *testing.T) {
	at := netip.MustParseAddrPort
	gone := dpctl.Connection{Protocol: "UDP", Client: at("10.0.0.9:1"), Frontend: at("40.0.0.1:53"), Endpoint: at("10.0.1.1:5353"), Zone: 7}
	other := func(change func(*dpctl.Connection)) dpctl.Connection { c := gone; change(&c); return c }
	list := []dpctl.Connection{
		gone,
		other(func(c *dpctl.Connection) { c.Protocol = "TCP" }),
		other(func(c *dpctl.Connection) { c.Zone = 8 }),
		other(func(c *dpctl.Connection) { c.Frontend = at("40.0.0.1:54") }),
		other(func(c *dpctl.Connection) { c.Frontend = at("40.0.0.2:53") }),
		other(func(c *dpctl.Connection) { c.Endpoint = at("10.0.1.1:5354") }),
		other(func(c *dpctl.Connection) { c.Endpoint = at("10.0.1.2:5353") }),
		other(func(c *dpctl.Connection) { c.Client = at("10.0.0.8:2") }),
	}
	exact := flow.CTFilter{Zone: 7, IPProto: flow.ProtoUDP, Dst: gone.Frontend, Replier: gone.Endpoint}
	filter := func(change func(*flow.CTFilter)) []flow.CTFilter { f := exact; change(&f); return []flow.CTFilter{f} }
	for name, tc := range map[string]struct {
		filters []flow.CTFilter
		want    []int
	}{
		"exact":       {[]flow.CTFilter{exact}, []int{0, 7}},
		"twice":       {[]flow.CTFilter{exact, exact}, []int{0, 7}},
		"any replier": {filter(func(f *flow.CTFilter) { f.Replier = netip.AddrPort{} }), []int{0, 5, 6, 7}},
		"any port of the replier": {filter(func(f *flow.CTFilter) { f.Replier = netip.AddrPortFrom(f.Replier.Addr(), 0) }),
			[]int{0, 5, 7}},
		"any port":  {filter(func(f *flow.CTFilter) { f.Dst = netip.AddrPortFrom(f.Dst.Addr(), 0) }), []int{0, 3, 7}},
		"elsewhere": {filter(func(f *flow.CTFilter) { f.Dst = at("40.0.0.9:53") }), nil},
		"none":      {nil, nil},
	} {
		var want []dpctl.Connection
		for _, i := range tc.want {
			want = append(want, list[i])
		}
		if got := selected(list, tc.filters); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
