//go:build linux

package packets

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// TestSwitchUpgrade replaces ovsdb-server and ovs-vswitchd under load, by the versions of NKP_OVS_UPGRADES in turn, without it by the
// same one: on the same database, in ovs-ctl's order. The load goes through Services, from pod to pod, and over a second bridge that
// switches by itself. New connections must not fail for longer than on the second bridge, which shows Open vSwitch's own gap. On the
// kernel datapath no established connection breaks, and with flow-restore-wait no connection fails that has time for retransmissions.
func TestSwitchUpgrade(t *testing.T) {
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
					must(t, harness.Await(settleLimit, c.agent.Program, c.differs))
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
				time.Sleep(testbed.Patient(500 * time.Millisecond))
				saved := c.saveFlows(t)
				replace(t, prefix, func() error { return way.start(saved) })
				must(t, harness.Await(settleLimit, c.agent.Program, c.differs))
				settled := time.Now()
				time.Sleep(testbed.Patient(2 * time.Second))
				for _, l := range loads {
					l.end()
				}
				t.Logf("%s to %s, %s:", before, c.Version(), way.name)
				own := loads[len(loads)-1]
				for _, l := range loads {
					t.Logf("  %-12s new connections: none for %v, %d of %d failed; established: %d of %d broke, silent for %v at most", l.name,
						l.gap().Round(time.Millisecond), len(l.failed), l.opened, len(l.broken), upgradeHeld, l.silent.Round(time.Millisecond))
					// An emulated machine's times mean nothing. Elsewhere the pauses between nkp's attempts to connect count, and other load.
					if added, most := l.gap()-own.gap(), max(1500*time.Millisecond, own.gap()); !kernel && added > most {
						t.Errorf("%s, %s: new connections fail for %v longer than without nkp, want %v at most", way.name, l.name, added, most)
					}
					if l.opened < 10 || l == own && len(l.broken) > 0 && own.gap() < heldGap {
						t.Errorf("%s, %s: %d connections opened, %d of the established broke: %v", way.name, l.name, l.opened, len(l.broken), errors.Join(l.broken...))
					}
					// The masqueraded ones may meet a connection that the endpoint, but no longer the switch, remembers.
					if late := l.failedSince(settled); len(late) > 0 && l.name != "NodePort" {
						t.Errorf("%s, %s: nkp is in step, and new connections fail: %v", way.name, l.name, errors.Join(late...))
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

// upgradeHeld is how many connections a switchLoad holds. They survive a gap of heldGap, because a retransmission falls into the 10 s
// that Held.Check waits.
const (
	upgradeHeld = 4
	heldGap     = 5 * time.Second
)

// switchLoad is a load from one client to one server while the switch is replaced.
type switchLoad struct {
	name string
	stop context.CancelFunc
	wg   sync.WaitGroup

	began, stopped time.Time
	mu             sync.Mutex    // protects what follows until the load has ended
	good           []time.Time   // when connections began that were made at once
	opened         int           // connections with time for retransmissions
	failed, broken []error       // of those, and of the established ones
	failedAt       []time.Time   // when those that failed began
	silent         time.Duration // the longest an established connection waited for an answer
}

// loadSwitch starts a load. Established connections go back and forth. Every 10 ms a connection begins that has 250 ms, which is
// less than a SYN's retransmission takes. Every 50 ms one begins that may take 20 s.
func (c *cluster) loadSwitch(t *testing.T, name string, from *testbed.Host, to string) *switchLoad {
	t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	t.Cleanup(cancel)
	l := &switchLoad{name: name, stop: cancel}
	for range upgradeHeld {
		h, err := from.Hold(ctx, to, testbed.DialOptions{})
		must(t, err)
		t.Cleanup(func() { _ = h.Close() })
		l.wg.Go(func() { // ends with ctx
			for ctx.Err() == nil {
				began := time.Now()
				err := h.Check()
				l.mu.Lock()
				if l.silent = max(l.silent, time.Since(began)); err != nil {
					l.broken = append(l.broken, err)
				}
				l.mu.Unlock()
				if err != nil {
					return
				}
				time.Sleep(testbed.Patient(20 * time.Millisecond))
			}
		})
	}
	l.began = time.Now()
	every := func(interval, timeout time.Duration, do func(began time.Time, err error)) {
		timeout = testbed.Patient(timeout)
		l.wg.Go(func() { // ends with ctx
			tick := time.NewTicker(testbed.Patient(interval))
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case began := <-tick.C:
					l.wg.Go(func() { // ends with its timeout
						err := answered(c.ctx, from, to, timeout)
						l.mu.Lock()
						defer l.mu.Unlock()
						do(began, err)
					})
				}
			}
		})
	}
	every(10*time.Millisecond, 250*time.Millisecond, func(began time.Time, err error) {
		if err == nil {
			l.good = append(l.good, began)
		}
	})
	every(50*time.Millisecond, 20*time.Second, func(began time.Time, err error) {
		if l.opened++; err != nil {
			l.failed, l.failedAt = append(l.failed, err), append(l.failedAt, began)
		}
	})
	return l
}

// answered opens a connection, waits for the server's line, and resets the connection.
func answered(ctx context.Context, from *testbed.Host, to string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	conn, err := from.DialTCP(ctx, to, testbed.DialOptions{Timeout: timeout, Reset: true})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	_, err = bufio.NewReader(conn).ReadString('\n')
	return err
}

// end ends the load, after the connections that have begun.
func (l *switchLoad) end() {
	l.stopped = time.Now()
	l.stop()
	l.wg.Wait()
	slices.SortFunc(l.good, time.Time.Compare)
}

// gap returns the longest time without a connection that was made at once.
func (l *switchLoad) gap() (longest time.Duration) {
	last := l.began
	for _, at := range append(slices.Clone(l.good), l.stopped) {
		longest, last = max(longest, at.Sub(last)), at
	}
	return longest
}

// failedSince returns the errors of the connections that began after t.
func (l *switchLoad) failedSince(t time.Time) (errs []error) {
	for i, at := range l.failedAt {
		if at.After(t) {
			errs = append(errs, l.failed[i])
		}
	}
	return errs
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
	return harness.Await(settleLimit, c.agent.Program, func() error {
		if out, errOut, status := c.nkp("diff", "--socket", c.socket()); status != 0 {
			return fmt.Errorf("nkp diff ends with %d\n%s%s", status, tail(out, 3000), errOut)
		}
		return nil
	})
}
