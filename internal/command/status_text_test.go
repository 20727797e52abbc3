package command

import (
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/observe/metrics"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/windows"
)

// What is wrong is said with its cause, and what is pending by what it is.
func TestStatusText(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(s int) *time.Time { at := now.Add(-time.Duration(s) * time.Second); return &at }
	no := false
	there := bridge.BridgeStatus{Name: "br-int", Exists: true}
	for _, x := range []struct {
		name   string
		status api.Status
		want   string
	}{
		{"changes", api.Status{Pending: metrics.Pending{Services: 2, EndpointSlices: 3, For: 1500 * time.Millisecond}},
			"pending changes of 2 Services and 3 EndpointSlices, the oldest for 1.5s"},
		{"start", api.Status{Start: api.StartStatus{Chosen: 10, Synced: 1310, Model: 1500, InStep: 1900, Lists: []api.ListStatus{
			{ListStats: apiserver.ListStats{Kind: k8s.KindService, Objects: 10013, Bytes: 3_140_000}, Milli: 840}}}},
			"start took 1.90 s: data plane detected at 0.01 s, Service list at 0.84 s (10013, 3.1 MB), lists complete at 1.31 s, model 0.19 s, programming 0.40 s"},
		{"no bridge", api.Status{Pending: metrics.Pending{For: time.Second}, Status: &bridge.Status{Bridge: bridge.BridgeStatus{Name: "br-int"}}},
			"pending everything, for 1s: there is no bridge br-int"},
		{"no bridge", api.Status{Status: &bridge.Status{Bridge: bridge.BridgeStatus{Name: "br-int", OVSVersion: "3.1.0"}}},
			"bridge br-int does NOT exist; Open vSwitch 3.1.0"},
		{"a switch without version", api.Status{Status: &bridge.Status{Bridge: bridge.BridgeStatus{Name: "br-int", Exists: true, Datapath: "netdev"}}},
			"bridge br-int, datapath netdev, Open vSwitch of unknown version, uplink port 0, 0 pod addresses"},
		{"one client", api.Status{Status: &bridge.Status{Bridge: there, Affinity: bridge.AffinityStatus{Clients: 1, Limit: 2, NodeLimit: 3}}},
			"affinity 1 client remembered, at most 2 of a Service port and 3 in all"},
		{"no channel", api.Status{Pending: metrics.Pending{For: time.Second}, Status: &bridge.Status{Bridge: there}},
			"pending everything, for 1s: the switch is not connected"},
		{"the node", api.Status{Pending: metrics.Pending{For: time.Second}}, "pending what the node and its settings call for, for 1s; no Service has changed"},
		{"canary passed", api.Status{Canary: []dataplane.CanaryVerdict{{Plane: "ovs", Family: "IPv4", Passed: []string{"table 1", "group"}, PassedAt: ago(3)}}},
			"data path ovs, IPv4: a packet of nkp's own passed 3s ago: table 1, group"},
		{"canary lost", api.Status{Canary: []dataplane.CanaryVerdict{{Plane: "ovs", Family: "IPv4", PassedAt: ago(30), Fault: "here", FaultSince: ago(9), Unknown: "away"}}},
			"data path ovs, IPv4: does NOT let packets of nkp's own pass; the latest shows nothing: away"},
		{"compared", api.Status{Status: &bridge.Status{Bridge: there, InStep: true, LastSync: ago(90), Compared: ago(12), Record: dataplane.Record{Repairs: 1}}},
			"in step the switch holds what it should, last change 1m30s ago, compared 12s ago: 0 flows, 0 groups; repaired 1 time"},
		{"API server away", api.Status{Source: api.SourceStatus{Kind: "API server u", Synced: true, Answers: &no, AwaySince: ago(40)}},
			"source API server u: does NOT answer since 2026-03-01T11:59:20Z (40s ago); the last state stays in force"},
		{"busy", api.Status{Loops: []dataplane.State{{Loop: "bridge", Doing: "counting flows", Since: *ago(150), For: 150 * time.Second, Stuck: true}}},
			"BUSY bridge has made no progress since 2026-03-01T11:57:30Z (2m30s): counting flows"},
		{"HNS hangs", api.Status{HNS: &windows.Status{Why: "a sync with HNS has not ended for 40s", Synced: *ago(60)}},
			"in step NO: a sync with HNS has not ended for 40s; 0 load balancers, 0 endpoints, last sync 1m0s ago"},
		{"HNS has it all", api.Status{HNS: &windows.Status{InStep: true, Synced: *ago(60)}}, "in step yes; 0 load balancers"},
		{"HNS never answered", api.Status{HNS: &windows.Status{Why: "changes are not in HNS yet"}}, "in step NO: changes are not in HNS yet"},
		{"connected, and busy", api.Status{Status: &bridge.Status{Bridge: there, Channel: bridge.ChannelStatus{Target: "unix:x", Connected: true}}},
			"channel connected to unix:x in step the switch does NOT hold what it should yet"},
		{"frozen", api.Status{Status: &bridge.Status{Bridge: there, Why: "ovs-vswitchd has not answered since X", Compared: ago(12),
			Channel: bridge.ChannelStatus{Target: "unix:x", Connected: true, Silent: true}}},
			"channel connected to unix:x, but ovs-vswitchd has not answered since X in step NOT known: the switch does not answer, compared 12s ago"},
		{"gone", api.Status{Status: &bridge.Status{Bridge: there, Compared: ago(12), Channel: bridge.ChannelStatus{Target: "unix:x", LastError: "refused"}}},
			"channel NOT connected to unix:x: refused in step NOT known: the switch is not connected, compared 12s ago"},
		{"no database", api.Status{Status: &bridge.Status{Bridge: there, Database: bridge.DatabaseStatus{Endpoint: "unix:db", AwaySince: ago(40), LastError: "lost"}}},
			"DATABASE unix:db does NOT answer since 2026-03-01T11:59:20Z (40s ago): lost;"},
		{"an error of two lines, and its time", api.Status{Status: &bridge.Status{Bridge: there, Record: dataplane.Record{LastError: "one\ntwo", LastErrorAt: *ago(40)}}},
			"LAST ERROR 2026-03-01T11:59:20Z (40s ago): one; two"},
		{"repaired", api.Status{Status: &bridge.Status{Bridge: there, Record: dataplane.Record{LastRepair: &dataplane.Repair{At: *ago(40), What: "default/web"}}}},
			"repaired 2026-03-01T11:59:20Z (40s ago): default/web"},
		{"rules read back", api.Status{IPTables: &fallback.Status{Families: []fallback.FamilyStatus{{Family: "IPv4", InStep: true, Services: 1, Chains: 1, Record: dataplane.Record{Compared: *ago(40)}}}}},
			"IPv4 all is programmed; the rules were as they should be when read back at 2026-03-01T11:59:20Z (40s ago): 1 Service port, 1 chain; repaired 0 times"},
		{"rules not read back", api.Status{IPTables: &fallback.Status{Families: []fallback.FamilyStatus{{Family: "IPv4", InStep: true}}}},
			"IPv4 all is programmed, but not read back since: 0 Service ports"},
		{"a two-line warning", api.Status{Warnings: []string{"one\ntwo"}}, "WARNING one; two"},
	} {
		var b strings.Builder
		must(t, writeStatus(&b, &x.status, now))
		if text := strings.Join(strings.Fields(b.String()), " "); !strings.Contains(text, x.want) {
			t.Errorf("%s: %q is not in\n%s", x.name, x.want, b.String())
		}
	}
}
