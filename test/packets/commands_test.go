//go:build linux

package packets

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// What is wrong with the switch is said at once, with what to do about it.
func TestUnfitSwitches(t *testing.T) {
	c := newCluster(t, testbed.Options{Protocols: []string{"OpenFlow10", "OpenFlow13"}})
	wait := 300 * time.Millisecond
	run := func(flags ...string) (string, int) {
		args := append([]string{"run", "--mode", "ovs", "--manifests", c.manifest, "--socket", c.socket(), "--ovs-wait", wait.String()}, flags...)
		_, errOut, status := c.nkp(args...)
		return errOut, status
	}
	c.write()
	for _, tc := range []struct {
		name  string
		flags []string
		want  []string
	}{
		{"no database", []string{"--ovsdb", "unix:/nonexistent/db.sock"}, []string{"/nonexistent/db.sock", "--ovsdb"}},
		{"no bridge", []string{"--ovsdb", c.DB(), "--bridge", "br-none"}, []string{"br-none", "--bridge", "br-int"}},
		{"no OpenFlow 1.5", []string{"--ovsdb", c.DB()}, []string{"OpenFlow15", "--configure-bridge"}},
	} {
		c.eventually(tc.name, func() error { // in too short a time nkp does not come to see what is wrong
			errOut, status := run(tc.flags...)
			wait *= 2
			for _, w := range tc.want {
				if status != 1 || !strings.Contains(errOut, w) {
					return fmt.Errorf("it ends with %d, and %q must mention %s", status, errOut, w)
				}
			}
			return nil
		})
	}
	wait = time.Minute
	// A bridge of OVN's is refused.
	_, err := c.Vsctl("set", "Open_vSwitch", ".", "external_ids:ovn-remote=tcp:192.0.2.1:6642")
	must(t, err)
	if errOut, status := run("--ovsdb", c.DB()); status != 1 || !strings.Contains(strings.ToLower(errOut), "ovn") {
		t.Errorf("a bridge of OVN's: status %d, %s", status, errOut)
	}
	_, err = c.Vsctl("remove", "Open_vSwitch", ".", "external_ids", "ovn-remote")
	must(t, err)
	// OpenFlow 1.5 can be enabled on the way; what was enabled stays.
	c.runWith("--configure-bridge")
	c.settle()
	out, err := c.Vsctl("get", "bridge", c.Bridge, "protocols")
	must(t, err)
	for _, p := range []string{"OpenFlow10", "OpenFlow13", "OpenFlow15"} {
		if !strings.Contains(out, p) {
			t.Errorf("protocols are %s after --configure-bridge", out)
		}
	}
	// One that becomes OVN's later is named, and served meanwhile.
	_, err = c.Vsctl("set", "Bridge", c.Bridge, "external_ids:ovn-nb-cfg=1")
	must(t, err)
	c.statusSays("is run by OVN (external_ids of the bridge have ", "all is programmed")
}

// A pod that comes gets its flows, one that goes loses them.
func TestPodsComeAndGo(t *testing.T) {
	s := service("web", "40.0.0.1")
	c := start(t, s)
	pod, err := c.AddPod(testbed.PodSpec{})
	must(t, err)
	_, err = pod.ServeTCP(8080)
	must(t, err)
	c.put(slice(s, 8080, at(pod.IP4)))
	c.settle()
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", pod.Name)
	c.ask(t, pod.Host, "tcp", "40.0.0.1:80", pod.Name)
	must(t, c.RemovePod(pod))
	c.flowsHave(false, c.Bridge, "table=30", pod.IP4.String())
}

// Wrong usage ends with status 2 and one line that says what to do. Names that do not exist are in package
// internal/command.
func TestUsage(t *testing.T) {
	c := offline(t)
	sample := filepath.Join(samples, "guestbook.yaml")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"plan", "--manifests", sample, "extra"}, "takes no argument"},
		{[]string{"plan", "--manifests", sample, "--local-delivery", "maybe"}, "--local-delivery"},
		{[]string{"plan", "--manifests", sample, "--node-ip", "nonsense"}, "node-ip"},
		{[]string{"plan", "--manifests", sample, "--cluster-cidr", "10.0.0.0/99"}, "cluster-cidr"},
		{[]string{"plan", "--manifests", sample, "--gateway-mac", "xx"}, "gateway-mac"},
		{[]string{"plan", "--manifests", sample, "--ports", "/nonexistent.json"}, "--ports"},
		{[]string{"plan", "--manifests", sample, "--table-base", "250"}, "table base"},
		{[]string{"plan", "--manifests", sample, "--zone-dnat", "0"}, "zone 0"},
	} {
		stdout, stderr, status := c.try(tc.args...)
		if status != 2 || !strings.Contains(stderr, tc.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("nkp %s: status %d, stdout %q, stderr %q", strings.Join(tc.args, " "), status, stdout, stderr)
		}
	}
	for args, want := range map[string]int{"status --socket /nonexistent": 2, "diff --socket /nonexistent": 2, "cleanup --openflow unix:/nonexistent --socket /nonexistent": 1} {
		if _, stderr, status := c.try(strings.Fields(args)...); status != want || strings.Count(stderr, "\n") != 1 {
			t.Errorf("nkp %s: status %d, stderr %q", args, status, stderr)
		}
	}
}

// Offline, a plan says on standard error what it leaves out, and ends well.
func TestPlanOffline(t *testing.T) {
	c := offline(t)
	sample := filepath.Join(samples, "guestbook.yaml")
	_, stderr, status := c.try("plan", "--manifests", sample, "--hostname-override", "nobody", "-o", "ofctl")
	if status != 0 || !strings.Contains(stderr, "nobody") || !strings.Contains(stderr, "--node-ip") {
		t.Errorf("a node without Node object: status %d, %q", status, stderr)
	}
	ports := filepath.Join(t.TempDir(), "ports.json")
	must(t, os.WriteFile(ports, []byte(`{"172.18.1.22": {"ofport": 22, "mac": "02:00:00:00:00:22"}}`), 0o644))
	out := c.local("plan", "--manifests", sample, "--hostname-override", "haofan-test-1", "-o", "ofctl", "--ports", ports,
		"--node-mac", "02:00:00:00:00:02", "--gateway-mac", "02:00:00:00:00:01", "--uplink-port", "7")
	for _, want := range []string{
		"nw_dst=172.18.1.22,actions=set_field:02:00:00:00:00:01->eth_src,set_field:02:00:00:00:00:22->eth_dst,set_field:ANY->in_port,output:22",
		"in_port=7,actions=resubmit(,2)",
		"tp_dst=30784",
		"nat(src=192.168.3.233:1024-29999)",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan lacks %q", want)
		}
	}
}

// The example of nkp plan --help for a bridge of one's own works as printed, on a bridge that has nothing: not even nkp's meter.
func TestExampleOfPlan(t *testing.T) {
	c := newCluster(t, testbed.Options{Bridge: "br-test"})
	help, _, status := c.nkp("plan", "--help")
	_, example, found := strings.Cut(help, "On a bridge of your own, without nkp run:\n")
	example, _, ends := strings.Cut(example, "\n\n")
	if status != 0 || !found || !ends {
		t.Fatalf("status %d, help without the example:\n%s", status, help)
	}

	// Where a user runs it: nkp is on the PATH, and the examples are here.
	examples, err := filepath.Abs("../../examples")
	must(t, err)
	must(t, os.Symlink(examples, filepath.Join(c.dir, "examples")))
	must(t, os.Symlink(c.bin, filepath.Join(c.dir, "nkp")))
	script := fmt.Sprintf("set -eu\ncd %s\nexport PATH=%s:$PATH OVS_RUNDIR=%s\n%s\n", c.dir, c.dir, c.RunDir, example)
	if prefix := os.Getenv("NKP_OVS"); prefix != "" {
		script = "PATH=" + prefix + "/bin:$PATH\n" + script
	}
	if out, stderr, status := harness.Run(t.Context(), t, c.Node, "sh", "-c", script); status != 0 {
		t.Fatalf("status %d: %s%s\nof\n%s", status, out, stderr, script)
	}
	if n := strings.Count(c.groups(t, c.Bridge), "group_id="); n < 2 {
		t.Errorf("only %d groups were installed", n)
	}
	if out, err := c.Ofctl("dump-meters", c.Bridge); err != nil || !strings.Contains(out, "rate=1000") {
		t.Errorf("meters %q, %v", out, err)
	}
}
