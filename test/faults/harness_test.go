//go:build linux

package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

const (
	nodeName    = harness.NodeName
	metricsAddr = "127.0.0.1:10249"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if verdict != "" {
		fmt.Println(verdict)
	}
	_ = testbed.RemoveBuilt()
	os.Exit(code)
}

func must(t testing.TB, err error) {
	t.Helper()
	harness.Must(t, err)
}

// cluster is a bed, a manifest file that says what Services there are, and an agent whose ways to the switch can be disturbed.
type cluster struct {
	*testbed.Bed
	t        testing.TB
	bin      string
	manifest string
	channel  *channel       // between the agent and the switch
	database *channel       // between the agent and the switch's database
	straight bool           // the agent goes past both
	openflow string         // the agent goes past both, and to this target; "": it does not
	flags    []string       // further ones of the agent
	servers  []*testbed.Pod // local ones first
	clients  []*testbed.Pod
	services []*svc
	log      *os.File // what all agents said

	mu    sync.Mutex       // protects agent
	agent *testbed.Program // nil: killed
}

// newCluster builds a bed with three client pods, three server pods and two remote server pods. nkp does not run yet.
func newCluster(t testing.TB) *cluster {
	t.Helper()
	bin, err := testbed.NKP()
	must(t, err)
	c := &cluster{Bed: testbed.Start(t, testbed.Options{}), t: t, bin: bin}
	dir := t.TempDir()
	c.manifest = filepath.Join(dir, "manifests.json")
	c.log, err = os.Create(filepath.Join(dir, "nkp.log"))
	must(t, err)
	t.Cleanup(func() { c.log.Close() })
	c.channel, err = newChannel(filepath.Join(c.RunDir, "slow.mgmt"), c.Mgmt(c.Bridge))
	must(t, err)
	t.Cleanup(c.channel.close)
	c.database, err = newChannel(filepath.Join(c.RunDir, "slow.db"), strings.TrimPrefix(c.DB(), "unix:"))
	must(t, err)
	t.Cleanup(c.database.close)
	c.clients, err = c.AddPods(make([]testbed.PodSpec, 3)...)
	must(t, err)
	c.servers, err = c.AddPods(make([]testbed.PodSpec, 3)...)
	must(t, err)
	remotes, err := c.AddRemotePods(make([]testbed.PodSpec, 2)...)
	must(t, err)
	c.servers = append(c.servers, remotes...)
	for _, p := range c.servers {
		must(t, serve(p.Host, serverPort))
	}
	t.Cleanup(func() {
		c.stop(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("nkp said at last:\n%s", c.said(8000))
		}
	})
	return c
}

// common are the flags that every command shares here.
func (c *cluster) common() []string {
	return []string{"--manifests", c.manifest, "--ovsdb", c.DB(), "--bridge", c.Bridge, "--hostname-override", nodeName,
		"--cluster-cidr", "10.0.0.0/16,fd00:a::/64,fd00:b::/64", "--gateway-mac", testbed.GatewayMAC}
}

func (c *cluster) socket() string { return filepath.Join(c.RunDir, "nkp.sock") }

// start starts the agent on the node, behind the channels.
func (c *cluster) start() error {
	args := append([]string{"run"}, c.common()...)
	args = append(args, "--socket", c.socket(), "--ovs-wait", "30s", "--metrics-bind-address", metricsAddr, "--profiling")
	args = append(args, c.flags...)
	switch {
	case c.openflow != "":
		args = append(args, "--openflow", c.openflow)
	case !c.straight:
		args = append(args, "--openflow", "unix:"+c.channel.path, "--ovsdb", "unix:"+c.database.path)
	}
	p, err := c.Node.Launch(c.log, append([]string{c.bin}, args...)...)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.agent = p
	return nil
}

// stop ends the agent and waits for it. One that does not end is an error.
func (c *cluster) stop(sig syscall.Signal) error {
	c.mu.Lock()
	p := c.agent
	c.agent = nil
	c.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.Stop(sig)
}

// running returns the agent; it is an error if it ended by itself.
func (c *cluster) running() (*testbed.Program, error) {
	c.mu.Lock()
	p := c.agent
	c.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("no agent runs")
	}
	if p.Ended() {
		return nil, fmt.Errorf("nkp ended by itself: %v", p.Cmd.ProcessState)
	}
	return p, nil
}

// diff compares the switch with the manifests by a command of its own, past the channel: 0 equal, 1 different.
func (c *cluster) diff() (text string, status int) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	stdout, stderr, status := harness.Run(ctx, c.t, c.Node, append([]string{c.bin, "diff", "--socket", c.socket()}, c.common()...)...)
	return stdout + stderr, status
}

// settle waits until the switch holds what the manifests call for, and the datapath knows.
func (c *cluster) settle() error {
	if err := c.settleFlows(); err != nil {
		return err
	}
	return c.Settle()
}

// settleFlows waits until the switch holds what the manifests call for. The datapath may not know yet.
func (c *cluster) settleFlows() error {
	p, err := c.running()
	if err != nil {
		return err
	}
	err = harness.Await(wait.Limit, p, func() error {
		if text, status := c.diff(); status != 0 {
			return fmt.Errorf("diff ends with %d:\n%.3000s", status, text)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the switch is not in step: %w", err)
	}
	return nil
}

// said returns the end of the agents' log.
func (c *cluster) said(n int) string {
	data, err := os.ReadFile(c.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-n):])
}
