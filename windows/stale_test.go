package windows

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		must(t, err)
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

// A node with few free port blocks has a warning in log and status. Counting them delays no sync, and ends.
func TestFewPortBlocks(t *testing.T) {
	var now PortBlocks
	var failure error
	counts := 0
	b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) {
		o.portBlocks = func(context.Context) (PortBlocks, error) {
			counts++
			return now, failure
		}
	})
	status := func(free PortBlocks, err error, wantCounts, wantLogged int, warnings ...string) {
		t.Helper()
		now, failure = free, err
		b.log.Reset()
		b.good()
		b.plane.background.Wait()
		d := b.plane.Detail()
		ok := len(d.Warnings) == len(warnings) && counts == wantCounts && strings.Count(b.log.String(), "level=WARN") == wantLogged
		for i := range min(len(warnings), len(d.Warnings)) {
			ok = ok && strings.HasPrefix(d.Warnings[i], warnings[i]) && strings.Contains(b.log.String(), warnings[i]) == (wantLogged > 0)
		}
		if !ok || (d.FreePortBlocks == nil) != (failure != nil) {
			t.Errorf("%+v, warnings %q, %d counts; the log has\n%s", d.FreePortBlocks, d.Warnings, counts, b.log.String())
		}
		b.clock = b.clock.Add(statePeriod)
	}
	const tcp, udp = "10 blocks of 64 dynamic TCP ports are free", "0 blocks of 64 dynamic UDP ports are free"
	status(PortBlocks{11, 256}, nil, 1, 0)
	status(PortBlocks{10, 11}, nil, 2, 1, tcp)
	status(PortBlocks{10, 11}, nil, 3, 0, tcp)
	status(PortBlocks{10, 0}, nil, 4, 2, tcp, udp)
	status(PortBlocks{}, errors.New("netsh failed"), 5, 1)
	status(PortBlocks{}, errors.New("netsh failed"), 6, 0)
	status(PortBlocks{256, 256}, nil, 7, 0)
	b.clock = b.clock.Add(-time.Second)
	status(PortBlocks{}, nil, 7, 0)
}

// A count of port blocks that hangs delays nothing, and ends with Run.
func TestHangingPortCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := false
		b := newBed(t, hns.NetworkOverlay, newest, ownClock, func(o *Options) {
			o.portBlocks = func(ctx context.Context) (PortBlocks, error) {
				hangs = true
				<-ctx.Done()
				return PortBlocks{}, ctx.Err()
			}
		})
		b.simple("web", "10.99.0.1", "100.244.1.1")
		b.flush()
		stop := b.run()
		synctest.Wait()
		if !hangs || b.count() != 1 {
			t.Errorf("the count hangs: %v; %d load balancers", hangs, b.count())
		}
		stop()
	})
}

// The blocks that fit between used ports, and netsh's output, in two languages.
func TestPortBlocks(t *testing.T) {
	r := portRange{1000, 1639} // 10 blocks
	for _, c := range []struct {
		used []portRange
		want int
	}{
		{nil, 10},
		{[]portRange{{1, 999}, {1640, 65535}}, 10},
		{[]portRange{{1, 1000}}, 9},
		{[]portRange{{1639, 2000}}, 9},
		{[]portRange{{1064, 1064}}, 9},               // 64 before, 575 after: 1 + 8
		{[]portRange{{1063, 1063}, {1128, 1128}}, 8}, // 63, 64 and 511
		{[]portRange{{1200, 1400}, {1100, 1500}, {1300, 1310}, {1300, 1310}}, 3},
		{[]portRange{{1, 65535}}, 0},
		{[]portRange{{1000, 1576}}, 0},
		{[]portRange{{1000, 1575}}, 1},
	} {
		if n := r.freeBlocks(c.used); n != c.want {
			t.Errorf("%v used: %d blocks, want %d", c.used, n, c.want)
		}
	}
	for _, text := range []string{
		"\r\nProtocol tcp Dynamic Port Range\r\n---------------------------------\r\nStart Port      : 49152\r\nNumber of Ports : 16384\r\n\r\n",
		"\nDynamischer Portbereich - Protokoll tcp\n---------------------------------\nStartport       : 49152\nAnzahl von Ports: 16384\n",
	} {
		if r, err := parseDynamicRange(text); err != nil || r != (portRange{49152, 65535}) {
			t.Errorf("%v, %v in %s", r, err, text)
		}
	}
	for _, text := range []string{"", "The following command was not found", "Start Port : 49152", "Start Port : 49152\nNumber of Ports : 16385", "Start Port : 0\nNumber of Ports : 10", "a : 1\nb : 2\nc : 3"} {
		if r, err := parseDynamicRange(text); err == nil {
			t.Errorf("%q is taken for %v", text, r)
		}
	}
	got := parseExclusions("\r\nProtocol tcp Port Exclusion Ranges\r\n\r\nStart Port    End Port      \r\n----------    --------      \r\n      5357        5357      \r\n" +
		"     50000       50059     *\r\n\r\n* - Administered port exclusions.\r\n")
	if !slices.Equal(got, []portRange{{5357, 5357}, {50000, 50059}}) {
		t.Errorf("excluded: %v", got)
	}
}
