//go:build linux

package deploy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

const unitFile = "../../deploy/systemd/nkp.service"

// worstExposure is the score of systemd-analyze security (0 best, 10 worst) that the unit must not get above.
const worstExposure = 2.3

// The unit that is in the package is as tight as it was.
func TestUnit(t *testing.T) {
	requireProgram(t, "systemd-analyze")
	root := t.TempDir()
	mustRun(t, "dpkg-deb", "-x", debPackage(t), root)
	shipped, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system/nkp.service"))
	must(t, err)
	source, err := os.ReadFile(unitFile)
	must(t, err)
	if string(shipped) != string(source) {
		t.Error("the package has another unit than deploy/systemd/nkp.service")
	}
	out := mustRun(t, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=100", unitFile)
	_, line, _ := strings.Cut(out, "Overall exposure level for nkp.service: ")
	score, err := strconv.ParseFloat(strings.Fields(line + " -")[0], 64)
	if err != nil {
		t.Fatalf("systemd-analyze security says no score: %v\n%s", err, out)
	}
	t.Logf("exposure %v", score)
	if score > worstExposure {
		t.Errorf("exposure %v, it was %v\n%s", score, worstExposure, out)
	}
}

// machine is a booted systemd, with the package of nkp installed in its file system.
type machine struct {
	t   *testing.T
	pid int // of systemd, seen from here
}

// boot starts systemd on a host of a bed; it ends with the test.
func boot(t *testing.T, bed *testbed.Bed, deb, manifest string) *machine {
	t.Helper()
	script, err := filepath.Abs("testdata/boot")
	must(t, err)
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	defer log.Close()
	leave := enterCgroup(t)
	cmd := exec.Command("unshare", "--kill-child", "--fork", "--pid", "--mount", "--uts", "--ipc", "--cgroup", "--propagation", "private",
		script, dir, deb, bed.RunDir, manifest)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	err = bed.Node.Start(cmd)
	leave()
	must(t, err)
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the start of systemd said:\n%s", text)
		}
	})
	m := &machine{t: t}
	wait.NoError(t, "systemd runs", func() error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if err != nil {
			return err
		}
		if m.pid, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
			return err
		}
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.pid)); strings.TrimSpace(string(name)) != "systemd" {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("it is %s still: %s", name, text)
		}
		_, err = m.try("systemctl", "show", "--property=Version")
		return err
	})
	return m
}

// try runs a command in the machine.
func (m *machine) try(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	pid := strconv.Itoa(m.pid)
	out, err := exec.CommandContext(ctx, "nsenter", append([]string{"--target", pid, "--mount", "--pid", "--net", "--uts", "--ipc",
		"--root=/proc/" + pid + "/root", "--wd=/proc/" + pid + "/root"}, argv...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%v: %w: %s", argv, err, out)
	}
	return string(out), err
}

func (m *machine) run(argv ...string) string {
	m.t.Helper()
	out, err := m.try(argv...)
	must(m.t, err)
	return out
}

// property returns one of the unit's.
func (m *machine) property(name string) string {
	m.t.Helper()
	return strings.TrimSpace(m.run("systemctl", "show", "nkp.service", "--value", "--property="+name))
}

// active waits until the unit is what it should be.
func (m *machine) awaits(what string, properties map[string]string) {
	m.t.Helper()
	wait.NoError(m.t, what, func() error {
		for name, want := range properties {
			if got := m.property(name); got != want {
				return fmt.Errorf("%s is %s, want %s: %s", name, got, want, m.property("StatusText"))
			}
		}
		return nil
	})
}

// The package, installed as its user would, is started by systemd under the unit's restrictions, serves, is ready when it
// does, is watched, comes back when it is killed, and leaves Services in force when it stops.
func TestBoot(t *testing.T) {
	testbed.Require(t)
	requireProgram(t, "unshare", "nsenter", "dpkg")
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Fatal("this test needs systemd (.ci/install-deps deploy): ", err)
	}
	bed := testbed.Start(t, testbed.Options{})
	pods, err := bed.AddPods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	client, web := pods[0], pods[1]
	_, err = web.ServeTCP(8080)
	must(t, err)
	manifest := filepath.Join(t.TempDir(), "web.yaml")
	must(t, os.WriteFile(manifest, []byte(fmt.Sprintf(webManifest, testbed.NodeIP4, web.IP4)), 0o644))

	m := boot(t, bed, debPackage(t), manifest)
	m.awaits("nkp is ready", map[string]string{"ActiveState": "active", "SubState": "running", "StatusText": "ovs: 1 Service port of manifests /etc/nkp/manifests"})
	ask := func(when string) {
		t.Helper()
		if _, err := client.Ask(t.Context(), "tcp", webVIP); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	ask("ready") // without waiting: this is what READY=1 says
	if on := strings.TrimSpace(m.run("systemctl", "is-enabled", "nkp.service")); on != "enabled" {
		t.Errorf("the package leaves the unit %s", on)
	}

	if out := m.run("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", "nkp.service"); strings.Contains(out, "nkp") {
		t.Errorf("systemd-analyze verify: %s", out)
	}

	// The process has what the unit leaves it, and no more.
	status := m.run("cat", "/proc/"+m.property("MainPID")+"/status")
	for _, want := range []string{"CapEff:\t0000000000003000", "CapBnd:\t0000000000003000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, want) {
			t.Errorf("the process has not %q:\n%s", want, status)
		}
	}
	if out := m.run("nkp", "status"); !strings.Contains(out, "the switch holds what it should") {
		t.Errorf("nkp status: %s", out)
	}
	if fed := m.property("WatchdogTimestampMonotonic"); fed == "0" {
		t.Error("the watchdog is not fed")
	}

	// Killed, it comes back.
	m.run("systemctl", "kill", "--signal=KILL", "nkp.service")
	m.awaits("nkp is back", map[string]string{"ActiveState": "active", "NRestarts": "1"})
	ask("killed and back")

	// With an argument that is wrong it rests between its starts, which never end.
	m.run("sed", "-i", `s|^NKP_ARGS="|&--no-such-flag |`, "/etc/default/nkp")
	m.run("systemctl", "restart", "--no-block", "nkp.service")
	m.awaits("nkp rests after its error", map[string]string{"SubState": "stop-post", "Result": "exit-code", "NRestarts": "0"})
	m.awaits("nkp is started again", map[string]string{"SubState": "stop-post", "NRestarts": "1"})
	ask("failing")
	m.run("sed", "-i", "s|--no-such-flag ||", "/etc/default/nkp")
	m.awaits("nkp serves without the argument", map[string]string{"ActiveState": "active", "SubState": "running"})

	// Stopped, and then the package removed, Services stay.
	m.run("systemctl", "stop", "nkp.service")
	if r := m.property("Result"); r != "success" {
		t.Errorf("it stops with %s", r)
	}
	ask("stopped")
	m.run("systemctl", "start", "nkp.service")
	m.run("dpkg", "--remove", "nkp")
	ask("removed")
	if _, err := m.try("test", "-e", "/etc/default/nkp"); err != nil {
		t.Error("a removal, which is no purge, takes the configuration away")
	}
	m.run("dpkg", "--install", "/opt/nkp.deb")
	m.awaits("the package that comes back is enabled and serves", map[string]string{"ActiveState": "active", "UnitFileState": "enabled"})
	m.run("dpkg", "--remove", "nkp")
	m.run("dpkg", "--purge", "nkp")
	if out, err := m.try("readlink", "/etc/systemd/system/multi-user.target.wants/nkp.service"); err == nil {
		t.Errorf("a purge leaves the unit enabled: %s", out)
	}
	if out, err := m.try("test", "-e", "/etc/default/nkp"); err == nil {
		t.Errorf("a purge leaves the configuration: %s", out)
	}
}

const webVIP = "40.0.0.10:80"

const webManifest = `apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: node-1}
  status: {addresses: [{type: InternalIP, address: %s}]}
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: default}
  spec: {clusterIP: 40.0.0.10, clusterIPs: [40.0.0.10], ipFamilies: [IPv4], ports: [{name: http, port: 80, protocol: TCP}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
  addressType: IPv4
  ports: [{name: http, port: 8080, protocol: TCP}]
  endpoints: [{addresses: [%s], nodeName: node-1, conditions: {ready: true}}]
`

// enterCgroup puts this process into a control group of its own, of systemd's hierarchy, so that what is started next
// begins there. It must be left again; the group goes with the test.
func enterCgroup(t *testing.T) (leave func()) {
	t.Helper()
	base := "/sys/fs/cgroup"
	if _, err := os.Stat(base + "/systemd"); err == nil {
		base += "/systemd" // version 1
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	must(t, err)
	own := base
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if f[1] == "name=systemd" || f[1] == "" && !strings.HasSuffix(base, "systemd") {
			own = filepath.Join(base, f[2])
		}
	}
	group, err := os.MkdirTemp(own, "nkp-test-")
	must(t, err)
	t.Cleanup(func() {
		wait.NoError(t, "the control groups are empty", func() error { return removeGroups(group) })
	})
	move := func(group string) error {
		return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644)
	}
	must(t, move(group))
	return func() { must(t, move(own)) }
}

// removeGroups removes a control group and those below it.
func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroups(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}
