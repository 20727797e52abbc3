package live

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/bound"
)

// What a trace of the running state lists, it names 5 times at most, and counts the others.
func TestListsAreBounded(t *testing.T) {
	for what, add := range map[string]func(l *trace.Live, n int){
		"connections": func(l *trace.Live, n int) {
			from, to := netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort("40.0.0.1:80")
			c := dpctl.Connection{Protocol: "TCP", Client: from, Frontend: to, Endpoint: netip.MustParseAddrPort("10.0.1.1:80")}
			addConnections(l, &trace.Result{}, slices.Repeat([]dpctl.Connection{c}, n))
		},
		"differences of nkp's table": func(l *trace.Live, n int) {
			s := Tables{Diff: func() ([]string, error) { return slices.Repeat([]string{"+ an element"}, n), nil }}
			if err := s.differences(l); err != nil {
				t.Error(err)
			}
		},
		"flows of other owners": func(l *trace.Live, n int) {
			v := view{Switch: &Switch{}, Live: l}
			v.reportOtherForeign(&Differences{Foreign: slices.Repeat([]*flow.Flow{{Key: flow.Key{Table: 200}}}, n)}, &concern{ports: map[uint32]bool{0: true}})
		},
	} {
		bound.Check(t, what, 5, func(n int) []string {
			l := trace.NewLive()
			add(l, n)
			return slices.Concat(l.Steps, l.Differences)
		})
	}
}
