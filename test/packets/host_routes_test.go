//go:build linux

package packets

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// awaitRoute waits until the node has a route of nkp's to a Service range.
func (c *cluster) awaitRoute(family, to string) {
	c.t.Helper()
	c.eventually("nkp's route to "+to, func() error {
		out, err := c.Exec(c.Node, "ip", family, "route", "show", to)
		if err == nil && !strings.Contains(out, "proto 110") {
			err = fmt.Errorf("routes %q", out)
		}
		return err
	})
}

// Routes that an earlier run of nkp made are used as they are, and nothing warns of them. A route of another program in the place of
// one of nkp's stays, and status names it.
func TestRoutesThatExist(t *testing.T) {
	nightly.Only(t, "TestHostTraffic deletes a route")
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC, "--service-cidr", serviceCIDRs)
	routes := func() string {
		out, err := c.Exec(c.Node, "ip", "route", "show", "40.0.0.0/24")
		must(t, err)
		return out
	}
	c.put(service("web", "40.0.0.1"))
	c.run()
	c.settle()
	c.awaitRoute("-4", "40.0.0.0/24")
	before := routes()
	must(t, c.agent.Stop(syscall.SIGTERM))
	_, err := c.Exec(c.Node, "ip", "-6", "route", "del", "fd00:40::/112")
	must(t, err)
	c.run()
	c.settle()
	c.awaitRoute("-6", "fd00:40::/112") // nkp looks at those of both families in one go
	if out := strings.Join(c.status(t).Warnings, "\n"); strings.Contains(out, "route") || routes() != before {
		t.Errorf("after a restart the route is %q, before %q; status warns %q", routes(), before, out)
	}
	must(t, c.agent.Stop(syscall.SIGTERM))
	_, err = c.Exec(c.Node, "ip", "route", "replace", "40.0.0.0/24", "via", testbed.RouterIP4.String(), "dev", c.Bridge, "onlink")
	must(t, err)
	before = routes()
	c.run()
	c.settle()
	c.statusSays("a route to 40.0.0.0/24 exists that is not nkp's")
	if routes() != before {
		t.Errorf("the route of another program was %q, and is %q", before, routes())
	}
}
