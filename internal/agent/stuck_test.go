//go:build linux

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/k8s/manifest"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/test/guardtest"
	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
	"github.com/nkp-proxy/nkp/windows"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// stuckAfter is the bound of these tests. A busy machine may find a loop stuck that only waits for the processor, so that the tests
// wait for the state that must come, and stay, and do not ask for the absence of another.
const stuckAfter = 240 * time.Millisecond

// stuckBed is an agent in this process, with what an operator sees of it.
type stuckBed struct {
	t        *testing.T
	agent    *Agent
	manifest string
	socket   string
	log      string
}

func (b *stuckBed) service(n int) {
	b.t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Service
metadata: {name: s%d, namespace: default}
spec: {clusterIP: 40.0.0.%d, clusterIPs: [40.0.0.%d], ipFamilies: [IPv4], ports: [{port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s%d-a, namespace: default, labels: {kubernetes.io/service-name: s%d}}
addressType: IPv4
ports: [{port: 80, protocol: TCP, name: ""}]
endpoints: [{addresses: [10.0.0.9], nodeName: node-2, conditions: {ready: true}}]
`, i, i+1, i+1, i, i)
	}
	tmp := b.manifest + ".new"
	must(b.t, os.WriteFile(tmp, []byte(text.String()), 0o600))
	must(b.t, os.Rename(tmp, b.manifest))
}

// newStuckBed starts an agent.
func newStuckBed(t *testing.T, by mode.Mode, set Settings, db *ovsdb.Client) *stuckBed {
	t.Helper()
	dir, err := os.MkdirTemp("", "nkp-stuck") // short: socket paths are
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &stuckBed{t: t, manifest: filepath.Join(dir, "m.yaml"), socket: filepath.Join(dir, "nkp.sock"), log: filepath.Join(dir, "log")}
	b.service(1)
	set.NodeName, set.Socket, set.StuckAfter = "node-1", b.socket, stuckAfter
	set.HealthzAddr, set.Metrics.Addr = "127.0.0.1:0", "127.0.0.1:0"
	set.Metrics.Services, set.Metrics.ServiceLimit = true, 10
	set.DetectLocal = k8s.DetectLocal{Mode: k8s.DetectByClusterCIDR, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}
	set.NodeIPs = []netip.Addr{netip.MustParseAddr("172.16.0.2")}
	out, err := os.Create(b.log)
	must(t, err)
	t.Cleanup(func() {
		out.Close()
		if text, _ := os.ReadFile(b.log); t.Failed() {
			t.Logf("nkp said:\n%s", text)
		}
	})
	log := slog.New(slog.NewTextHandler(out, nil))
	b.agent, err = New(Options{Settings: set, Mode: by, Reason: "a test", Source: manifest.NewSource(b.manifest), Kind: "manifests",
		Events: apiserver.NewLogRecorder("node-1", log), DB: db, Log: log})
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.agent.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		wait.Closed(t, "the agent's end", done)
	})
	return b
}

// get asks the agent, whose answer must not wait for a loop.
func (b *stuckBed) get(addr, path string) (code int, body string) {
	b.t.Helper()
	client := http.Client{Timeout: wait.Limit, Transport: &http.Transport{DisableKeepAlives: true}}
	if addr == b.socket {
		client.Transport = &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return api.Dial(ctx, b.socket) }}
		addr = "nkp"
	}
	r, err := client.Get("http://" + addr + path)
	if err != nil {
		b.t.Errorf("%s: %v", path, err)
		return 0, err.Error()
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		b.t.Errorf("%s: %v", path, err)
	}
	return r.StatusCode, string(data)
}

// idle waits until everything is in force, and until no loop works on anything: so it stays green.
func (b *stuckBed) idle() {
	b.t.Helper()
	wait.For(b.t, "everything in force", func() bool {
		return b.agent.proxy.Addr() != "" && b.agent.metricsServer.Addr() != "" && b.agent.proxy.InStep()
	})
	b.well()
}

// well waits until every loop has come to rest, and /livez is green.
func (b *stuckBed) well() {
	b.t.Helper()
	wait.NoError(b.t, "all loops at rest", func() error {
		if working := b.agent.watch.Working(); len(working) > 0 {
			return fmt.Errorf("working: %v", working)
		}
		return nil
	})
	wait.NoError(b.t, "/livez is green", func() error {
		if code, body := b.get(b.agent.proxy.Addr(), "/livez"); code != 200 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	wait.NoError(b.t, "the watchdog is fed", func() error {
		if s, err := b.agent.watchdogSign(b.t.Context()); err != nil || s.Stuck {
			return fmt.Errorf("%+v, %v", s, err)
		}
		return nil
	})
}

// stuck waits until all that an operator sees names the loop, which hangs until the caller lets it go on.
func (b *stuckBed) stuck(loop string) {
	b.t.Helper()
	is := func(s dataplane.State) bool { return s.Loop == loop && s.Stuck && s.Doing != "" }
	for _, path := range []string{"/livez", "/healthz"} {
		wait.NoError(b.t, path+" is red", func() error {
			var body struct {
				Healthy bool
				Stuck   []dataplane.State
			}
			code, text := b.get(b.agent.proxy.Addr(), path)
			if err := json.Unmarshal([]byte(text), &body); err != nil || code != 503 || body.Healthy || !slices.ContainsFunc(body.Stuck, is) {
				return fmt.Errorf("%d %s (%v)", code, text, err)
			}
			return nil
		})
	}
	wait.NoError(b.t, "status", func() error {
		code, text := b.get(b.socket, "/v1/status")
		var s api.Status
		if err := json.Unmarshal([]byte(text), &s); err != nil || code != 200 || !slices.ContainsFunc(s.Loops, is) || s.Status != nil && s.InStep {
			return fmt.Errorf("%d %s (%v)", code, text, err)
		}
		return nil
	})
	wait.NoError(b.t, "metrics", func() error {
		_, text := b.get(b.agent.metricsServer.Addr(), "/metrics")
		stalled := `nkp_loop_stalled_seconds{loop="` + loop + `"} `
		if !strings.Contains(text, `nkp_in_step{ip_family="IPv4"} 0`) || !strings.Contains(text, stalled) || strings.Contains(text, stalled+"0\n") {
			return fmt.Errorf("want nkp_in_step 0, %s not 0 in\n%s", stalled, text)
		}
		return nil
	})
	s, err := b.agent.watchdogSign(b.t.Context())
	if err != nil || !s.Stuck || s.Ready || !strings.Contains(s.Status, loop+" has made no progress") {
		b.t.Errorf("the service manager is told %+v, %v", s, err)
	}
}

// hang returns what blocks until goOn is called, or the test ends.
func hang(t *testing.T) (block, goOn func()) {
	c := make(chan struct{})
	goOn = sync.OnceFunc(func() { close(c) })
	t.Cleanup(goOn)
	return func() { <-c }, goOn
}

// onHNS starts an agent at an HNS in memory.
func onHNS(t *testing.T) (*stuckBed, *hnsfake.Server) {
	fake := hnsfake.New(hns.Version{Major: 15, Minor: 5})
	fake.AddNetwork("l2", hns.NetworkL2Bridge, nil)
	set := Settings{Windows: windows.Options{NetworkName: "l2", StateFile: filepath.Join(t.TempDir(), "hns.json"),
		Open: func() (hns.Host, error) { return fake.Host(), nil }}, Fallback: fallback.DefaultOptions()}
	set.Fallback.SyncPeriod = 2 * time.Second // between audits
	b := newStuckBed(t, mode.Windows, set, nil)
	b.idle()
	return b, fake
}

// A call into HNS that does not return turns /livez red, and with it all else, at a change and at an audit; so does the agent's own
// loop. Each call that does return is progress, however many a sync needs.
func TestStuckHNS(t *testing.T) {
	b, fake := onHNS(t)
	for _, change := range []bool{true, false} {
		block, goOn := hang(t)
		fake.Inject(hnsfake.Fault{Times: -1, Do: block})
		if change {
			b.service(2)
		}
		b.stuck("HNS")
		fake.Heal()
		goOn()
		b.well()
	}

	block, goOn := hang(t)
	go b.agent.ask(t.Context(), block)
	b.stuck("agent")
	goOn()
	b.well()

	progress := make(chan time.Time, 6)
	fake.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: cap(progress), Do: func() {
		for _, s := range b.agent.watch.Working() {
			if s.Loop == "HNS" {
				progress <- s.Since
			}
		}
	}})
	b.service(2 + cap(progress))
	last := time.Time{}
	for i := range cap(progress) {
		at := wait.Receive(t, "a load balancer", progress)
		if !at.After(last) {
			t.Errorf("load balancer %d: the last progress was at %v, as for the one before", i+1, at)
		}
		last = at
	}
}

// A switch that answers echoes and nothing else turns /livez red, with a change to program or without, and so it stays while
// the agent gives up the connection, reconnects and is no better off; until the switch answers, or ends. The gate has its end only,
// because the connection is given up after half a minute.
func TestStuckSwitch(t *testing.T) {
	bed := testbed.Start(t, testbed.Options{})
	var deaf atomic.Bool // from then on echo requests are answered, and nothing else
	hears := func(m ofctrltest.Message) bool { return !deaf.Load() || m.Type() == ofctrltest.Hello }
	proxy, err := ofctrltest.Intercept(bed.RunDir+"/echo.mgmt", bed.Mgmt(bed.Bridge), ofctrltest.Handlers{
		FromController: func(p *ofctrltest.Pair, m ofctrltest.Message) {
			switch {
			case hears(m):
				p.Switch.Write(m)
			case m.Type() == ofctrltest.EchoRequest:
				p.Controller.Write(ofctrltest.NewMessage(ofctrltest.EchoReply, m.XID(), m.Body()...))
			}
		},
		FromSwitch: func(p *ofctrltest.Pair, m ofctrltest.Message) {
			if hears(m) {
				p.Controller.Write(m)
			}
		},
	})
	must(t, err)
	t.Cleanup(func() { proxy.Close() })
	db, err := ovsdb.Connect(t.Context(), ovsdb.Options{Endpoint: bed.DB(), Bridge: bed.Bridge})
	must(t, err)
	t.Cleanup(db.Close)
	set := Settings{Settings: bridge.Settings{
		OVSDB: bed.DB(), Bridge: bed.Bridge, OpenFlow: "unix:" + bed.RunDir + "/echo.mgmt",
		HostTraffic: bridge.HostOff, LocalDelivery: bridge.DeliverOff, Counters: true, Layout: pipeline.DefaultLayout(),
		AuditPeriod: time.Minute, CountPeriod: time.Second,
	}, Fallback: fallback.DefaultOptions()}
	b := newStuckBed(t, mode.OVS, set, db)
	b.idle()
	for _, change := range []bool{true, false}[:nightly.Count(0, 2)] {
		deaf.Store(true)
		if change {
			b.service(2)
		}
		b.stuck("bridge")
		wait.For(t, "the log names the question", func() bool {
			text, _ := os.ReadFile(b.log)
			return strings.Contains(string(text), "switch has not answered")
		})
		b.stuck("bridge")
		if list, err := b.agent.pods(t.Context()); err != nil || len(list.Notes) != 1 {
			t.Errorf("pods do not say that ovs-vswitchd does not answer: %+v, %v", list, err)
		}
		deaf.Store(false)
		b.well()
		os.Truncate(b.log, 0)
	}
	deaf.Store(true)
	b.service(3)
	b.stuck("bridge")
	proxy.Close() // as when ovs-vswitchd ends: another nkp could do nothing, either
	b.well()
}

// An iptables-restore that neither reads nor ends turns /livez red. The test runs itself in a network namespace of its own.
func TestStuckIPTables(t *testing.T) {
	testbed.Linux.Require(t)
	if os.Getenv("NKP_TEST_STUCK_CHILD") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestStuckIPTables$", "-test.v", "-test.timeout=4m")
		cmd.Env = append(os.Environ(), "NKP_TEST_STUCK_CHILD=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
		return
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	must(t, err)
	dir := t.TempDir()
	for _, name := range []string{"iptables-nft-restore", "ip6tables-nft-restore"} {
		real, err := exec.LookPath(name)
		must(t, err)
		script := fmt.Sprintf("#!/bin/sh\n[ -e %s/hang ] && exec sleep 600\nexec %s \"$@\"\n", dir, real)
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	set := Settings{Fallback: fallback.DefaultOptions()}
	set.IPTablesBackend, set.Fallback.Families = "nf_tables", []k8s.Family{k8s.IPv4}
	set.Fallback.LocalhostNodePorts = false
	b := newStuckBed(t, mode.IPTables, set, nil)
	b.idle()
	must(t, os.WriteFile(dir+"/hang", nil, 0o600))
	b.service(2)
	b.stuck("iptables IPv4")
	if b.agent.fallback.Detail().Families[0].InStep {
		t.Error("status says that the rules are as they should be")
	}
	must(t, os.Remove(dir+"/hang"))
	endChildren(t)
	b.well()
}

// endChildren ends the hanging programs that this process started.
func endChildren(t *testing.T) {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	must(t, err)
	for _, f := range tasks {
		text, _ := os.ReadFile(f)
		for _, pid := range strings.Fields(string(text)) {
			var n int
			fmt.Sscan(pid, &n)
			if name, _ := os.ReadFile("/proc/" + pid + "/comm"); strings.TrimSpace(string(name)) == "sleep" {
				syscall.Kill(n, syscall.SIGKILL)
			}
		}
	}
}

// Clients that hold connections, more than each listener takes, keep nobody from asking the agent: at its socket, and for its health.
// (For metrics see internal/observe/metrics.)
func TestAgentBesieged(t *testing.T) {
	b, _ := onHNS(t)
	health := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", b.agent.proxy.Addr())
	}
	socket := func(ctx context.Context) (net.Conn, error) { return api.Dial(ctx, b.socket) }
	guardtest.Besiege(t, socket, "/v1/status", 30) // 180 connections
	guardtest.Besiege(t, health, "/livez", 90)
	guardtest.Answers(t, socket, "/v1/status", 200)
	guardtest.Answers(t, health, "/livez", 200)
}
