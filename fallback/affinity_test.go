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

// An external IP at the node's address with the number of another Service's NodePort goes before it: its clients are not remembered
// among the NodePort's, and its connections are not reset as the NodePort's.
func TestNodeAddressBeforeNodePort(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{})
	o := defaults(onNFTables)
	web := service("web", 1, "type: NodePort", "sessionAffinity: ClientIP") + endpoints("web", pods[1])
	web = strings.Replace(web, "namespace: default}", "namespace: default, annotations: {nkp-proxy.github.io/removed-endpoints: close}}", 1)
	other := strings.NewReplacer("port: 80, protocol: TCP, nodePort: 30002", "port: 30001, protocol: TCP, nodePort: 30002").Replace(
		service("other", 2, "type: NodePort", "externalTrafficPolicy: Local", `externalIPs: [172.16.0.2, "fd00:ac::2"]`)) + endpoints("other", pods[0])
	start(t, b, o, nodeObject+web+other)
	for _, to := range []string{"172.16.0.2:30001", "[fd00:ac::2]:30001"} {
		k, err := b.External.Hold(t.Context(), to, testbed.DialOptions{})
		must(t, err)
		if k.Who != pods[0].Name {
			t.Fatalf("%s is answered by %s", to, k.Who)
		}
		family := map[bool]string{true: "ipv6", false: "ipv4"}[strings.HasPrefix(to, "[")]
		if out, err := b.Exec(b.Node, "conntrack", "-D", "-f", family, "-p", "tcp", "--orig-port-dst", "30001"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := k.Check(); err != nil {
			t.Errorf("%s, once conntrack does not know the connection: %v", to, err)
		}
	}
	for _, family := range []string{"ip", "ip6"} {
		if s := inNFTables(t, b, "list", "table", family, "nkp"); strings.Contains(s, "expires") || !strings.Contains(s, "clients-") {
			t.Errorf("clients of another Service are remembered:\n%s", s)
		}
	}
}
