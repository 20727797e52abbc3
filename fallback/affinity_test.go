//go:build linux

package fallback_test

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// A client of a Service with session affinity is led to another endpoint when its own is gone, by every address; the bound on the
// clients holds, and those beyond it are served.
func TestAffinity(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{})
	o := defaults(onNFTables)
	o.AffinityLimit = 2
	svc := nodeObject + service("web", 1, "type: NodePort", "sessionAffinity: ClientIP")
	p := start(t, b, o, svc+endpoints("web", pods...))
	clients := []*testbed.Host{pods[0].Host, pods[1].Host, b.External, b.Node}
	for range 5 {
		for _, c := range clients {
			if _, err := c.Ask(t.Context(), "tcp", "172.16.0.2:30001"); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
	s := inNFTables(t, b, "list", "table", "ip", "nkp")
	if n := strings.Count(s, "expires"); n != 2 {
		t.Errorf("%d clients are remembered, 2 may be:\n%s", n, s)
	}
	for i := range 6 {
		left := pods[i%3]
		p.sync(svc + endpoints("web", left))
		for _, c := range clients {
			for _, to := range []string{"40.0.0.1:80", "172.16.0.2:30001", "[fd00:40::1]:80"} {
				if a, err := c.Ask(t.Context(), "tcp", to); err != nil || a.Pod != left.Name {
					t.Errorf("%s -> %s: answered by %q, want %s: %v", c.Name, to, a.Pod, left.Name, err)
				}
			}
		}
	}
}
