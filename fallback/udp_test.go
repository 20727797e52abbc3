//go:build linux

package fallback_test

import (
	"errors"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A client that goes on sending from the same port is led to an endpoint that exists: when its endpoint goes, when a
// Service gets its first, when it loses its last, and when the Service itself goes and comes back.
func TestStaleUDP(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		svc := nodeObject + service("web", 1, "type: NodePort")
		p := start(t, b, defaults(backend), svc+endpoints("web", pods[0]))
		clients := []struct {
			from *testbed.Host
			to   string
		}{
			{pods[1].Host, "40.0.0.1:53"}, {b.External, "172.16.0.2:31001"}, {b.External, "[fd00:ac::2]:31001"},
			{b.Node, "[fd00:40::1]:53"}, {b.Node, "127.0.0.1:31001"},
		}
		ask := func(i int) (testbed.Answer, error) {
			c := clients[i]
			return c.from.AskWith(t.Context(), "udp", c.to, testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: 5000 + i}})
		}
		expect := func(what, who string) {
			t.Helper()
			for i, c := range clients {
				if a, err := ask(i); err != nil || a.Pod != who {
					t.Errorf("%s: %s -> %s: answered by %q, want %s: %v", what, c.from.Name, c.to, a.Pod, who, err)
				}
			}
		}
		expect("at first", "pod-11")
		p.sync(svc + endpoints("web", pods[2]))
		expect("another endpoint", "remote-11")
		p.sync(svc + endpoints("web"))
		for i, c := range clients {
			if a, err := ask(i); !errors.Is(err, testbed.ErrRefused) {
				t.Errorf("no endpoint: %s -> %s: answer %+v, error %v", c.from.Name, c.to, a, err)
			}
		}
		p.sync(svc + endpoints("web", pods[0]))
		expect("an endpoint again", "pod-11")
		p.sync(nodeObject)
		if a, err := ask(0); !errors.Is(err, testbed.ErrUnreachable) {
			t.Errorf("no Service: answered by %q: %v", a.Pod, err)
		}
		p.sync(svc + endpoints("web", pods[2]))
		expect("the Service again", "remote-11")
		if n := p.status().Families[0].Forgotten; n == 0 {
			t.Error("nothing was forgotten")
		}
	})
}
