//go:build linux

package packets

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// A node whose address is on a bridge with fail_mode=secure and no flows reaches nothing before nkp runs, so that it could not start nkp
// from the API server. fail_mode=standalone, or a flow of the CNI's, which nkp leaves alone, lets it. nkp's flows stay when it ends.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	reaches := func(c *cluster) bool {
		for range 3 {
			ctx, cancel := context.WithTimeout(c.ctx, testbed.Patient(time.Second))
			_, err := c.Node.Ping(ctx, c.External.IP4)
			cancel()
			if err == nil {
				return true
			}
		}
		return false
	}
	if !reaches(newCluster(t, testbed.Options{Standalone: true})) {
		t.Error("standalone: the node does not reach the outside without nkp")
	}

	c := newCluster(t, testbed.Options{})
	if reaches(c) {
		t.Fatal("secure: the node reaches the outside without a flow")
	}
	const own = "priority=0,actions=NORMAL"
	_, err := c.Ofctl("add-flow", c.Bridge, own)
	must(t, err)
	if !reaches(c) {
		t.Fatal("the CNI's flow does not let the node reach the outside")
	}
	web := service("web", "40.0.0.1")
	c.put(web, slice(web, 8080, at(c.pods[1].IP4)))
	c.run()
	c.settle()
	c.servePods(t)
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.pods[1].Name)
	if flows, err := c.Ofctl("dump-flows", c.Bridge, "table=0"); err != nil || !strings.Contains(flows, "priority=0 actions=NORMAL") {
		t.Errorf("the CNI's flow is gone: %v\n%s", err, flows)
	}
	_, err = c.Ofctl("--strict", "del-flows", c.Bridge, "table=0,priority=0")
	must(t, err)
	c.agent.Kill()
	if !reaches(c) {
		t.Error("with nkp's flows and without nkp the node does not reach the outside")
	}
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.pods[1].Name)
}
