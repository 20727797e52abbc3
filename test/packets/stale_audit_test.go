//go:build linux

package packets

import (
	"fmt"
	"net"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// An audit deletes every stale UDP entry, also one of which no change of a Service reminds nkp: a packet that was on its way through
// the switch when its endpoint went can still make one after the last scan.
func TestStaleUDPFoundByAudit(t *testing.T) {
	s := service("dns", "40.0.0.1", protocol(v1.ProtocolUDP))
	c := newCluster(t, testbed.Options{Standalone: true})
	c.put(s, slice(s, 8080, at(c.pods[1].IP4)))
	c.runWith("--audit-period", "1s")
	c.settle()
	const scanned = "scanned for stale UDP conntrack entries"
	wait.For(t, "both scans after connecting", func() bool { return strings.Count(c.agent.Log.String(), scanned) >= 2 })
	entries := func() string {
		out, err := c.Appctl("dpctl/dump-conntrack", "zone=1001")
		must(t, err)
		return out
	}
	// Connections to an endpoint that does not serve, and after it to one that does (ct_mark: pipeline/README.md).
	var conns []net.Conn
	for i, endpoint := range []*testbed.Pod{c.pods[2], c.pods[1]} {
		port := 5353 + i
		_, err := c.Ofctl("add-flow", c.Bridge, fmt.Sprintf("priority=65000,udp,nw_dst=40.0.0.1,tp_src=%d actions=ct(commit,zone=1001,nat(dst=%s),exec(load:0x1->NXM_NX_CT_MARK[0]))",
			port, hostPort(endpoint.IP4, 8080)))
		must(t, err)
		conn, err := c.pods[0].DialUDP(c.ctx, "40.0.0.1:80", testbed.DialOptions{LocalPort: port})
		must(t, err)
		defer conn.Close()
		conns = append(conns, conn)
	}
	deleted := func() bool { return strings.Contains(c.agent.Log.String(), "map[IPv4:1") } // with netlink, of IPv6 too
	c.eventually("the stale entry gone, the other there", func() error {
		out := entries()
		for i, conn := range conns { // an entry without an answer ends after 30 s, and on a slow machine a scan may come later
			if i == 1 || !deleted() {
				_, err := conn.Write([]byte("?"))
				must(t, err)
			}
		}
		switch {
		case !deleted():
			return fmt.Errorf("nkp has not deleted the stale entry:\n%s", c.agent.Log.String())
		case strings.Contains(out, "sport=5353") || !strings.Contains(out, "sport=5354"):
			return fmt.Errorf("tracked:\n%s", out)
		}
		return nil
	})
	if log := c.agent.Log.String(); strings.Contains(log, "map[IPv4:2") {
		t.Errorf("nkp has deleted the other entry, too:\n%s", log)
	}
}
