//go:build linux

package packets

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A node that gets its bridge later is served by nftables first, or by iptables if only that can accept its traffic; status says when
// the bridge is there, and a restart changes over; what served all traffic then serves the node's own. A node that loses its bridge is
// told, too. No connection is lost on the way.
func TestChangeOver(t *testing.T) {
	for _, plane := range []string{"nftables", "iptables"} {
		t.Run(plane, func(t *testing.T) {
			if plane == "iptables" {
				nightly.Only(t, "nftables, the usual one, is in the gate")
			}
			changeOver(t, plane)
		})
	}
}

func changeOver(t *testing.T, plane string) {
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{NodeOutside: true})
	c.Bridge = "br-later"
	why := "br-later does not exist"
	if plane == "iptables" {
		_, err := c.Node.Exec(c.ctx, "iptables-nft", "-P", "FORWARD", "DROP")
		must(t, err)
		why = "; not nftables: chain FORWARD of iptables (nf_tables, IPv4) drops"
	}
	c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
	c.servePods(t)
	c.runWith("--ovs-wait", "500ms")
	// Nothing asks before: conntrack keeps a SYN that was not translated for two minutes, and a connection that gets its source port again
	// is not translated either.
	c.logSays("programmed for the first time")
	c.statusSays("mode", plane+": ", why)
	held, err := c.Node.Hold(c.ctx, "40.0.0.1:80", testbed.DialOptions{})
	must(t, err)
	defer held.Close()
	end := c.keepAsking(t, "40.0.0.1:80")

	must(t, c.AddBridge("br-later"))
	c.statusSays("bridge br-later is here", "restart nkp to change over")
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.run()
	c.settle()
	c.statusSays("mode", "ovs: ", "br-later")
	if log := c.agent.Log.String(); !strings.Contains(log, "the data plane changed from "+plane+" to ovs") {
		t.Error("the change is not said: ", tail(log, 2000))
	}
	must(t, held.Check())
	c.ask(t, c.Node, "tcp", "40.0.0.1:80", c.remotes[0].Name)
	c.statusSays("host traffic     "+plane, "serves traffic from the node and from outside", "all is programmed")

	_, err = c.Vsctl("del-br", "br-later")
	must(t, err)
	c.statusSays("bridge br-later is gone", "restart nkp to change over")
	must(t, held.Check())
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.runWith("--ovs-wait", "500ms")
	c.statusSays("mode", plane+": ", "all is programmed")
	must(t, held.Check())
	c.ask(t, c.Node, "tcp", "40.0.0.1:80", c.remotes[0].Name)
	if log := c.agent.Log.String(); !strings.Contains(log, "DataPlaneChanged") {
		t.Error("no Event on the Node: ", tail(log, 2000))
	}
	end()
}

// keepAsking opens new connections of the node all the time, until end is called, which waits for ten more. None of them may fail.
func (c *cluster) keepAsking(t *testing.T, to string) (end func()) {
	l := c.load(t, c.Node, to, 1, 5*time.Millisecond) // the node has ports for 14,000 connections in TIME_WAIT
	return func() {
		t.Helper()
		l.more(10)
		l.end()
	}
}

// An empty directory where Open vSwitch would have its sockets is no Open vSwitch: kubelet makes one on every node, since a
// pod of deploy/kubernetes/auto mounts it. Such a node is served by nftables at once, and told when a switch is there, or
// iptables drops what only iptables can accept.
func TestEmptyDirectoryIsNoSwitch(t *testing.T) {
	nightly.Only(t, "TestChangeOver has the usual ways to change over")
	dir := t.TempDir()
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{NodeOutside: true}, "--ovsdb", "unix:"+dir+"/db.sock", "--mode", "auto")
	c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
	c.servePods(t)
	c.runWith("--ovs-wait", "10m")
	c.statusSays("mode", "nftables: ", "nothing in "+dir)
	_, err := c.Node.Exec(c.ctx, "ip6tables-nft", "-P", "INPUT", "DROP")
	must(t, err)
	c.statusSays("chain INPUT of iptables (nf_tables, IPv6) drops", "by iptables now", "restart nkp to change over")
	c.awaitAnswer(t, c.Node, "40.0.0.1:80", c.remotes[0].Name)
	for _, socket := range []string{"db.sock", c.Bridge + ".mgmt"} {
		must(t, os.Symlink(filepath.Join(c.RunDir, socket), filepath.Join(dir, socket)))
	}
	c.statusSays("bridge "+c.Bridge+" is here", "restart nkp to change over")
}
