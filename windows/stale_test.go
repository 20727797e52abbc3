package windows

import (
	"errors"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// Remote endpoints of another owner that no Service needs, and the load balancers that send to them, are counted and named, and left alone.
// What a proxy left by itself is deleted, and the pods', Services' and source VIP's endpoints are none of them.
func TestStaleObjects(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.simple("web", "10.99.0.1", "100.244.1.1", "100.244.206.70@"+nodeName)
	b.pod("100.244.206.70")
	remote := func(address, mac string) string {
		return b.hns.AddEndpoint(hnsfake.Object{"HostComputeNetwork": b.network, "MacAddress": mac, "Flags": 1, "IpConfigurations": []any{map[string]any{"IpAddress": address}}})
	}
	needed := remote("100.244.2.9", "02-11-64-f4-02-09") // kube-proxy's, for a Service that is gone
	other := remote("100.244.2.10", "00-15-5d-00-00-77") // another program's
	remote("100.244.2.11", "02-11-64-f4-02-0b")          // kube-proxy's, without a load balancer: deleted
	lb := b.hns.AddLoadBalancer(hnsfake.Object{"HostComputeEndpoints": []any{strings.ToUpper(needed)}, "FrontendVIPs": []any{"10.99.7.7"},
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 8080, "ExternalPort": 80}}})
	for range 2 {
		b.good()
		s, err := b.plane.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := b.plane.Detail()
		if !s.InStep || d.Objects.StaleEndpoints != 2 || d.Objects.StaleLoadBalancers != 1 || len(s.Warnings) != 1 ||
			!strings.Contains(s.Warnings[0], needed+", "+other) && !strings.Contains(s.Warnings[0], other+", "+needed) || !strings.Contains(s.Warnings[0], lb) {
			t.Errorf("%+v, warnings %q", d.Objects, s.Warnings)
		}
	}
	b.hns.DropLoadBalancer(lb)
	b.hns.DropEndpoint(other)
	b.good()
	if d := b.plane.Detail(); d.Objects.StaleEndpoints != 0 || len(d.Warnings) != 0 {
		t.Errorf("%+v, warnings %q", d.Objects, d.Warnings)
	}
}

// A node without a free dynamic port has a warning in log and status until one is free again.
func TestPortsExhausted(t *testing.T) {
	probes, exhausted := 0, errors.New("no free dynamic TCP port")
	var now error
	b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) {
		o.freePort = func() error {
			probes++
			return now
		}
	})
	status := func(want bool, wantProbes int) {
		t.Helper()
		b.good()
		d := b.plane.Detail()
		if d.PortsExhausted != want || (len(d.Warnings) == 1) != want || want && d.Warnings[0] != exhausted.Error() || probes != wantProbes {
			t.Errorf("exhausted %t, warnings %q, %d probes", d.PortsExhausted, d.Warnings, probes)
		}
	}
	status(false, 1)
	status(false, 1)
	now = exhausted
	status(false, 1)
	b.clock = b.clock.Add(statePeriod)
	status(true, 2)
	status(true, 3)
	now = nil
	status(false, 4)
	status(false, 4)
	if err := freePort(); err != nil {
		t.Errorf("here: %v", err)
	}
}
