//go:build linux

package packets

import (
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// A node that does not forward is named by trace --live, although its rules are right, in both families.
func TestNodeDoesNotForward(t *testing.T) {
	c := newCluster(t, testbed.Options{Plane: testbed.Linux}, "--mode", "nftables", "--service-cidr", serviceCIDRs)
	four, six := service("four", "40.0.0.1"), service("six", "fd00:40::1")
	c.begin(four, slice(four, 8080, at(c.pods[0].IP4)), six, slice(six, 8080, at(c.pods[0].IP6)))
	client := aPod(c)
	for to, off := range map[string]string{"40.0.0.1:80": "net.ipv4.ip_forward=0", "[fd00:40::1]:80": "net.ipv6.conf.all.forwarding=0"} {
		from := client.IP4.String()
		if to[0] == '[' {
			from = client.IP6.String()
		}
		trace := []string{"trace", "--live", "--socket", c.socket(), "--from", from, "--to", to}
		c.ask(t, client, "tcp", to, c.pods[0].Name)
		if out, _, status := c.nkp(trace...); status != 0 {
			t.Errorf("status %d:\n%s", status, out)
		}
		_, err := c.Exec(c.Node, "sysctl", "-qw", off)
		must(t, err)
		out, _, status := c.nkp(trace...)
		if says(t, "trace", out, `not known to arrive: the node does not forward packets of `); status != 1 {
			t.Errorf("status %d", status)
		}
	}
}
