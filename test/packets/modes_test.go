//go:build linux

package packets

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// A node that gets its bridge later is served by nftables first, or by iptables if only that can accept its traffic; status says when
// the bridge is there, and a restart changes over; what served all traffic then serves the node's own. A node that loses its bridge is
// told, too. No connection is lost on the way.
func TestChangeOver(t *testing.T) {
	t.Parallel()
	for _, plane := range []string{"nftables", "iptables"} {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
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
	c.eventually("the first programming", func() error {
		if !strings.Contains(c.agent.Log.String(), "programmed for the first time") {
			return errors.New("not yet")
		}
		return nil
	})
	c.statusSays("mode", plane+": ", why)
	held, err := c.Node.Hold(c.ctx, "40.0.0.1:80", testbed.DialOptions{})
	must(t, err)
	defer held.Close()
	answered := c.keepAsking(t, "40.0.0.1:80")

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
	c.statusSays("host traffic     "+plane, "serves host", "all is programmed")

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
	answered()
}

// keepAsking opens new connections of the node all the time, until end is called. None of them may fail.
func (c *cluster) keepAsking(t *testing.T, to string) (end func()) {
	asked, failed := 0, 0
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ended by stop
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond): // the node has ports for 14,000 connections in TIME_WAIT
			}
			asked++
			_, err := c.Node.AskWith(c.ctx, "tcp", to, testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
			if err != nil {
				failed++
				t.Log(time.Now().Format(time.StampMilli), err)
			}
		}
	}()
	return func() {
		t.Helper()
		close(stop)
		<-stopped
		if asked < 20 || failed > 0 {
			t.Errorf("%d of %d new connections of the node failed", failed, asked)
		}
		t.Logf("%d new connections of the node, %d failed", asked, failed)
	}
}

// An empty directory where Open vSwitch would have its sockets is no Open vSwitch: kubelet makes one on every node, since a
// pod of deploy/kubernetes/auto mounts it. Such a node is served by nftables at once, and told when a switch is there, or
// iptables drops what only iptables can accept.
func TestEmptyDirectoryIsNoSwitch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{NodeOutside: true}, "--ovsdb", "unix:"+dir+"/db.sock", "--mode", "auto")
	c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
	c.servePods(t)
	c.runWith("--ovs-wait", "10m")
	c.statusSays("mode", "nftables: ", "nothing in "+dir)
	_, err := c.Node.Exec(c.ctx, "ip6tables-nft", "-P", "INPUT", "DROP") // within 10 s, or it is found a minute later
	must(t, err)
	c.statusSays("chain INPUT of iptables (nf_tables, IPv6) drops", "by iptables now", "restart nkp to change over")
	c.eventually("nftables serves the node", func() error {
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
