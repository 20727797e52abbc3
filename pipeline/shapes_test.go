package pipeline

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt")

var all = []k8s.FrontendType{k8s.ClusterIP, k8s.ExternalIP, k8s.LoadBalancer, k8s.NodePort}

// counterFlows is what counting adds to the flows of every Service port.
const counterFlows = 3

// shapes are the kinds of Service port, with the number of flows (beside those that count), shared flows and groups that
// each costs.
// A number that grows shows here.
var shapes = []struct {
	shape
	flows, shared, groups int
}{
	{shape{name: "clusterip", cluster: 3, types: all[:1]}, 1, 2, 1},
	{shape{name: "clusterip-ipv6", cluster: 3, family: k8s.IPv6, types: all[:1]}, 1, 4, 1}, // two more shared: near.go
	{shape{name: "clusterip-udp", cluster: 2, protocol: "UDP", types: all[:1]}, 3, 3, 1},   // two more, and one shared, for fragments
	{shape{name: "clusterip-sctp", cluster: 2, protocol: "SCTP", types: all[:1]}, 1, 2, 1},
	{shape{name: "no-endpoints", types: all[:1]}, 1, 1, 0},
	{shape{name: "internal-local", cluster: 3, local: 1, internal: k8s.Local, types: all[:1]}, 1, 2, 0},
	{shape{name: "internal-local-none-here", cluster: 3, internal: k8s.Local, types: all[:1]}, 1, 2, 0},
	{shape{name: "nodeport", cluster: 3, types: []k8s.FrontendType{k8s.ClusterIP, k8s.NodePort}}, 2, 2, 1},
	{shape{name: "all-frontends", cluster: 3, local: 2, types: all}, 4, 2, 1},
	{shape{name: "external-local", cluster: 3, local: 1, external: k8s.Local, types: all}, 10, 2, 1},
	{shape{name: "external-local-none-here", cluster: 3, external: k8s.Local, types: all}, 10, 2, 1},
	{shape{name: "source-ranges", cluster: 2, types: all[2:3], ranges: []netip.Prefix{
		prefix("192.168.0.0/24"), prefix("172.16.0.0/16")}}, 5, 1, 1},
	{shape{name: "affinity", cluster: 3, affinity: 10800, types: all[:1]}, 6, 4, 1},
	{shape{name: "affinity-local", cluster: 3, local: 1, affinity: 60, external: k8s.Local, types: all}, 17, 4, 2},
	{shape{name: "wide", cluster: 100, types: all[:1]}, 1 + 88, 2, 1},
}

// The text of each shape, as `nkp plan -o ofctl` prints it. Run with -update after a change that is meant.
func TestShapes(t *testing.T) {
	common := compile(t, testConfig())
	checkGolden(t, "common", text(t, common.State()))
	for _, tc := range shapes {
		t.Run(tc.name, func(t *testing.T) {
			sp := tc.servicePort()
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
			checkGolden(t, tc.name, text(t, own))
		})
	}
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; first difference:\n%s", file, firstDifference(got, string(want)))
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			line := "(end)"
			if i < len(w) {
				line = w[i]
			}
			return "got  " + g[i] + "\nwant " + line
		}
	}
	return "want has more lines"
}

// The common part costs the same whatever the Services are.
func TestTrunkSize(t *testing.T) {
	c := compile(t, testConfig())
	if n := len(c.State().Flows); n != 110 {
		t.Errorf("the common part has %d flows; pinned are 110", n)
	}
	cfg := Config{Layout: DefaultLayout()}
	c = compile(t, cfg)
	if n := len(c.State().Flows); n != 43 {
		t.Errorf("the common part of a node about which nothing is known has %d flows; pinned are 43", n)
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
	c := compile(t, cfg, shape{name: "a", cluster: 100, affinity: 5, external: k8s.Local, types: all}.servicePort())
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
		if v4, v6 := cfg.detects(k8s.IPv4), cfg.detects(k8s.IPv6); v4 != c.v4 || v6 != c.v6 {
			t.Errorf("%+v, uplink %d: IPv4 %v, IPv6 %v; want %v, %v", c.detector, c.uplink, v4, v6, c.v4, c.v6)
		}
	}
}
