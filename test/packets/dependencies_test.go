//go:build linux

package packets

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// queries are commands that work without the switch.
func queries() map[string][]string {
	trace := []string{"trace", "--from", "10.0.0.5", "--to", "40.0.0.1:80"}
	return map[string][]string{
		"status": {"status"}, "status json": {"status", "-o", "json"}, "services": {"services"}, "services wide": {"services", "-o", "wide"},
		"services json": {"services", "-o", "json"}, "trace": trace, "trace json": append(trace, "-o", "json"),
		"trace live": append(trace, "--live"), "diff": {"diff"},
	}
}

// unlike returns an error unless text matches a regular expression.
func unlike(text, want string) error {
	if !regexp.MustCompile(want).MatchString(text) {
		return fmt.Errorf("want %q, have\n%s", want, text)
	}
	return nil
}

// saysWhileFrozen checks what a command prints while ovs-vswitchd hangs: what nkp knows, or the reason why it fails. It never claims that
// nkp is not running, or that the switch is in step.
func saysWhileFrozen(name, out, errOut string, status int) error {
	const since = `ovs-vswitchd has not answered since 20\d\d-`
	wantStatus, err := 0, error(nil)
	switch name {
	case "status":
		wantStatus, err = 1, unlike(out, `in step +`)
		if strings.Contains(out, "holds what it should") {
			err = fmt.Errorf("it claims that the switch is in step:\n%s", out)
		}
	case "status json":
		var st api.Status
		wantStatus = 1
		if err = json.Unmarshal([]byte(out), &st); err == nil && (st.Status == nil || st.InStep) {
			err = fmt.Errorf("it claims that the switch is in step:\n%s", out)
		}
	case "services":
		err = errors.Join(unlike(out, since), unlike(out, `40\.0\.0\.1:80`))
	case "trace":
		err = unlike(out, "verdict: deliver")
	case "trace live":
		wantStatus, err = 1, unlike(out, `verdict: uncertain \(by the Services alone: deliver\)\nwhat is installed does not agree: .*`+since)
	case "diff":
		wantStatus, err = 2, unlike(errOut, since)
	}
	if status != wantStatus {
		err = errors.Join(err, fmt.Errorf("it ends with %d", status))
	}
	if strings.Contains(errOut, "is it running") || strings.Contains(errOut, "without an agent") {
		err = errors.Join(err, errors.New("it claims that nkp does not run"))
	}
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", name, err, errOut)
	}
	return err
}

// While ovs-vswitchd hangs, commands answer with what nkp knows, or fail with the reason, before nkp has given up the connection, 15 s
// later, and afterwards.
func TestFrozenSwitch(t *testing.T) {
	s := service("web", "40.0.0.1")
	c := start(t, s)
	c.put(slice(s, 8080, at(c.remotes[0].IP4)))
	c.settle()
	defer c.PauseVswitchd(false)
	connected := func() bool {
		m, err := c.scrape()
		must(t, err)
		return m.values["nkp_channel_up"] == 1
	}
	// A command that nkp makes wait until it gives up the connection ends after that. On a busy machine each has a freeze of its own.
	left := queries()
	wait.For(t, "all commands answer while nkp has the connection", func() bool {
		must(t, c.PauseVswitchd(false))
		c.settle()
		must(t, c.PauseVswitchd(true))
		c.eventually("nkp misses an answer", func() error {
			out, errOut, status := c.nkp("status", "--socket", c.socket())
			return saysWhileFrozen("status", out, errOut, status)
		})
		for name, args := range left {
			out, errOut, status := c.nkp(append(args, "--socket", c.socket())...)
			if !connected() {
				return false
			}
			must(t, saysWhileFrozen(name, out, errOut, status))
			delete(left, name)
		}
		return true
	})
	if nightly.Is() {
		c.put(slice(s, 8080, at(c.remotes[1].IP4))) // a change that cannot be sent
		c.statusSays("NOT connected")
		c.statusSays("pending") // it waits: sent and not answered, or not sent yet
		for name, args := range queries() {
			out, errOut, status := c.nkp(append(args, "--socket", c.socket())...)
			if err := saysWhileFrozen(name, out, errOut, status); err != nil {
				t.Errorf("frozen for long: %v", err)
			}
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
	nightly.Only(t, "TestFrozenSwitch has the switch itself hang")
	s := service("web", "40.0.0.1")
	c := start(t, s)
	before := time.Now()
	c.StopOvsdb()
	c.statusSays("DATABASE", c.DB()+" does NOT answer since 20")
	if d := c.status(t).Database; d.Answers || d.AwaySince == nil || d.AwaySince.Before(before) {
		t.Errorf("status: %+v", d)
	}
	must(t, c.PauseVswitchd(true)) // as it does by itself with some releases
	defer c.PauseVswitchd(false)
	if out, errOut, status := c.nkp("diff", "--socket", c.socket()); status == 0 || strings.Contains(errOut, "is it running") ||
		unlike(errOut, "its database "+c.DB()+" has not answered since 20.* ovsdb-server") != nil {
		t.Errorf("diff ends with %d: %s%s", status, out, errOut)
	}
	must(t, c.PauseVswitchd(false))
	must(t, c.StartOvsdb())
	c.statusMatches(false, "DATABASE")
}

// An nkp that waits for the database or the bridge at its start runs, and says what it waits for.
func TestStartWaits(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	c.put(service("web", "40.0.0.1"))
	c.StopOvsdb()
	c.runWith("--ovs-wait", "1m")
	waits := func(what string) {
		t.Helper()
		c.eventually("nkp waits for "+what, func() error {
			_, errOut, _ := c.nkp("status", "--socket", c.socket())
			return unlike(errOut, regexp.QuoteMeta("nkp is starting: it has waited for "+what+" since 20"))
		})
	}
	waits("the database of Open vSwitch, " + c.DB())
	must(t, c.StartOvsdb())
	c.settle()
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.Bridge = "br-later"
	c.runWith("--ovs-wait", "1m")
	waits("bridge br-later")
	c.logSays("waiting for the bridge")
	must(t, c.AddBridge("br-later"))
	c.settle()
	c.statusSays("br-later")
}

// Flags for a bridge on a node without Open vSwitch change nothing there: nkp says how to go on. What nkp changes in the kernel it
// restores, unless something else has changed it since, or needs it now.
func TestBridgeFlagsWithoutSwitch(t *testing.T) {
	nightly.Only(t, "four starts of nkp on a node whose settings nobody has changed")
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
	out, errOut, status := c.nkp("cleanup", "--socket", c.socket())
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
	out, errOut, status = c.nkp("cleanup", "--socket", c.socket())
	if status != 0 || !strings.Contains(out, "another Service proxy has rules on this node: sysctls net.netfilter.nf_conntrack_tcp_timeout_established") || read("established") != "79" || recorded() {
		t.Errorf("cleanup beside another proxy ends with %d, established %s, recorded %t: %s%s", status, read("established"), recorded(), out, errOut)
	}
}
