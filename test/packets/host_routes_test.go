//go:build linux

package packets

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

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
	warnings := func() string {
		c.awaitStatus(t, "nkp does not answer", func(*agent.Status) bool { return true })
		_, warnings := c.lacks(t)
		return warnings
	}
	c.put(service("web", "40.0.0.1"))
	c.run()
	c.settle()
	c.eventually("nkp's routes", func() error {
		if out := routes(); !strings.Contains(out, "proto 110") {
			return fmt.Errorf("routes %q", out)
		}
		return nil
	})
	before := routes()
	must(t, c.agent.Stop(syscall.SIGTERM))
	_, err := c.Exec(c.Node, "ip", "-6", "route", "del", "fd00:40::/112")
	must(t, err)
	c.run()
	c.settle()
	c.eventually("nkp looks at the routes", func() error { // of both families in one go
		out, err := c.Exec(c.Node, "ip", "-6", "route", "show", "fd00:40::/112")
		if err == nil && !strings.Contains(out, "proto 110") {
			err = fmt.Errorf("routes %q", out)
		}
		return err
	})
	if out := warnings(); strings.Contains(out, "route") || routes() != before {
		t.Errorf("after a restart the route is %q, before %q; status warns %q", routes(), before, out)
	}
	must(t, c.agent.Stop(syscall.SIGTERM))
	_, err = c.Exec(c.Node, "ip", "route", "replace", "40.0.0.0/24", "via", testbed.RouterIP4.String(), "dev", c.Bridge, "onlink")
	must(t, err)
	before = routes()
	c.run()
	c.settle()
	c.eventually("a warning about the other route", func() error {
		if out := warnings(); !strings.Contains(out, "a route to 40.0.0.0/24 exists that is not nkp's") {
			return fmt.Errorf("status warns %q", out)
		}
		return nil
	})
	if routes() != before {
		t.Errorf("the route of another program was %q, and is %q", before, routes())
	}
}
