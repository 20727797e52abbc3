//go:build linux

package packets

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// soon bounds the time of a command that does not need the switch: a second. On a busy machine the best of three tries counts.
var soon = testbed.Patient(time.Second)

// answersSoon runs commands that work without the switch, each in time, and returns what they print by their name.
func (c *cluster) answersSoon(t *testing.T) map[string]string {
	t.Helper()
	trace := []string{"trace", "--from", "10.0.0.5", "--to", "40.0.0.1:80"}
	said := map[string]string{}
	for name, args := range map[string][]string{
		"status": {"status"}, "status json": {"status", "-o", "json"}, "services": {"services"}, "services wide": {"services", "-o", "wide"},
		"services json": {"services", "-o", "json"}, "trace": trace, "trace json": append(trace, "-o", "json"),
	} {
		var out, errOut string
		status, best := 0, time.Hour
		for try := 0; try < 3 && best > soon && status == 0; try++ {
			begun := time.Now()
			out, errOut, status = c.nkp(append(args, "--socket", c.socket())...)
			best = min(best, time.Since(begun))
		}
		if best > soon || status != 0 {
			t.Errorf("%s ends with %d after %v: %s", name, status, best, errOut)
		}
		said[name] = out
	}
	return said
}

// uncertain expects that trace --live says in time what the model knows, and why it does not know more.
func (c *cluster) uncertain(t *testing.T, reason string) {
	t.Helper()
	var out string
	status, best := 0, time.Hour
	for try := 0; try < 3 && best > soon; try++ {
		begun := time.Now()
		out, _, status = c.nkp("trace", "--live", "--from", "10.0.0.5", "--to", "40.0.0.1:80", "--socket", c.socket())
		best = min(best, time.Since(begun))
	}
	if best > soon || status != 1 || !regexp.MustCompile(`verdict: uncertain \(by the Services alone: deliver\)\nwhat is installed does not agree: .*`+reason).MatchString(out) {
		t.Errorf("trace --live ends with %d after %v:\n%s", status, best, out)
	}
}

// failsWith expects a command that needs the switch to fail soon, for a reason.
func (c *cluster) failsWith(t *testing.T, reason string, args ...string) {
	t.Helper()
	begun := time.Now()
	out, errOut, status := c.nkp(append(args, "--socket", c.socket())...)
	if took := time.Since(begun); took > 2*soon || status == 0 || !regexp.MustCompile(reason).MatchString(errOut) ||
		strings.Contains(errOut, "is it running") || strings.Contains(errOut, "without an agent") {
		t.Errorf("%v ends with %d after %v: %s%s; want %s", args, status, took, out, errOut, reason)
	}
}

// While ovs-vswitchd hangs, commands answer at once with what nkp knows, or fail soon with the reason. None claims that nkp is not
// running, or that the switch is in step.
func TestFrozenSwitch(t *testing.T) { // not parallel: it measures how long commands take
	s := service("web", "40.0.0.1")
	c := start(t, s)
	c.put(slice(s, 8080, at(c.remotes[0].IP4)))
	c.settle()
	must(t, c.PauseVswitchd(true))
	defer c.PauseVswitchd(false)
	const since = `ovs-vswitchd has not answered since 20\d\d-`
	time.Sleep(2 * time.Second)
	for _, when := range []string{"frozen just now", "frozen for long"} {
		said := c.answersSoon(t)
		if text := said["status"]; strings.Contains(text, "holds what it should") || !strings.Contains(text, "in step") {
			t.Errorf("%s, status:\n%s", when, text)
		}
		if !regexp.MustCompile(since).MatchString(said["services"]) || !strings.Contains(said["services"], "40.0.0.1:80") {
			t.Errorf("%s, services:\n%s", when, said["services"])
		}
		var st struct{ InStep bool }
		if err := json.Unmarshal([]byte(said["status json"]), &st); err != nil || st.InStep {
			t.Errorf("%s, status: %v, in step: %v", when, err, st.InStep)
		}
		if !strings.Contains(said["trace"], "verdict: deliver") {
			t.Errorf("%s, trace:\n%s", when, said["trace"])
		}
		c.failsWith(t, since, "diff")
		c.uncertain(t, since)
		if when == "frozen just now" {
			c.put(slice(s, 8080, at(c.remotes[1].IP4))) // a change that cannot be sent
			c.statusSays("NOT connected")               // 15 s later
			c.statusSays("pending")                     // it waits: sent and not answered, or not sent yet
		}
	}
	must(t, c.PauseVswitchd(false))
	c.settle()
	c.statusSays("the switch holds what it should")
	if out, _, _ := c.nkp("status", "--socket", c.socket()); strings.Contains(out, "LAST ERROR") {
		t.Errorf("the error is over, and status still has it:\n%s", out)
	}
}

// Every command that would blame the switch names a database that is gone, and since when.
func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	s := service("web", "40.0.0.1")
	c := start(t, s)
	c.StopOvsdb()
	c.statusSays("DATABASE", c.DB()+" does NOT answer since 20")
	var st struct {
		Database struct {
			Answers   bool
			AwaySince time.Time
		}
	}
	out, _, _ := c.nkp("status", "-o", "json", "--socket", c.socket())
	if err := json.Unmarshal([]byte(out), &st); err != nil || st.Database.Answers || time.Since(st.Database.AwaySince) > time.Minute {
		t.Errorf("status: %v, %+v", err, st)
	}
	must(t, c.PauseVswitchd(true)) // as it does by itself with some releases
	defer c.PauseVswitchd(false)
	c.failsWith(t, "its database "+c.DB()+" has not answered since 20.* ovsdb-server", "diff")
	must(t, c.PauseVswitchd(false))
	must(t, c.StartOvsdb())
	c.eventually("the database is back", func() error {
		out, _, _ := c.nkp("status", "--socket", c.socket())
		if strings.Contains(out, "DATABASE") {
			return os.ErrDeadlineExceeded
		}
		return nil
	})
}

// An nkp that waits for the database or the bridge at its start runs, and says what it waits for.
func TestStartWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testbed.Options{})
	c.put(service("web", "40.0.0.1"))
	c.StopOvsdb()
	c.runWith("--ovs-wait", "1m")
	waits := func(what string) {
		t.Helper()
		c.eventually("nkp waits for "+what, func() error {
			_, errOut, status := c.nkp("status", "--socket", c.socket())
			if status != 1 || !strings.Contains(errOut, "nkp is starting: it has waited for "+what+" since 20") {
				return os.ErrDeadlineExceeded
			}
			return nil
		})
	}
	waits("the database of Open vSwitch, " + c.DB())
	must(t, c.StartOvsdb())
	c.settle()
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.Bridge = "br-later"
	c.runWith("--ovs-wait", "1m")
	waits("bridge br-later")
	must(t, c.AddBridge("br-later"))
	c.statusSays("br-later")
}

// In iptables mode status reports the rules as of the last read-back, with its time.
func TestRulesFlushed(t *testing.T) {
	t.Parallel()
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{NodeOutside: true}, "--mode", "iptables", "--iptables-sync-period", "3s")
	c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
	c.run()
	c.settle()
	c.statusSays("the rules were as they should be when read back at 20")
	_, err := c.Node.Exec(c.ctx, "iptables", "-t", "nat", "-F")
	must(t, err)
	flushed := time.Now()
	for repaired := false; !repaired; {
		out, _, _ := c.nkp("status", "-o", "json", "--socket", c.socket())
		var st struct {
			IPTables struct {
				Families []struct {
					Family   string
					InStep   bool
					Compared time.Time
					Repairs  int
				}
			}
		}
		must(t, json.Unmarshal([]byte(out), &st))
		for _, f := range st.IPTables.Families {
			if f.Family != "IPv4" {
				continue
			}
			if repaired = f.Repairs > 0; !repaired && f.Compared.After(flushed.Add(testbed.Patient(time.Second))) { // a look may be under way
				t.Fatalf("the rules were flushed at %v, and status says they were as they should be at %v", flushed, f.Compared)
			}
		}
		if time.Since(flushed) > settleLimit {
			t.Fatalf("no repair:\n%s", out)
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.settle()
	c.statusSays("repaired 1 time", "another program had changed the rules: table nat")
}

// A repair of the switch names the Service, in the log and in status.
func TestRepairNamesTheService(t *testing.T) {
	t.Parallel()
	s := service("web", "40.0.0.1")
	c := start(t, s, service("other", "40.0.0.2"))
	c.put(slice(s, 8080, at(c.remotes[0].IP4)))
	c.settle()
	_, err := c.Ofctl("del-flows", c.Bridge, "tcp,nw_dst=40.0.0.1")
	must(t, err)
	c.statusSays("another program had changed flows or groups of default/web:http")
	if log := c.agent.Log.String(); !strings.Contains(log, "another program changed the switch: repairing") || strings.Contains(log, "default/other:http: ") {
		t.Error("the log: ", tail(log, 2000))
	}
}

// Flags for a bridge on a node without Open vSwitch change nothing there: nkp says how to go on. What nkp changes in the kernel it
// restores, unless something else has changed it since, or needs it now.
func TestBridgeFlagsWithoutSwitch(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testbed.Options{NodeOutside: true})
	c.put(service("web", "40.0.0.1"))
	const timeouts = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_"
	read := func(name string) string {
		t.Helper()
		out, err := c.Node.Exec(c.ctx, "cat", timeouts+name)
		must(t, err)
		return strings.TrimSpace(out)
	}
	established, closeWait := read("established"), read("close_wait")
	none := filepath.Join(t.TempDir(), "db.sock")
	args := []string{"run", "--socket", c.socket(), "--manifests", c.manifest, "--hostname-override", nodeName, "--ovsdb", "unix:" + none, "--cluster-cidr", "10.0.0.0/16"}
	for _, flags := range [][]string{{"--bridge", "br-int"}, {"--uplink-port", "1"}, {"--gateway-mac", testbed.GatewayMAC}} {
		_, errOut, status := c.nkp(append(args, flags...)...)
		if status != 1 || !strings.Contains(errOut, flags[0]+" is for a bridge") || !strings.Contains(errOut, "--mode iptables") {
			t.Errorf("%v ends with %d: %s", flags, status, errOut)
		}
	}
	rules, err := c.Node.Exec(c.ctx, "iptables-save")
	must(t, err)
	if strings.Contains(rules, "KUBE-SERVICES") || read("established") != established {
		t.Errorf("the node was changed: established %s, was %s\n%s", read("established"), established, rules)
	}

	c.launch(append(args, "--bridge", "br-int", "--mode", "auto", "--conntrack-tcp-timeout-established", "77s", "--conntrack-tcp-timeout-close-wait", "78s")...)
	c.statusSays("mode", "nftables: ", "all is programmed")
	if read("established") != "77" || read("close_wait") != "78" {
		t.Fatalf("nkp has set %s and %s", read("established"), read("close_wait"))
	}
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.launch(append(args, "--mode", "auto", "--conntrack-tcp-timeout-established", "79s", "--conntrack-tcp-timeout-close-wait", "78s")...)
	c.statusSays("mode", "nftables: ", "all is programmed")
	must(t, c.agent.Stop(syscall.SIGTERM))
	must(t, c.Node.Sysctl("netfilter/nf_conntrack_tcp_timeout_close_wait", "99"))
	out, errOut, status := c.nkp("cleanup", "--socket", c.socket(), "--ovsdb", "unix:"+none)
	if status != 0 || !strings.Contains(out, "timeout_established back from 79 to "+established) || !strings.Contains(out, "timeout_close_wait at 99: something changed it") {
		t.Errorf("cleanup ends with %d: %s%s", status, out, errOut)
	}
	if read("established") != established || read("close_wait") != "99" {
		t.Errorf("after cleanup: established %s, was %s; close wait %s, was %s and then 99", read("established"), established, read("close_wait"), closeWait)
	}
	recorded := func() bool {
		_, err := os.Stat(filepath.Join(filepath.Dir(c.socket()), "sysctls"))
		return !os.IsNotExist(err)
	}
	if recorded() {
		t.Error("the record stays")
	}

	// A kube-proxy that is there by now has found them set, and does not set them again.
	c.launch(append(args, "--mode", "auto", "--conntrack-tcp-timeout-established", "79s")...)
	c.statusSays("mode", "nftables: ", "all is programmed")
	must(t, c.agent.Stop(syscall.SIGTERM))
	_, err = c.Node.Exec(c.ctx, "iptables", "-t", "nat", "-N", "KUBE-SERVICES")
	must(t, err)
	out, errOut, status = c.nkp("cleanup", "--socket", c.socket(), "--ovsdb", "unix:"+none)
	if status != 0 || !strings.Contains(out, "another Service proxy has rules on this node: sysctls net.netfilter.nf_conntrack_tcp_timeout_established") || read("established") != "79" || recorded() {
		t.Errorf("cleanup beside another proxy ends with %d, established %s, recorded %t: %s%s", status, read("established"), recorded(), out, errOut)
	}
}
