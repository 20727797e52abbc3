//go:build linux

package fallback_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// What plan prints is what runs: iptables-restore takes it, Services are reached by it, and a Plane that finds it in place
// has no rule to write.
func TestPlanIsWhatRuns(t *testing.T) {
	each(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		o := defaults(backend)
		o.Tracker.ServiceCIDRs = testbed.ServiceRanges[:2]
		manifests := nodeObject + service("web", 1, "type: NodePort", "sessionAffinity: ClientIP") + endpoints("web", pods...) +
			service("here", 2, "type: LoadBalancer", "externalTrafficPolicy: Local", `loadBalancerSourceRanges: [192.168.0.0/16, "fd00:c0::/32"]`) +
			"status: {loadBalancer: {ingress: [{ip: 20.0.0.2}, {ip: \"fd00:20::2\"}]}}\n" + endpoints("here", pods[0]) +
			service("none", 3, "type: NodePort") + endpoints("none")
		p := start(t, b, o, manifests)
		text := p.ask(request{Op: "plan"}).Text
		p.kill()
		cleaner := launch(t, b, o)
		cleaner.ask(request{Op: "cleanup"})
		cleaner.kill()
		if strings.Contains(saved(t, b, backend), "40.0.0.1") {
			t.Fatal("rules of a Service are there after a cleanup")
		}
		four, six, ok := strings.Cut(text, "# ip6tables\n")
		if !ok {
			t.Fatal("no IPv6 part:\n", text)
		}
		for program, part := range map[string]string{"iptables-restore": four, "ip6tables-restore": six} {
			file := filepath.Join(t.TempDir(), program)
			must(t, os.WriteFile(file, []byte(part), 0o644))
			inIPTables(t, b, backend, program, "--noflush", file)
		}
		for _, c := range []packet{
			{what: "ClusterIP", from: pods[0].Host, proto: "tcp", to: "40.0.0.1:80", by: []string{"pod-11", "pod-12", "remote-11"}},
			{what: "load balancer", from: b.External, proto: "udp", to: "[fd00:20::2]:53", by: []string{"pod-11"}, as: b.External.IP6},
			{what: "no endpoints", from: b.External, proto: "tcp", to: "172.16.0.2:30003", err: testbed.ErrRefused},
		} {
			c.check(t)
		}
		for _, f := range start(t, b, o, manifests).status().Families {
			if f.Rules != 0 {
				t.Errorf("%d rules to write after the plan was applied", f.Rules)
			}
		}
	})
}
