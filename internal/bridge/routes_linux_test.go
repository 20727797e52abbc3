package bridge

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Without a Service range, and with the default route elsewhere, the node's own traffic does not get to the bridge: that is said.
func TestNoWayToTheBridge(t *testing.T) {
	for _, ranges := range [][]netip.Prefix{nil, {netip.MustParsePrefix("40.0.0.0/16")}} {
		h := hostTraffic{set: &Settings{Bridge: "br-none", HostTraffic: HostOVS}, log: slog.New(slog.DiscardHandler)}
		h.check(&pipeline.Config{NodeMAC: flow.MAC{2}, ServiceCIDRs: ranges}, nil, nil, nil)
		if said := strings.Contains(strings.Join(h.warnings, "\n"), "the Service range is unknown"); said != (ranges == nil) {
			t.Errorf("ranges %v: %q", ranges, h.warnings)
		}
	}
}

// Of a family whose addresses are elsewhere the node's own traffic gets no routes to the bridge: that is said, too.
func TestNoWayToTheBridgeForAFamily(t *testing.T) {
	for _, elsewhere := range [][]k8s.Family{nil, {k8s.IPv6}} {
		h := hostTraffic{set: &Settings{Bridge: "br-none", HostTraffic: HostOVS}, log: slog.New(slog.DiscardHandler)}
		h.check(&pipeline.Config{NodeMAC: flow.MAC{2}, NodeElsewhere: elsewhere}, nil, nil, nil)
		if said := strings.Contains(strings.Join(h.warnings, "\n"), "its own IPv6 traffic"); said != (elsewhere != nil) {
			t.Errorf("elsewhere %v: %q", elsewhere, h.warnings)
		}
	}
}
