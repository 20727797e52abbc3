//go:build linux

package packets

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// A node that gets its bridge later is served by iptables first; status tells when the bridge is there, and a restart changes
// over. A node that loses its bridge is told, too. No connection is lost on the way.
func TestChangeOver(t *testing.T) {
	t.Parallel()
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{NodeOutside: true})
	c.Bridge = "br-later"
	c.put(s)
	c.runWith("--ovs-wait", "500ms")
	c.servePods(t)
	c.put(slice(s, 8080, at(c.remotes[0].IP4)))
	c.statusSays("mode", "iptables", "br-later does not exist")
	c.eventually("iptables serves the node", func() error {
		_, err := c.Node.Ask(c.ctx, "tcp", "40.0.0.1:80")
		return err
	})
	held, err := c.Node.Hold(c.ctx, "40.0.0.1:80", testbed.DialOptions{})
	must(t, err)
	defer held.Close()

	must(t, c.AddBridge("br-later"))
	c.statusSays("bridge br-later is here", "restart nkp to change over")
	must(c.t, c.agent.Stop(syscall.SIGTERM))
	c.run()
	c.settle()
	c.statusSays("mode", "ovs: ", "br-later")
	if log := c.agent.Log.String(); !strings.Contains(log, "the data plane changed from iptables to ovs") {
		t.Error("the change is not said: ", tail(log, 2000))
	}
	must(t, held.Check())
	c.ask(t, c.Node, "tcp", "40.0.0.1:80", c.remotes[0].Name)

	_, err = c.Vsctl("del-br", "br-later")
	must(t, err)
	c.statusSays("bridge br-later is gone", "restart nkp to change over")
	must(t, held.Check())
	must(c.t, c.agent.Stop(syscall.SIGTERM))
	c.runWith("--ovs-wait", "500ms")
	c.statusSays("mode", "iptables: ")
	must(t, held.Check())
	c.ask(t, c.Node, "tcp", "40.0.0.1:80", c.remotes[0].Name)
	if log := c.agent.Log.String(); !strings.Contains(log, "DataPlaneChanged") {
		t.Error("no Event on the Node: ", tail(log, 2000))
	}
}

// An empty directory where Open vSwitch would have its sockets is no Open vSwitch: kubelet makes one on every node, since a
// pod of deploy/kubernetes/auto mounts it. Such a node is served by iptables at once, and told when a switch is there.
func TestEmptyDirectoryIsNoSwitch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{NodeOutside: true}, "--ovsdb", "unix:"+dir+"/db.sock", "--mode", "auto")
	c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
	c.servePods(t)
	c.runWith("--ovs-wait", "10m")
	c.statusSays("mode", "iptables: ", "nothing in "+dir)
	c.eventually("iptables serves the node", func() error {
		_, err := c.Node.Ask(c.ctx, "tcp", "40.0.0.1:80")
		return err
	})
	for _, socket := range []string{"db.sock", c.Bridge + ".mgmt"} {
		must(t, os.Symlink(filepath.Join(c.RunDir, socket), filepath.Join(dir, socket)))
	}
	c.statusSays("bridge "+c.Bridge+" is here", "restart nkp to change over")
}

// statusSays waits until status contains all of the texts.
func (c *cluster) statusSays(wants ...string) {
	c.t.Helper()
	deadline := time.Now().Add(settleLimit)
	for {
		out, errOut, _ := c.nkp("status", "--socket", c.socket(), "--ovsdb", c.DB())
		missing := ""
		for _, w := range wants {
			if !strings.Contains(out, w) {
				missing = w
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("status does not say %q:\n%s%s", missing, out, errOut)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// eventually waits until f gives no error.
func (c *cluster) eventually(what string, f func() error) {
	c.t.Helper()
	deadline := time.Now().Add(settleLimit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
