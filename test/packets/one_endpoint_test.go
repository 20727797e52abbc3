//go:build linux

package packets

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// A Service with one endpoint needs no hash: connections share their cached flows, whatever their ports are. With two, the datapath
// caches a flow for each value of the hash.
func TestOneEndpointIsNotHashed(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	one, two := service("one", "40.0.0.1", protocol(v1.ProtocolUDP)), service("two", "40.0.0.2", protocol(v1.ProtocolUDP))
	tcp1, tcp2, tcp6 := service("tcp-one", "40.0.0.4"), service("tcp-two", "40.0.0.5"), service("tcp-six", "fd00:40::4")
	six, web := service("six", "fd00:40::1", protocol(v1.ProtocolUDP)), service("web", "40.0.0.3", exposed(30080))
	c.begin(one, slice(one, 8080, at(c.pods[1].IP4)), two, slice(two, 8080, ats(c.pods[1].IP4, c.pods[2].IP4)...),
		six, slice(six, 8080, at(c.pods[1].IP6)), web, slice(web, 8080, at(c.remotes[0].IP4)),
		tcp1, slice(tcp1, 8080, at(c.pods[1].IP4)), tcp2, slice(tcp2, 8080, ats(c.pods[1].IP4, c.pods[2].IP4)...), tcp6, slice(tcp6, 8080, at(c.pods[1].IP6)))
	const connections, slots = 64, 16
	for _, tc := range []struct {
		from      *testbed.Host
		proto, to string
		hashed    bool
	}{
		{c.pods[0].Host, "udp", "40.0.0.1:80", false},
		{c.pods[0].Host, "udp", "40.0.0.2:80", true},
		{c.pods[0].Host, "udp", "[fd00:40::1]:80", false},
		{c.pods[0].Host, "tcp", "40.0.0.4:80", false},
		{c.pods[0].Host, "tcp", "40.0.0.5:80", true},
		{c.pods[0].Host, "tcp", "[fd00:40::4]:80", false},
		{c.External, "tcp", hostPort(testbed.NodeIP4, 30080), false},
	} {
		ask := func(port int) {
			t.Helper()
			if _, err := tc.from.AskWith(c.ctx, tc.proto, tc.to, testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: port, Reset: true}}); err != nil {
				t.Fatalf("%s %s: %v\n%s", tc.proto, tc.to, err, c.explain(tc.proto, tc.to))
			}
		}
		ask(20000) // neighbours, and the flows of both directions
		before := c.upcalls(t)
		for i := range connections {
			ask(20001 + i)
		}
		n := c.upcalls(t) - before
		t.Logf("%s %s: %d more connections, %d upcalls", tc.proto, tc.to, connections, n)
		if n >= slots/2 != tc.hashed {
			t.Errorf("%s %s: %d upcalls; want %d or more only where endpoints are chosen by a hash", tc.proto, tc.to, n, slots/2)
		}
	}
}
