package command

import (
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/k8s"
)

func listOf(at time.Time, services ...api.ServiceInfo) *api.ServiceList {
	return &api.ServiceList{Node: "node-1", Mode: "ovs", Time: at, Services: services}
}

func info(name string, c *k8s.Counters) api.ServiceInfo {
	return api.ServiceInfo{Namespace: "default", Name: name, Protocol: "TCP", Family: "IPv4", Counters: c}
}

func countersOf(connections, packetsIn, packetsOut, bytesIn, bytesOut uint64) *k8s.Counters {
	return &k8s.Counters{Connections: connections, Packets: &k8s.Directions{In: packetsIn, Out: packetsOut}, Bytes: &k8s.Directions{In: bytesIn, Out: bytesOut}}
}

// Rates are differences by the time between the two looks; what was not there before, began again or is not counted has none.
// The highest come first.
func TestServiceRates(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	before := listOf(at, info("web", countersOf(10, 100, 200, 3000, 4000)), info("again", countersOf(10, 10, 10, 10, 10)),
		info("opened", &k8s.Counters{Connections: 4}), info("none", nil))
	now := listOf(at.Add(2*time.Second), info("web", countersOf(15, 101, 204, 3000, 8000)), info("again", countersOf(2, 20, 2, 20, 2)),
		info("opened", &k8s.Counters{Connections: 6}), info("none", nil), info("new", countersOf(1, 1, 1, 1, 1)))
	var b strings.Builder
	must(t, writeServices(&b, now, before, false, true, 0))
	lines := strings.Split(b.String(), "\n")
	for i, want := range []string{
		"default/again/TCP IPv4 - 0/0 2 20 2 20 2 - 5.0 - 5.0 -",
		"default/web/TCP IPv4 - 0/0 15 101 204 3000 8000 2.5 0.5 2.0 0.0 2000.0",
		"default/opened/TCP IPv4 - 0/0 6 - - - - 1.0 - - - -",
		"default/none/TCP IPv4 - 0/0 - - - - - - - - - -",
		"default/new/TCP IPv4 - 0/0 1 1 1 1 1 - - - - -",
	} {
		if got := strings.Join(strings.Fields(lines[i+1]), " "); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// --vip takes what the list prints, and only that.
func TestVIP(t *testing.T) {
	for _, f := range []api.FrontendInfo{{Address: "10.96.0.10", Port: 53}, {Address: "fd00::1", Port: 80}, {Port: 30080}, {Address: "50.0.0.1", Port: 80, NotServed: "x"}} {
		for _, text := range []string{frontendAddress(&f), frontendsText([]api.FrontendInfo{f}), frontendAddress(&f) + "/UDP"} {
			var at frontend
			if err := at.Set(text); err != nil || at.port != f.Port || at.address.IsValid() != (f.Address != "") || at.address.IsValid() && at.address.String() != f.Address ||
				(at.protocol == "UDP") != strings.HasSuffix(text, "/UDP") {
				t.Errorf("%s: %v, %+v", text, err, at)
			}
		}
	}
	for _, text := range []string{"web", "10.96.0.10:0", "10.96.0.10:http", "node:", "node:0", "node:65536", ":53", "/tcp", "fe80::1%eth0", "10.96.0.10/icmp", "()"} {
		if err := new(frontend).Set(text); err == nil {
			t.Errorf("--vip %s is accepted", text)
		}
	}
}

// What belongs to a Service stands below it, sets no column's width, and what is said of counters stands last, once.
func TestServicesText(t *testing.T) {
	web, dns := info("web", countersOf(1, 2, 3, 4, 5)), info("dns", nil)
	web.Port, web.CountersNote, dns.CountersNote = "http", "some are missing", "some are missing"
	web.Frontends = []api.FrontendInfo{{Type: "ClusterIP", Address: "fd00::1", Port: 80, Policy: "Cluster"}, {Type: "NodePort", Port: 30080, Policy: "Local", ShadowedBy: "default/old"},
		{Type: "LoadBalancer", Address: "50.0.0.1", Port: 80, Policy: "Cluster", SourceRanges: []string{"198.51.100.0/24", "fd00::/64"}},
		{Type: "LoadBalancer", Address: "50.0.0.2", Port: 80, NotServed: "the load balancer wants it"}}
	web.Endpoints = []api.EndpointInfo{{Address: "10.0.0.1:8080", Local: true, InForce: true}, {Address: "10.0.1.1:8080", Node: "node-2", Zone: "b", Pod: "default/web-2", Why: "not ready"}}
	dns.Problems = []string{"no endpoint is in force:\nnew connections are refused"}
	var b strings.Builder
	must(t, writeServices(&b, listOf(time.Now(), web, dns), nil, true, false, 0))
	const want = `SERVICE               FAMILY  FRONTENDS                                            ENDPOINTS  CONNECTIONS  PKTS IN  PKTS OUT  BYTES IN  BYTES OUT
default/web:http/TCP  IPv4    [fd00::1]:80 (node:30080) 50.0.0.1:80 (50.0.0.2:80)  1/2        1            2        3         4         5
    ClusterIP [fd00::1]:80, policy Cluster
    NodePort node:30080, policy Local, NOT served: it belongs to default/old
    LoadBalancer 50.0.0.1:80, policy Cluster, only from 198.51.100.0/24, fd00::/64
    LoadBalancer 50.0.0.2:80, NOT served: the load balancer wants it
    endpoint 10.0.0.1:8080, on this node: in force
    endpoint 10.0.1.1:8080, pod default/web-2, on node-2, zone b: NOT in force: not ready
default/dns/TCP       IPv4    -                                                    0/0        -            -        -         -         -
    PROBLEM: no endpoint is in force:; new connections are refused
counters: some are missing
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
