//go:build linux

package packets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// TestSwitchUpgrade replaces ovsdb-server and ovs-vswitchd under load, by the versions of NKP_OVS_UPGRADES in turn, without it by the
// same one: on the same database, in ovs-ctl's order. The load goes through Services, from pod to pod, and over a second bridge that
// switches by itself, which shows what is Open vSwitch's own. Once nkp is in step no new connection fails. On the kernel datapath no
// established connection breaks, and with flow-restore-wait no new one fails meanwhile.
func TestSwitchUpgrade(t *testing.T) {
	nightlyOr(t, "NKP_OVS_UPGRADES", "the switch is replaced in three ways under load; TestSwitchRestart restarts it")
	s, node := service("web", "40.0.0.1"), service("node", "40.0.0.2", exposed(30080))
	c := newCluster(t, testbed.Options{})
	must(t, c.AddBridge("br-plain"))
	_, err := c.Vsctl("set", "Bridge", "br-plain", "fail_mode=standalone")
	must(t, err)
	plain, err := c.AddPods(testbed.PodSpec{Bridge: "br-plain"}, testbed.PodSpec{Bridge: "br-plain"})
	must(t, err)
	c.servePods(t)
	_, err = plain[1].ServeTCP(8080)
	must(t, err)
	c.put(s, slice(s, 8080, ats(c.pods[1].IP4, c.pods[2].IP4)...), node, slice(node, 8080, at(c.pods[1].IP4)))
	c.run()
	c.settle()
	kernel := testbed.DefaultDatapath() == testbed.KernelDatapath
	from := os.Getenv("NKP_OVS") // of a step
	at := from
	steps := testbed.Upgrades()
	if len(steps) == 0 {
		steps = []string{from}
	}
	replace := func(t *testing.T, prefix string, start func() error) {
		t.Helper()
		c.StopOvsdb()
		must(t, c.UseSwitch(prefix))
		must(t, c.StartOvsdb())
		must(t, c.ExitVswitchd())
		must(t, start())
		at = prefix
	}
	for i, prefix := range steps {
		for _, way := range []struct {
			name    string
			restore bool // no connection fails on the kernel datapath
			start   func(saved string) error
		}{
			{"ovs-vswitchd only started", false, func(string) error { return c.StartVswitchd() }},
			{"ovs-ctl restart", true, func(saved string) error {
				return c.startWaiting(func() error { return c.restoreSaved(saved) })
			}},
			{"flow-restore-wait until nkp diff is empty", true, func(string) error { return c.startWaiting(c.awaitFlows) }},
		} {
			t.Run(fmt.Sprint(i, " ", way.name), func(t *testing.T) {
				if at != from { // the way before has been there
					replace(t, from, c.StartVswitchd)
					wait.NoError(t, "a switch in step", c.differs)
				}
				before := c.Version()
				loads := []*switchLoad{
					c.loadSwitch(t, "Service", c.pods[0].Host, "40.0.0.1:80"),
					c.loadSwitch(t, "NodePort", c.External, hostPort(testbed.NodeIP4, 30080)),
					// Not from a Service's client: a direct connection from a port that it has used for the same endpoint gets no answer
					// where there are no port-reuse guards.
					c.loadSwitch(t, "pod to pod", c.pods[2].Host, hostPort(c.pods[1].IP4, 8080)),
					c.loadSwitch(t, "without nkp", plain[0].Host, hostPort(plain[1].IP4, 8080)),
				}
				more := func() {
					t.Helper()
					for _, l := range loads {
						l.more(10)
					}
				}
				more()
				saved := c.saveFlows(t)
				replace(t, prefix, func() error { return way.start(saved) })
				wait.NoError(t, "a switch in step", c.differs)
				for _, l := range loads {
					l.settled.Store(true)
				}
				more()
				for _, l := range loads {
					l.end()
				}
				t.Logf("%s to %s, %s:", before, c.Version(), way.name)
				own := loads[len(loads)-1]
				for _, l := range loads {
					t.Logf("  %-12s %d of %d new connections failed; established: %d of %d broke", l.name, len(l.failed), l.opened.Load(), len(l.broken), upgradeHeld)
					if l == own && len(l.broken) > 0 {
						t.Errorf("%s, %s: established connections broke: %v", way.name, l.name, errors.Join(l.broken...))
					}
					// The masqueraded ones may meet a connection that the endpoint, but no longer the switch, remembers.
					if len(l.late) > 0 && l.name != "NodePort" {
						t.Errorf("%s, %s: nkp is in step, and new connections fail: %v", way.name, l.name, errors.Join(l.late...))
					}
					if kernel && len(l.broken) > 0 || kernel && way.restore && len(l.failed) > 0 {
						t.Errorf("%s, %s: %v", way.name, l.name, errors.Join(append(l.failed, l.broken...)...))
					}
				}
			})
		}
		from = prefix
	}
}

// upgradeHeld is how many connections a switchLoad holds.
const upgradeHeld = 4

// switchLoad is a load from one client to one server while the switch is replaced.
type switchLoad struct {
	t       *testing.T
	name    string
	stop    context.CancelFunc
	wg      sync.WaitGroup
	opened  atomic.Int64 // new connections that have come to their end
	settled atomic.Bool  // nkp is in step

	mu                   sync.Mutex // protects what follows until the load has ended
	failed, late, broken []error    // of new connections, of those that began when nkp was in step, and of the established ones
}

// loadSwitch starts a load. Established connections go back and forth. Every 50 ms a connection begins.
func (c *cluster) loadSwitch(t *testing.T, name string, from *testbed.Host, to string) *switchLoad {
	t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	t.Cleanup(cancel)
	l := &switchLoad{t: t, name: name, stop: cancel}
	fails := func(list *[]error, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		*list = append(*list, err)
	}
	for range upgradeHeld {
		h, err := from.Hold(ctx, to, testbed.DialOptions{})
		must(t, err)
		t.Cleanup(func() { _ = h.Close() })
		l.wg.Go(func() { // ends with ctx
			for ctx.Err() == nil {
				if err := h.Check(); err != nil {
					fails(&l.broken, err)
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	l.wg.Go(func() { // ends with ctx
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				settled := l.settled.Load()
				l.wg.Go(func() { // ends with its time limit
					reset := testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}}
					if _, err := from.AskWith(c.ctx, "tcp", to, reset); err != nil {
						fails(&l.failed, err)
						if settled {
							fails(&l.late, err)
						}
					}
					l.opened.Add(1)
				})
			}
		}
	})
	return l
}

// more waits until n more connections have come to their end.
func (l *switchLoad) more(n int64) {
	l.t.Helper()
	n += l.opened.Load()
	wait.For(l.t, l.name+": new connections", func() bool { return l.opened.Load() >= n })
}

// end ends the load, after the connections that have begun.
func (l *switchLoad) end() {
	l.stop()
	l.wg.Wait()
}

// saveFlows saves groups and flows as ovs-save does, which takes OpenFlow 1.4 for a bridge whose protocols are not set, and returns
// the path that restoreSaved wants.
func (c *cluster) saveFlows(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "saved")
	for _, kind := range []string{"groups", "flows"} {
		args := []string{"-O", "OpenFlow14", "dump-" + kind, c.Bridge}
		if kind == "flows" {
			args = append(args, "--no-names", "--no-stats")
		}
		out, err := c.Ofctl(args...)
		must(t, err)
		_, out, _ = strings.Cut(out, "\n") // the heading
		must(t, os.WriteFile(path+"."+kind, []byte(out), 0o600))
	}
	return path
}

// restoreSaved does what ovs-save's script does after the start. An error of ovs-ofctl does not stop it, as in ovs-ctl.
func (c *cluster) restoreSaved(path string) error {
	for _, args := range [][]string{{"add-groups", c.Bridge, path + ".groups"}, {"replace-flows", c.Bridge, path + ".flows"}} {
		if _, err := c.Ofctl(append([]string{"-O", "OpenFlow14", "--bundle"}, args...)...); err != nil {
			c.t.Logf("as ovs-ctl restart would report: %.300v", err)
		}
	}
	return nil
}

// startWaiting starts ovs-vswitchd with flow-restore-wait and removes that when restore has returned.
func (c *cluster) startWaiting(restore func() error) error {
	if _, err := c.Vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true"); err != nil {
		return err
	}
	err := c.StartVswitchd()
	if err == nil {
		err = restore()
	}
	_, last := c.Vsctl("--if-exists", "remove", "Open_vSwitch", ".", "other_config", "flow-restore-wait=true")
	return errors.Join(err, last)
}

// awaitFlows waits until nkp finds that the switch has its flows. A comparison of another process's would not do: while
// no packet passes, it cannot find the router's MAC address.
func (c *cluster) awaitFlows() error {
	return wait.Until(c.ctx, func() error {
		if out, errOut, status := c.nkp("diff", "--socket", c.socket()); status != 0 {
			return fmt.Errorf("nkp diff ends with %d\n%s%s", status, tail(out, 3000), errOut)
		}
		return nil
	})
}
