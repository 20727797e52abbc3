//go:build linux

package fallback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/testbed"
	"github.com/nkp-proxy/nkp/k8s"
)

// planeEnv tells the test binary to be a service proxy on iptables: the API server's URL and the back end.
const planeEnv = "NKP_FALLBACK_PLANE"

var buildDir string

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(planeEnv); ok {
		if err := plane(text); err != nil {
			fmt.Fprintln(os.Stderr, "plane:", err)
			os.Exit(1)
		}
		return
	}
	dir, err := os.MkdirTemp("", "nkp-fallback-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// plane follows the API server and keeps iptables in step, without all else that nkp run does.
func plane(text string) error {
	url, backend, _ := strings.Cut(text, ",")
	o := fallback.DefaultOptions()
	o.Backend, o.Families = backend, []k8s.Family{k8s.IPv4}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o.Hooks.InStep = func(k8s.Family) { fmt.Println("in step") }
	p, err := fallback.New(o)
	if err != nil {
		return err
	}
	source, err := k8s.NewAPISource(k8s.APIOptions{Master: url, NodeName: nodeName, QPS: 100, Burst: 100, ContentType: "application/json"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 2)
	go func() { done <- p.Run(ctx) }() // both end with the process
	go func() {
		done <- source.Run(ctx, &sink{plane: p, tracker: k8s.NewTracker(k8s.Options{NodeName: nodeName, DetectLocal: k8s.DetectLocal{
			Mode: k8s.DetectByClusterCIDR, CIDRs: []netip.Prefix{testbed.PodCIDR4}}})})
	}()
	return <-done
}

// sink hands the plane what the source reports; it is called from one goroutine at a time.
type sink struct {
	plane   *fallback.Plane
	tracker *k8s.Tracker
	synced  bool
}

func (s *sink) Apply(changes []k8s.Change) {
	s.tracker.Apply(changes)
	if s.synced {
		s.plane.Update(s.tracker.Flush())
	}
}

func (s *sink) Synced() {
	s.synced = true
	s.plane.Update(s.tracker.Flush())
}

func (s *sink) Problems(k8s.Problems) {}

// kubeProxy is built once, from the module that pins it; the first time takes minutes.
var kubeProxy = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("NKP_KUBE_PROXY"); bin != "" {
		return filepath.Abs(bin)
	}
	bin := filepath.Join(buildDir, "kube-proxy")
	out, err := exec.Command("go", "build", "-C", "../semantics/kubeproxy", "-o", bin,
		"-ldflags", "-X k8s.io/component-base/version.gitVersion=v1.36.3", "k8s.io/kubernetes/cmd/kube-proxy").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build kube-proxy: %w: %s", err, out)
	}
	return bin, nil
})

// proxy is a running service proxy.
type proxy struct {
	t   *testing.T
	cmd *exec.Cmd
	log string
	end sync.Once
}

// startNKP starts the plane of this repository over a back end.
func (c *cluster) startNKP(backend string) *proxy {
	c.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), planeEnv+"="+c.url+","+backend, "XTABLES_LOCKFILE="+c.lock)
	return c.start("nkp", cmd)
}

// startKubeProxy starts kube-proxy in a mode; iptables is that of the back end.
func (c *cluster) startKubeProxy(mode, backend string) *proxy {
	c.t.Helper()
	bin, err := kubeProxy()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(bin, "--kubeconfig", c.kubeconfig, "--kube-api-content-type", "application/json", "--kube-api-qps", "100",
		"--kube-api-burst", "100", "--proxy-mode", mode, "--hostname-override", nodeName, "--cluster-cidr", testbed.PodCIDR4.String(),
		"--conntrack-max-per-core", "0", "--conntrack-min", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s",
		"-v", "2")
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
			if err != nil {
				c.t.Fatal(err)
			}
			// The program looks at its own name to know which of many it is.
			script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", path)
			if err := os.WriteFile(filepath.Join(dir, name+rest), []byte(script), 0o755); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	return dir
}

func (c *cluster) start(name string, cmd *exec.Cmd) *proxy {
	c.t.Helper()
	log, err := os.CreateTemp(c.t.TempDir(), name)
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := c.bed.Node.Start(cmd); err != nil {
		c.t.Fatal(err)
	}
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
		killer := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
		defer killer.Stop()
		_ = p.cmd.Wait()
	})
}

// waitLog waits until the proxy's log has a text that many times.
func (p *proxy) waitLog(text string, times int, d time.Duration) error {
	for end := time.Now().Add(testbed.Patient(d)); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if log, err := os.ReadFile(p.log); err == nil && strings.Count(string(log), text) >= times {
			return nil
		}
	}
	return errors.New("no " + text + " in time")
}

// resident gives the memory that the process has now, in MB.
func (p *proxy) resident() int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for l := range strings.Lines(string(text)) {
		var kB int
		if _, err := fmt.Sscanf(l, "VmRSS: %d kB", &kB); err == nil {
			return kB / 1024
		}
	}
	return 0
}
