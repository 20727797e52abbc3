//go:build linux

package fallback

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = testbed.RemoveBuilt()
	os.Exit(code)
}

// kubeProxy is built once, from the module that pins it; the first time takes minutes.
var kubeProxy = sync.OnceValues(func() (string, error) {
	return testbed.Build("NKP_KUBE_PROXY", "../k8s", "k8s.io/kubernetes/cmd/kube-proxy",
		"-ldflags", testbed.ReportsKube(testbed.KubeVersion))
})

// proxy is a running service proxy.
type proxy struct {
	t   testing.TB
	cmd *exec.Cmd
	log string
	end sync.Once
}

// startNKP starts nkp as it runs on a node without Open vSwitch, over a back end.
func (c *cluster) startNKP(backend string) *proxy {
	c.t.Helper()
	return c.startNKPWith("--mode", "iptables", "--iptables-backend", backend)
}

func (c *cluster) startNKPWith(mode ...string) *proxy {
	c.t.Helper()
	bin, err := testbed.NKP()
	must(c.t, err)
	cmd := exec.Command(bin, slices.Concat([]string{"run", "--kubeconfig", c.kubeconfig, "--socket", c.socket(), "--log-level", "debug"},
		mode, clientFlags, nodeFlags)...)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+c.lock)
	return c.start("nkp", cmd)
}

// What both proxies are told alike.
var (
	clientFlags = []string{"--kube-api-qps", "100", "--kube-api-burst", "100"}
	nodeFlags   = []string{"--hostname-override", nodeName, "--cluster-cidr", testbed.PodCIDR4.String(),
		// The machine's connection tracking is not this test's to set.
		"--conntrack-max-per-core", "0", "--conntrack-min", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s"}
)

func (c *cluster) socket() string { return filepath.Join(c.bed.RunDir, "nkp", "nkp.sock") }

// waitInStep waits until the running nkp says that all is programmed.
func (c *cluster) waitInStep() {
	c.t.Helper()
	bin, err := testbed.NKP()
	must(c.t, err)
	wait.NoError(c.t, "nkp to be in step", func() error {
		out, err := c.bed.Node.Exec(c.t.Context(), bin, "status", "--socket", c.socket(), "-o", "json")
		var status struct{ IPTables, NFTables *fallback.Status }
		if err == nil {
			err = json.Unmarshal([]byte(out), &status)
		}
		if err != nil {
			return err
		}
		if s := cmp.Or(status.IPTables, status.NFTables); s == nil || !allInStep(s.Families) {
			return errors.New(out)
		}
		return nil
	})
}

// allInStep reports whether all families are programmed, or were found so by a start that had nothing to write.
func allInStep(families []fallback.FamilyStatus) bool {
	return len(families) > 0 && !slices.ContainsFunc(families, func(f fallback.FamilyStatus) bool {
		return !f.InStep || f.LastSync.IsZero() && f.Compared.IsZero()
	})
}

// startKubeProxy starts kube-proxy in a mode; iptables is that of the back end.
func (c *cluster) startKubeProxy(mode, backend string) *proxy {
	c.t.Helper()
	bin, err := kubeProxy()
	must(c.t, err)
	cmd := exec.Command(bin, append(append([]string{"--kubeconfig", c.kubeconfig, "--proxy-mode", mode, "-v", "2"}, clientFlags...), nodeFlags...)...)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+c.lock, "PATH="+c.iptablesDir(backend)+":"+os.Getenv("PATH"))
	return c.start("kube-proxy", cmd)
}

// iptablesDir makes a directory where "iptables" is that of a back end.
func (c *cluster) iptablesDir(backend string) string {
	c.t.Helper()
	dir := c.t.TempDir()
	infix := map[string]string{"nf_tables": "-nft", "legacy": "-legacy"}[backend]
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, rest := range []string{"", "-restore", "-save"} {
			path, err := exec.LookPath(name + infix + rest)
			must(c.t, err)
			// The program looks at its own name to know which of many it is.
			script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", path)
			must(c.t, os.WriteFile(filepath.Join(dir, name+rest), []byte(script), 0o755))
		}
	}
	return dir
}

func (c *cluster) start(name string, cmd *exec.Cmd) *proxy {
	c.t.Helper()
	log, err := os.CreateTemp(c.t.TempDir(), name)
	must(c.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	must(c.t, c.bed.Node.Start(cmd))
	p := &proxy{t: c.t, cmd: cmd, log: log.Name()}
	c.t.Cleanup(func() {
		p.stop()
		_ = log.Close()
		if c.t.Failed() {
			c.t.Logf("the end of %s's log:\n%s", name, p.tail())
		}
	})
	return p
}

func (p *proxy) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// stop ends the proxy as a DaemonSet's update does.
func (p *proxy) stop() {
	p.end.Do(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		killer := time.AfterFunc(wait.Limit, func() { _ = p.cmd.Process.Kill() })
		defer killer.Stop()
		_ = p.cmd.Wait()
	})
}

// waitLog waits until the proxy's log has a text that many times.
func (p *proxy) waitLog(text string, times int) {
	p.t.Helper()
	wait.For(p.t, fmt.Sprintf("%q in the log, %d times", text, times), func() bool {
		log, err := os.ReadFile(p.log)
		return err == nil && strings.Count(string(log), text) >= times
	})
}

// memory returns what the process holds now and what it held at most, in MB.
func (p *proxy) memory() (now, most int) {
	pid := p.cmd.Process.Pid
	return testbed.Memory(p.t, pid, "VmRSS") / 1024, testbed.Memory(p.t, pid, "VmHWM") / 1024
}

// cpu returns the processor time that the process and the programs that it ran have used: most of it is iptables'.
func (p *proxy) cpu() (own, children time.Duration) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	must(p.t, err)
	_, rest, _ := strings.Cut(string(text), ") ") // after the name: proc_pid_stat(5), from field 3 on
	var ticks [4]int64
	for i := range ticks {
		ticks[i], _ = strconv.ParseInt(strings.Fields(rest)[11+i], 10, 64)
	}
	const tick = time.Second / 100 // USER_HZ
	return time.Duration(ticks[0]+ticks[1]) * tick, time.Duration(ticks[2]+ticks[3]) * tick
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
