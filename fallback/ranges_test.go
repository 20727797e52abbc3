//go:build linux

package fallback_test

import (
	"fmt"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// loadBalancerSourceRanges change from any list to any other, ranges within, around and beside the old ones among them, in one
// transaction that the kernel accepts, in both families: a client in the old and the new list is never without an answer. So it is at a
// start that finds another list installed, and where the address goes to another Service.
func TestSourceRangesChange(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		client, other := pods[0].Host, pods[1].Host // 10.0.0.11 and 10.0.0.12
		lists := []struct {
			ranges string
			other  bool // is in them, too
		}{
			{`10.0.0.0/8, "fd00:a::/32"`, true},
			{`10.0.0.11/32, "fd00:a::11/128"`, false},
			{`10.0.0.8/30, "fd00:a::10/127"`, false},
			{`10.0.0.10/31, 10.0.0.12/32, 10.0.0.0/29, "fd00:a::11/128", "fd00:a::12/128", "fd00:a::0/124"`, true},
			{`10.0.0.0/8, 10.0.0.12/32, 192.0.2.0/24, "fd00:a::/48", "fd00:a::12/128"`, true},
		}
		manifests := func(name string, list int) string {
			return nodeObject + service(name, 1, "type: LoadBalancer", "loadBalancerSourceRanges: ["+lists[list].ranges+"]") +
				"status: {loadBalancer: {ingress: [{ip: 20.0.0.1}, {ip: \"fd00:20::1\"}]}}\n" + endpoints(name, pods[2]) +
				service("all", 2, "type: LoadBalancer") + "status: {loadBalancer: {ingress: [{ip: 20.0.0.2}, {ip: \"fd00:20::2\"}]}}\n" +
				endpoints("all", pods[2])
		}
		o := defaults(backend)
		p := start(t, b, o, manifests("web", 0))
		check := func(what string, list int) {
			t.Helper()
			for _, at := range []string{"20.0.0.%d:80", "[fd00:20::%d]:80"} {
				packet{what: what, from: client, proto: "tcp", to: fmt.Sprintf(at, 1), by: []string{pods[2].Name}}.check(t)
				denied := packet{what: what, from: other, proto: "tcp", to: fmt.Sprintf(at, 1), err: testbed.ErrTimeout, control: fmt.Sprintf(at, 2)}
				if lists[list].other {
					denied.err, denied.by = nil, []string{pods[2].Name}
				}
				denied.check(t)
			}
		}
		name := "web"
		for from := range lists {
			for to := range lists {
				what := fmt.Sprintf("%s, after %s", lists[to].ranges, lists[from].ranges)
				p.sync(manifests(name, from))
				switch (from + to) % 4 {
				case 1: // at a start
					p.kill()
					p = start(t, b, o, manifests(name, to))
				case 2: // another Service takes the address over
					name = map[string]string{"web": "heir", "heir": "web"}[name]
					fallthrough
				default:
					p.sync(manifests(name, to))
				}
				if from != to {
					check(what, to)
				}
				for _, f := range p.status().Families {
					if f.Failures > 0 || f.Repairs > 0 {
						t.Fatalf("%s: %s: %d failures, %d repairs: %+v", what, f.Family, f.Failures, f.Repairs, f)
					}
				}
			}
		}
	})
}
