//go:build linux

package packets

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A node whose address is on a bridge with fail_mode=secure and no flows reaches nothing before nkp runs, so that it could not start nkp
// from the API server. fail_mode=standalone, or a flow of the CNI's, which nkp leaves alone, lets it. nkp's flows stay when it ends.
func TestBootstrap(t *testing.T) {
	nightly.Only(t, "TestHostTraffic reaches Services without an agent")
	reaches := func(c *cluster, how string) {
		t.Helper()
		wait.NoError(t, "the node reaches the outside, "+how, func() error {
			ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second) // until the next one
			defer cancel()
			_, err := c.Node.Ping(ctx, c.External.IP4)
			return err
		})
	}
	reaches(newCluster(t, testbed.Options{Standalone: true}), "standalone, without nkp")

	c := newCluster(t, testbed.Options{})
	for _, packet := range []string{"arp", "icmp"} {
		out, err := c.Trace(c.Bridge, "in_port=LOCAL,"+packet)
		must(t, err)
		if !strings.Contains(out, "Datapath actions: drop") {
			t.Fatalf("secure, without a flow, %s:\n%s", packet, out)
		}
	}
	const own = "priority=0,actions=NORMAL"
	_, err := c.Ofctl("add-flow", c.Bridge, own)
	must(t, err)
	reaches(c, "by the CNI's flow")
	web := service("web", "40.0.0.1")
	c.begin(web, slice(web, 8080, at(c.pods[1].IP4)))
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.pods[1].Name)
	if flows, err := c.Ofctl("dump-flows", c.Bridge, "table=0"); err != nil || !strings.Contains(flows, "priority=0 actions=NORMAL") {
		t.Errorf("the CNI's flow is gone: %v\n%s", err, flows)
	}
	_, err = c.Ofctl("--strict", "del-flows", c.Bridge, "table=0,priority=0")
	must(t, err)
	c.settle() // nkp's own flow is back, because all that was there forwarded everything
	c.agent.Kill()
	reaches(c, "by nkp's flows, without nkp")
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.pods[1].Name)
}
