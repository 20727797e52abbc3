//go:build linux

package packets

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A bridge that was deleted and made again, with other OpenFlow port numbers, is programmed without a restart: what nkp
// knew of the old one does not stay.
func TestBridgeComesBack(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	web := service("web", "40.0.0.1")
	c.begin(web, slice(web, 8080, at(c.pods[0].IP4)))
	c.ask(t, c.pods[1].Host, "tcp", "40.0.0.1:80", c.pods[0].Name)
	_, err := c.Vsctl("del-br", c.Bridge)
	must(t, err)
	c.statusSays("bridge br-int does not exist any more")
	c.put(web, slice(web, 8080, at(c.pods[2].IP4))) // changes that come meanwhile are not lost

	args := []string{"add-br", c.Bridge, "--", "set", "Bridge", c.Bridge, "datapath_type=" + testbed.DefaultDatapath(), "fail_mode=standalone",
		"--", "add-port", c.Bridge, testbed.UplinkName, "--", "set", "Interface", testbed.UplinkName, fmt.Sprint("ofport_request=", testbed.UplinkPort)}
	for _, p := range c.pods {
		args = append(args, "--", "add-port", c.Bridge, p.Interface, "--", "set", "Interface", p.Interface, fmt.Sprint("ofport_request=", p.OFPort+100),
			"external_ids:iface-id="+p.IfaceID, `external_ids:attached-mac="`+p.MAC+`"`, fmt.Sprintf("external_ids:ip_addresses=%q", p.IP4))
	}
	_, err = c.Vsctl(args...)
	must(t, err)
	c.statusSays("the switch holds what it should", "3 pod addresses")
	// The agent compares: unlike a newcomer it remembers the router that the node on the old bridge had.
	c.eventually("nkp diff", func() error {
		if out, errOut, status := c.nkp("diff", "--socket", c.socket()); status != 0 {
			return fmt.Errorf("it ends with %d: %s%s", status, out, errOut)
		}
		return nil
	})
	c.uncached(t)
	c.ask(t, c.pods[1].Host, "tcp", "40.0.0.1:80", c.pods[2].Name)
	if out, _, _ := c.nkp("status", "--socket", c.socket()); strings.Contains(out, "does not exist") {
		t.Errorf("status still says that the bridge does not exist:\n%s", out)
	}
}

// The node's address comes to the bridge after all changes of the switch's database: on the userspace datapath the bridge's device
// vanishes with ovs-vswitchd, and networkd gives the new one its address some time after ovs-vswitchd has made it.
func TestNodeAddressComesBack(t *testing.T) {
	nightly.Only(t, "TestRow10NodePort of test/semantics has the node get addresses")
	c := newCluster(t, testbed.Options{})
	web := service("web", "40.0.0.1", exposed(30080))
	c.begin(web, slice(web, 8080, at(c.pods[0].IP4)))
	address := func(what string) {
		for _, a := range []string{testbed.NodeIP4.String() + "/24", testbed.NodeIP6.String() + "/64"} {
			_, err := c.Exec(c.Node, "ip", "address", what, a, "dev", c.Bridge, "nodad")
			must(t, err)
		}
	}
	deliversToNode := func(want bool) { c.flowsHave(want, c.Bridge, "table=30", "in_port,LOCAL") }
	deliversToNode(true)
	address("del")
	deliversToNode(false)
	address("add")
	for _, route := range []string{"-4 default via " + testbed.RouterIP4.String(), "-6 default via " + testbed.RouterIP6.String()} {
		family, to, _ := strings.Cut(route, " ")
		_, err := c.Exec(c.Node, append([]string{"ip", family, "route", "replace", "dev", c.Bridge}, strings.Fields(to)...)...)
		must(t, err)
	}
	deliversToNode(true)
	c.inForce(t)
	c.ask(t, c.External, "tcp", hostPort(testbed.NodeIP4, 30080), c.pods[0].Name)
}
