//go:build linux

package fallback_test

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Connections are counted once each, by whatever address, and whatever they send; who is kept out by source ranges opens
// none. Neither endpoints that come and go nor a new start change what was counted.
func TestCounters(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		manifests := func(web ...*testbed.Pod) string {
			return nodeObject + service("web", 1, "type: LoadBalancer", "externalIPs: [20.0.0.101]", "sessionAffinity: ClientIP") +
				"status: {loadBalancer: {ingress: [{ip: 20.0.0.1}]}}\n" + endpoints("web", web...) +
				service("ranges", 2, "type: LoadBalancer", "loadBalancerSourceRanges: [10.0.0.11/32]") +
				"status: {loadBalancer: {ingress: [{ip: 20.0.0.2}]}}\n" + endpoints("ranges", pods[2]) +
				clusterIPOnly(service("none", 3)) + endpoints("none")
		}
		p := start(t, b, defaults(backend), manifests(pods...))
		many := func(from *testbed.Host, n int, to string) {
			t.Helper()
			if _, errs := from.Many(t.Context(), n, 4, to); len(errs) > 0 {
				t.Errorf("%s: %v", to, errs[0])
			}
		}
		many(pods[0].Host, 100, "40.0.0.1:80")
		many(b.Node, 30, "40.0.0.1:80")
		many(b.External, 20, "20.0.0.1:80")
		many(b.External, 10, "20.0.0.101:80")
		many(b.External, 7, "172.16.0.2:30001")
		many(pods[0].Host, 50, "[fd00:40::1]:80")
		many(pods[0].Host, 5, "20.0.0.2:80")
		held, err := pods[0].Hold(t.Context(), "40.0.0.2:80", testbed.DialOptions{})
		must(t, err)
		defer held.Close()
		for range 20 { // all of one connection
			must(t, held.Check())
		}
		for _, c := range []packet{
			{what: "outside all source ranges", to: "20.0.0.2:80", err: testbed.ErrTimeout, control: "10.0.0.11:80"},
			{what: "no endpoints", to: "40.0.0.3:80", err: testbed.ErrRefused},
		} {
			c.from, c.proto = pods[1].Host, "tcp"
			c.check(t)
		}
		want := map[string]uint64{
			"default/web:http/TCP/IPv4": 167, "default/web:http/TCP/IPv6": 50, "default/web:dns/UDP/IPv4": 0, "default/web:dns/UDP/IPv6": 0,
			"default/ranges:http/TCP/IPv4": 6, "default/ranges:http/TCP/IPv6": 0, "default/none:http/TCP/IPv4": 0, "default/none:dns/UDP/IPv6": 0,
		}
		check := func(when string) {
			t.Helper()
			got := p.ask(request{Op: "counters"}).Counters
			for id, n := range want {
				if c, ok := got[id]; !ok || c.Connections != n || c.Packets != nil || c.Bytes != nil {
					t.Errorf("%s: %s: counted %+v (%v), want %d connections", when, id, c, ok, n)
				}
			}
		}
		check("at first")
		p.sync(manifests(pods[1]))
		check("one endpoint is left")
		p.sync(manifests(pods[0], pods[2]))
		check("others are there")
		p.kill()
		p = start(t, b, defaults(backend), manifests(pods[0], pods[2]))
		check("a new start")
		many(pods[0].Host, 3, "40.0.0.1:80")
		want["default/web:http/TCP/IPv4"] += 3
		check("three more")
	})
}

// With CountTraffic, every packet of a Service is counted once, in its direction, with its IP header: from pods, from outside, from the
// node, from an endpoint to itself. Packets of no Service are not counted.
func TestNFTTraffic(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{})
	manifests := nodeObject + service("web", 1, "type: NodePort", "externalIPs: [20.0.0.101]") + endpoints("web", pods[0]) +
		service("far", 2, "type: NodePort") + endpoints("far", pods[2])
	o := defaults(onNFTables)
	o.CountTraffic = true
	p := start(t, b, o, manifests)
	counted := func(id string) (in, out, bytesIn, bytesOut uint64) {
		t.Helper()
		c := p.ask(request{Op: "counters"}).Counters[id]
		if c.Packets == nil || c.Bytes == nil {
			t.Fatalf("%s: %+v", id, c)
		}
		return c.Packets.In, c.Packets.Out, c.Bytes.In, c.Bytes.Out
	}
	for _, c := range []struct {
		from *testbed.Host
		to   string
		id   string
	}{
		{pods[1].Host, "40.0.0.1:53", "web:dns/UDP/IPv4"}, {pods[1].Host, "[fd00:40::1]:53", "web:dns/UDP/IPv6"},
		{b.External, "172.16.0.2:31001", "web:dns/UDP/IPv4"}, {b.External, "20.0.0.101:53", "web:dns/UDP/IPv4"}, {b.External, "[fd00:ac::2]:31001", "web:dns/UDP/IPv6"},
		{b.Node, "40.0.0.1:53", "web:dns/UDP/IPv4"}, {b.Node, "172.16.0.2:31001", "web:dns/UDP/IPv4"}, {b.Node, "127.0.0.1:31001", "web:dns/UDP/IPv4"},
		{pods[1].Host, "40.0.0.2:53", "far:dns/UDP/IPv4"}, {b.External, "172.16.0.2:31002", "far:dns/UDP/IPv4"},
		{pods[0].Host, "40.0.0.1:53", "web:dns/UDP/IPv4"}, // its own endpoint
	} {
		id := "default/" + c.id
		in, out, bytesIn, bytesOut := counted(id)
		const n = 10
		for range n {
			if _, err := c.from.Ask(t.Context(), "udp", c.to); err != nil {
				t.Errorf("%s to %s: %v", c.from.Name, c.to, err)
			}
			if _, err := c.from.Ask(t.Context(), "udp", pods[0].IP4.String()+":53"); err != nil && c.from != pods[0].Host {
				t.Errorf("%s to %s: %v", c.from.Name, pods[0].Name, err)
			}
		}
		in2, out2, bytesIn2, bytesOut2 := counted(id)
		header := uint64(28) // IPv4 and UDP
		if c.to[0] == '[' {
			header = 48
		}
		if in2-in != n || out2-out != n {
			t.Errorf("%s to %s: %d packets counted in and %d out, of %d each", c.from.Name, c.to, in2-in, out2-out, n)
		}
		if in, out := bytesIn2-bytesIn, bytesOut2-bytesOut; in < n*header || in > n*(header+100) || out <= n*header || out > n*(header+200) {
			t.Errorf("%s to %s: %d bytes in, %d out, in %d packets", c.from.Name, c.to, in, out, n)
		}
	}
	o.CountTraffic = false
	p.kill()
	p = start(t, b, o, manifests)
	if c := p.ask(request{Op: "counters"}).Counters["default/web:dns/UDP/IPv4"]; c.Packets != nil || c.Bytes != nil || c.Connections == 0 {
		t.Errorf("without counting: %+v", c)
	}
	if s := inNFTables(t, b, "list", "table", "ip", "nkp"); strings.Contains(s, "count-in") {
		t.Errorf("without counting:\n%s", s)
	}
}
