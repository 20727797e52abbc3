package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nkp-proxy/nkp/internal/testbed"
)

const (
	nodeName    = "node-1"
	otherNode   = "node-2"
	patience    = 20 * time.Second
	kubeVersion = "v1.36.3" // of k8s.io/kubernetes in go.mod
)

// binDir is where binaries put the programs; "" before.
var binDir string

// binaries builds the programs under test, nkp and kubeserver, once.
var binaries = sync.OnceValue(func() (err error) {
	if binDir, err = os.MkdirTemp("", "nkp-e2e-"); err != nil {
		return err
	}
	nkp := exec.Command("go", "build", "-o", filepath.Join(binDir, "nkp"), ".")
	nkp.Dir = "../.." // with the product's own choice of modules
	server := exec.Command("go", "build", "-ldflags", "-X k8s.io/component-base/version.gitVersion="+kubeVersion,
		"-o", filepath.Join(binDir, "kubeserver"), "./kubeserver")
	for _, cmd := range []*exec.Cmd{nkp, server} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
		}
	}
	return nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if binDir != "" {
		os.RemoveAll(binDir)
	}
	os.Exit(code)
}

// cluster is a bed with a control plane on its node's loopback, and nkp.
type cluster struct {
	*testbed.Bed
	t       *testing.T
	ctx     context.Context
	bin     string
	dir     string // the control plane's
	pods    []*testbed.Pod
	remotes []*testbed.Pod
	client  kubernetes.Interface

	server, agent *process
}

// newCluster starts a control plane and three pods on the node and two elsewhere; the API does not know them yet. nkp does
// not run yet.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	testbed.Require(t)
	must(t, binaries())
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	c := &cluster{Bed: testbed.Start(t, testbed.Options{}), t: t, ctx: ctx, bin: binDir, dir: t.TempDir()}
	var err error
	c.pods, err = c.AddPods(testbed.PodSpec{}, testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	c.remotes, err = c.AddRemotePods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	c.startServer()
	cfg, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	must(t, err)
	cfg.QPS, cfg.Burst = 200, 200
	cfg.Dial = func(ctx context.Context, _, addr string) (net.Conn, error) {
		return c.Node.DialTCP(ctx, addr, testbed.DialOptions{})
	}
	c.client, err = kubernetes.NewForConfig(cfg)
	must(t, err)
	return c
}

func (c *cluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// startServer starts the control plane and waits until it serves.
func (c *cluster) startServer() {
	c.t.Helper()
	os.Remove(c.kubeconfig()) // it comes back when the server is ready
	c.server = c.start("kubeserver", exec.Command(filepath.Join(c.bin, "kubeserver"), c.dir))
	c.eventually("the API server gets ready", func() error {
		select {
		case <-c.server.done:
			c.t.Fatalf("kubeserver ended: %s", tail(c.server.log.String(), 3000))
		default:
		}
		_, err := os.Stat(c.kubeconfig())
		return err
	})
}

// startAgent starts nkp on the node.
func (c *cluster) startAgent() {
	c.t.Helper()
	kubeconfig := filepath.Join(c.dir, "nkp.kubeconfig") // stays when the server goes
	if data, err := os.ReadFile(c.kubeconfig()); err == nil {
		must(c.t, os.WriteFile(kubeconfig, data, 0o600))
	}
	args := append([]string{"run", "--socket", c.socket(), "--log-level", "debug", "--ovs-wait", "10s"}, c.flags()...)
	c.agent = c.start("nkp", exec.Command(filepath.Join(c.bin, "nkp"), args...))
}

// flags are those that all commands of nkp share here.
func (c *cluster) flags() []string {
	return []string{"--kubeconfig", filepath.Join(c.dir, "nkp.kubeconfig"), "--ovsdb", c.DB(), "--bridge", c.Bridge,
		"--hostname-override", nodeName, "--gateway-mac", testbed.GatewayMAC, "--cluster-cidr", "10.0.0.0/16,fd00:a::/64,fd00:b::/64"}
}

func (c *cluster) socket() string { return filepath.Join(c.RunDir, "nkp.sock") }

// nkp runs a command of nkp on the node to its end and gives its output and exit status.
func (c *cluster) nkp(args ...string) (output string, status int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, 30*time.Second)
	defer cancel()
	var out buffer
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "nkp"), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	must(c.t, c.Node.Start(cmd))
	cmd.Wait()
	return out.String(), cmd.ProcessState.ExitCode()
}

func (c *cluster) status() string {
	c.t.Helper()
	out, _ := c.nkp("status", "--socket", c.socket())
	return out
}

// process is a running program on the node.
type process struct {
	cmd  *exec.Cmd
	log  buffer
	done chan struct{} // closed when it has ended
}

// start starts a program on the node; it ends with the test.
func (c *cluster) start(name string, cmd *exec.Cmd) *process {
	c.t.Helper()
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	must(c.t, c.Node.Start(cmd))
	go func() { // ends with the process
		cmd.Wait()
		close(p.done)
	}()
	c.t.Cleanup(func() {
		p.kill()
		if c.t.Failed() {
			c.t.Logf("%s said:\n%s", name, tail(p.log.String(), 5000))
		}
	})
	return p
}

// kill ends the process without a chance to clean up, and waits for its end.
func (p *process) kill() {
	p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

// buffer is a bytes.Buffer for two goroutines.
type buffer struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

func (s *buffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *buffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually calls f until it returns nil.
func (c *cluster) eventually(what string, f func() error) {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("not within %v: %s: %v", patience, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// answers asks addr from h often and fails if anybody else than these pods answers, or one of them never.
func (c *cluster) answers(h *testbed.Host, addr string, pods ...*testbed.Pod) error {
	who, errs := h.Many(c.ctx, 60, 8, addr)
	if len(errs) > 0 {
		return fmt.Errorf("%s does not answer %s: %w", addr, h.Name, errs[0])
	}
	for _, p := range pods {
		if who[p.Name] == 0 {
			return fmt.Errorf("%s never answers at %s: %v", p.Name, addr, who)
		}
		delete(who, p.Name)
	}
	if len(who) > 0 {
		return fmt.Errorf("at %s others answer: %v", addr, who)
	}
	return nil
}

// fails asks once and wants this error.
func (c *cluster) fails(h *testbed.Host, addr string, want error) error {
	ctx, cancel := context.WithTimeout(c.ctx, 300*time.Millisecond)
	defer cancel()
	a, err := h.Ask(ctx, "tcp", addr)
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("%s: %+v, %v; want %v", addr, a, err, want)
}

// has reports a text that is missing.
func has(text string, parts ...string) error {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return fmt.Errorf("%q is not in:\n%s", p, text)
		}
	}
	return nil
}
