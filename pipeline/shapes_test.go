package pipeline

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/golden"
	"github.com/nkp-proxy/nkp/test/shapes"
)

type shape = shapes.Shape

var all = shapes.All

// kinds are the kinds of Service port, with the number of flows (beside those that count), shared flows and groups that
// each costs.
// A number that grows shows here.
var kinds = []struct {
	shape
	flows, shared, groups int
}{
	{shape{Name: "clusterip", Cluster: 3, Types: all[:1]}, 1, 2, 1},
	{shape{Name: "clusterip-ipv6", Cluster: 3, Family: k8s.IPv6, Types: all[:1]}, 1, 4, 1}, // two more shared: near.go
	{shape{Name: "clusterip-udp", Cluster: 2, Protocol: "UDP", Types: all[:1]}, 3, 3, 1},   // two more, and one shared, for fragments
	{shape{Name: "clusterip-sctp", Cluster: 2, Protocol: "SCTP", Types: all[:1]}, 1, 2, 1},
	{shape{Name: "no-endpoints", Types: all[:1]}, 1, 1, 0},
	{shape{Name: "internal-local", Cluster: 3, Local: 1, Internal: k8s.Local, Types: all[:1]}, 1, 2, 0},
	{shape{Name: "internal-local-none-here", Cluster: 3, Internal: k8s.Local, Types: all[:1]}, 1, 2, 0},
	{shape{Name: "nodeport", Cluster: 3, Types: []k8s.FrontendType{k8s.ClusterIP, k8s.NodePort}}, 2, 2, 1},
	{shape{Name: "all-frontends", Cluster: 3, Local: 2, Types: all}, 4, 2, 1},
	{shape{Name: "external-local", Cluster: 3, Local: 1, External: k8s.Local, Types: all}, 10, 2, 1},
	{shape{Name: "external-local-none-here", Cluster: 3, External: k8s.Local, Types: all}, 10, 2, 1},
	{shape{Name: "source-ranges", Cluster: 2, Types: all[2:3], Ranges: []netip.Prefix{
		prefix("192.168.0.0/24"), prefix("172.16.0.0/16")}}, 5, 1, 1},
	{shape{Name: "removed-endpoints", Cluster: 3, Local: 1, Closes: true, External: k8s.Local, Types: all}, 10 + 4, 2, 1},
	{shape{Name: "removed-endpoints-ranges", Cluster: 2, Closes: true, Types: all[2:3], Ranges: []netip.Prefix{prefix("192.168.0.0/24")}}, 3 + 1, 1, 1},
	{shape{Name: "affinity", Cluster: 3, Affinity: 10800, Types: all[:1]}, 6, 4, 1},
	{shape{Name: "affinity-local", Cluster: 3, Local: 1, Affinity: 60, External: k8s.Local, Types: all}, 17, 4, 2},
	{shape{Name: "wide", Cluster: 100, Types: all[:1]}, 1 + 88, 2, 1},
}

// The text of each shape, as `nkp plan -o ofctl` prints it. Run with -update after a change that is meant.
func TestShapes(t *testing.T) {
	common := compile(t, testConfig())
	golden.Check(t, "testdata/common.txt", text(t, common.State()))
	for _, tc := range kinds {
		t.Run(tc.Name, func(t *testing.T) {
			sp := tc.ServicePort()
			c := compile(t, testConfig(), sp)
			flows, groups := c.Objects(sp.Name)
			shared := len(c.State().Flows) - len(common.State().Flows) - len(flows)
			if len(flows) != tc.flows+counterFlows || len(groups) != tc.groups || shared != tc.shared {
				t.Errorf("%d flows, %d shared flows, %d groups; pinned are %d, %d, %d",
					len(flows), shared, len(groups), tc.flows+counterFlows, tc.shared, tc.groups)
			}
			own := flow.NewState()
			d := flow.Diff(common.State(), c.State())
			own.Apply(&flow.Delta{SetGroups: d.SetGroups, SetFlows: d.SetFlows})
			golden.Check(t, "testdata/"+tc.Name+".txt", text(t, own))
		})
	}
}

// What costs least: the common part of a node about which nothing is known.
func TestTrunkSize(t *testing.T) {
	c := compile(t, Config{Layout: DefaultLayout()})
	if n := len(c.State().Flows); n != 44 {
		t.Errorf("the common part has %d flows; pinned are 44", n)
	}
	if len(c.Missing()) != 2 {
		t.Errorf("missing: %q", c.Missing())
	}
}

// Without the router's MAC, a node on the bridge says so: test/packets waits until it does not.
func TestMissingGateway(t *testing.T) {
	cfg := testConfig()
	cfg.GatewayMAC = flow.MAC{}
	if missing := strings.Join(compile(t, cfg).Missing(), "\n"); !strings.Contains(missing, "the gateway's MAC is unknown") {
		t.Errorf("missing: %s", missing)
	}
}

// A table base moves every table, a next table replaces NORMAL everywhere.
func TestSharedBridge(t *testing.T) {
	cfg := testConfig()
	cfg.Layout.TableBase, cfg.Layout.NextTable = 100, 5
	c := compile(t, cfg, shape{Name: "a", Cluster: 100, Affinity: 5, External: k8s.Local, Types: all}.ServicePort())
	for _, f := range c.State().Flows {
		if f.Table < 100 {
			t.Errorf("in table %d: %v", f.Table, f)
		}
		for _, a := range f.Actions {
			switch a := a.(type) {
			case flow.Output:
				if a.Port == flow.PortNormal {
					t.Errorf("NORMAL in %v", f)
				}
			case flow.Resubmit:
				if a.Table < 100 && a.Table != 5 {
					t.Errorf("resubmits to table %d: %v", a.Table, f)
				}
			case flow.CT:
				if a.Table < 100 {
					t.Errorf("goes on in table %d: %v", a.Table, f)
				}
			}
		}
	}
}

// TestDetects checks on which bridges pods can be told from other clients. By a bridge alone they can only where the uplink is known:
// every other port leads to a pod then.
func TestDetects(t *testing.T) {
	cidr := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	for _, c := range []struct {
		detector k8s.Detector
		uplink   uint32
		v4, v6   bool
	}{
		{k8s.Detector{}, 1, false, false},
		{k8s.Detector{CIDRs: cidr}, 0, true, false},
		{k8s.Detector{InterfacePrefix: "veth"}, 0, true, true},
		{k8s.Detector{Bridge: "br-int"}, 1, true, true},
		{k8s.Detector{Bridge: "br-int"}, 0, false, false},
	} {
		cfg := Config{Detector: c.detector, Uplink: c.uplink}
		router := cfg.router()
		if v4, v6 := router.Detector.Has(k8s.IPv4), router.Detector.Has(k8s.IPv6); v4 != c.v4 || v6 != c.v6 {
			t.Errorf("%+v, uplink %d: IPv4 %v, IPv6 %v; want %v, %v", c.detector, c.uplink, v4, v6, c.v4, c.v6)
		}
	}
}

// Source ranges are the Service's: each has one flow, however many addresses of load balancers the Service has.
func TestManySourceRanges(t *testing.T) {
	const ranges, addresses = 20_000, 50
	sp := shape{Name: "ranges", Cluster: 2, Types: all[2:3]}.ServicePort()
	for i := range ranges {
		sp.Frontends[0].SourceRanges = append(sp.Frontends[0].SourceRanges,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i >> 8), byte(i), 0}), 24))
	}
	for i := range addresses - 1 {
		f := sp.Frontends[0]
		f.Address = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		sp.Frontends = append(sp.Frontends, f)
	}
	flows, _ := compile(t, testConfig(), sp).Objects(sp.Name)
	inRanges := 0
	for _, f := range flows {
		if f.Table == tableRanges {
			inRanges++
		}
	}
	if inRanges != ranges+1 {
		t.Errorf("%d flows of table %d for %d ranges", inRanges, tableRanges, ranges)
	}
}
