//go:build linux

package fallback

import (
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Connections are counted once each, by whatever address, and whatever they send; who is kept out by source ranges opens
// none. Neither endpoints that come and go nor a new start change what was counted.
func TestCounters(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend xtables.Backend) {
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
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		for range 20 { // all of one connection
			if err := held.Check(); err != nil {
				t.Fatal(err)
			}
		}
		for _, to := range []string{"20.0.0.2:80", "40.0.0.3:80"} {
			if a, err := pods[1].Ask(t.Context(), "tcp", to); err == nil {
				t.Errorf("%s is answered by %s", to, a.Pod)
			}
		}
		want := map[string]uint64{
			"default/web:http/TCP/IPv4": 167, "default/web:http/TCP/IPv6": 50, "default/web:dns/UDP/IPv4": 0, "default/web:dns/UDP/IPv6": 0,
			"default/ranges:http/TCP/IPv4": 6, "default/ranges:http/TCP/IPv6": 0, "default/none:http/TCP/IPv4": 0, "default/none:dns/UDP/IPv6": 0,
		}
		check := func(when string) {
			t.Helper()
			time.Sleep(countersAge)
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
