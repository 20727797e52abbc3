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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/httpguard/guardtest"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/k8s/manifest"
	"github.com/nkp-proxy/nkp/ofctrl/ofctrltest"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/windows"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// stuckAfter is the bound of these tests.
const stuckAfter = 2400 * time.Millisecond

// stuckBed is an agent in this process, with all that an operator sees of it.
type stuckBed struct {
	t        *testing.T
	agent    *Agent
	manifest string
	socket   string
	log      string
	watchdog atomic.Int64 // WATCHDOG=1 the service manager has got
	status   atomic.Pointer[string]
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
	if err := os.WriteFile(tmp, []byte(text.String()), 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(tmp, b.manifest); err != nil {
		b.t.Fatal(err)
	}
}

// newStuckBed starts an agent whose service manager and clients are the test. It sets the environment: no test runs beside.
func newStuckBed(t *testing.T, mode Mode, set Settings, db *ovsdb.Client) *stuckBed {
	t.Helper()
	dir, err := os.MkdirTemp("", "nkp-stuck") // short: socket paths are
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &stuckBed{t: t, manifest: filepath.Join(dir, "m.yaml"), socket: filepath.Join(dir, "nkp.sock"), log: filepath.Join(dir, "log")}
	b.service(1)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { manager.Close() })
	t.Setenv("NOTIFY_SOCKET", manager.LocalAddr().String())
	t.Setenv("WATCHDOG_USEC", "600000") // a sign every 200 ms
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	go func() { // ends with manager
		buf := make([]byte, 4096)
		for {
			n, err := manager.Read(buf)
			if err != nil {
				return
			}
			for line := range strings.Lines(string(buf[:n])) {
				line = strings.TrimSpace(line)
				if line == "WATCHDOG=1" {
					b.watchdog.Add(1)
				} else if text, ok := strings.CutPrefix(line, "STATUS="); ok {
					b.status.Store(&text)
				}
			}
		}
	}()
	set.NodeName, set.Socket, set.StuckAfter = "node-1", b.socket, stuckAfter
	set.HealthzAddr, set.Metrics.Addr = "127.0.0.1:0", "127.0.0.1:0"
	set.Metrics.Services, set.Metrics.ServiceLimit = true, 10
	set.DetectLocal = k8s.DetectLocal{Mode: k8s.DetectByClusterCIDR, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}
	set.NodeIPs = []netip.Addr{netip.MustParseAddr("172.16.0.2")}
	out, err := os.Create(b.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		out.Close()
		if text, _ := os.ReadFile(b.log); t.Failed() {
			t.Logf("nkp said:\n%s", text)
		}
	})
	log := slog.New(slog.NewTextHandler(out, nil))
	b.agent, err = New(Options{Settings: set, Mode: mode, Reason: "a test", Source: manifest.NewSource(b.manifest), Kind: "manifests",
		Events: apiserver.NewLogRecorder("node-1", log), DB: db, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.agent.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case <-done:
		case <-time.After(60 * time.Second):
			t.Error("the agent does not end")
		}
	})
	return b
}

// within waits for a condition.
func (b *stuckBed) within(d time.Duration, what string, ok func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(d); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			_, body := b.ask(b.agent.proxy.Addr(), "/livez")
			b.t.Fatalf("not within %v: %s; /livez: %s", d, what, body)
		}
	}
}

// get asks and expects an answer, far sooner than the loop's.
func (b *stuckBed) get(addr, path string) (code int, body string) {
	b.t.Helper()
	begun := time.Now()
	code, body = b.ask(addr, path)
	if took := time.Since(begun); took > testbed.Patient(5*time.Second) {
		b.t.Errorf("%s answered after %v", path, took)
	}
	return code, body
}

// ask asks, and waits longer.
func (b *stuckBed) ask(addr, path string) (code int, body string) {
	b.t.Helper()
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	if addr == b.socket {
		client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, b.socket) }}
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

func (b *stuckBed) livez() int {
	code, _ := b.ask(b.agent.proxy.Addr(), "/livez")
	return code
}

// idle waits until everything is in force, and sees that an agent with nothing to do is well for longer than the bound.
func (b *stuckBed) idle() {
	b.t.Helper()
	b.within(60*time.Second, "everything in force", func() bool {
		return b.agent.proxy.Addr() != "" && b.agent.metricsServer.Addr() != "" && b.agent.proxy.InStep()
	})
	for end := time.Now().Add(2 * stuckAfter); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if code := b.livez(); code != 200 {
			b.t.Fatalf("/livez of an idle agent is %d", code)
		}
	}
	if b.watchdog.Load() == 0 {
		b.t.Fatal("the watchdog is not fed")
	}
}

// stuck expects that all that an operator sees names the loop, and that nothing says that all is well.
func (b *stuckBed) stuck(loop string) {
	b.t.Helper()
	b.within(stuckAfter+30*time.Second, "/livez is red", func() bool {
		code, body := b.ask(b.agent.proxy.Addr(), "/livez")
		return code == 503 && strings.Contains(body, `"stuck"`)
	})
	for _, path := range []string{"/livez", "/healthz"} {
		var body struct {
			Healthy bool
			Stuck   []struct {
				Loop, Doing string
				Since       time.Time
			}
		}
		code, text := b.get(b.agent.proxy.Addr(), path)
		if err := json.Unmarshal([]byte(text), &body); err != nil || code != 503 || body.Healthy || len(body.Stuck) != 1 || body.Stuck[0].Loop != loop ||
			body.Stuck[0].Doing == "" || time.Since(body.Stuck[0].Since) < stuckAfter/2 {
			b.t.Errorf("%s is %d %s", path, code, text)
		}
	}
	code, text := b.get(b.socket, "/v1/status")
	var s Status
	if err := json.Unmarshal([]byte(text), &s); err != nil || code != 200 {
		b.t.Fatalf("status: %d %s", code, text)
	}
	if len(s.Loops) == 0 || s.Loops[0].Loop != loop || !s.Loops[0].Stuck {
		b.t.Errorf("status: loops %+v", s.Loops)
	}
	if s.Status != nil && s.InStep {
		b.t.Error("status says that the switch is in step")
	}
	_, text = b.get(b.agent.metricsServer.Addr(), "/metrics")
	if !strings.Contains(text, `nkp_in_step{ip_family="IPv4"} 0`) || !strings.Contains(text, `nkp_loop_stalled_seconds{loop="`+loop+`"} `) ||
		strings.Contains(text, `nkp_loop_stalled_seconds{loop="`+loop+`"} 0`+"\n") {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "nkp_loop") || strings.HasPrefix(line, "nkp_in_step") {
				b.t.Errorf("metrics: %s", line)
			}
		}
	}
	b.within(5*time.Second, "the service manager is told", func() bool {
		s := b.status.Load()
		return s != nil && strings.Contains(*s, loop+" has made no progress")
	})
	before := b.watchdog.Load()
	time.Sleep(time.Second) // five signs
	if n := b.watchdog.Load() - before; n > 0 {
		b.t.Errorf("the watchdog was fed %d times", n)
	}
	b.t.Logf("%s: /livez %s", loop, func() string { _, body := b.get(b.agent.proxy.Addr(), "/livez"); return body }())
}

// well expects that the agent gets well.
func (b *stuckBed) well() {
	b.t.Helper()
	b.within(90*time.Second, "/livez is green again", func() bool { return b.livez() == 200 })
	before := b.watchdog.Load()
	b.within(10*time.Second, "the watchdog is fed again", func() bool { return b.watchdog.Load() > before })
}

// A call into HNS that does not return turns /livez red, and with it all else. Change or audit, it makes no difference.
func TestStuckHNS(t *testing.T) {
	fake := hnsfake.New(hns.Version{Major: 15, Minor: 5})
	fake.AddNetwork("l2", hns.NetworkL2Bridge, nil)
	set := Settings{Windows: windows.Options{NetworkName: "l2", StateFile: filepath.Join(t.TempDir(), "hns.json"),
		Open: func() (hns.Host, error) { return fake.Host(), nil }}, IPTables: fallback.DefaultOptions()}
	set.IPTables.SyncPeriod = 2 * time.Second // between audits; changes may wait for twice that
	b := newStuckBed(t, ModeWindows, set, nil)
	b.idle()
	for _, change := range []bool{true, false} {
		hang := make(chan struct{})
		goOn := sync.OnceFunc(func() { close(hang) })
		t.Cleanup(goOn)
		fake.Inject(hnsfake.Fault{Times: -1, Do: func() { <-hang }})
		if change {
			b.service(2)
		}
		b.stuck("HNS")
		fake.Heal()
		goOn()
		b.well()
	}
	// Slow, but steady: the sync takes longer than the bound, no call does.
	fake.Inject(hnsfake.Fault{Times: 12, Do: func() { time.Sleep(stuckAfter / 8) }})
	b.service(3)
	for end := time.Now().Add(2 * stuckAfter); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, body := b.ask(b.agent.proxy.Addr(), "/livez"); strings.Contains(body, "stuck") {
			t.Fatalf("/livez of a slow sync: %s", body)
		}
	}
}

// The agent's own loop counts as well.
func TestStuckAgent(t *testing.T) {
	fake := hnsfake.New(hns.Version{Major: 15, Minor: 5})
	fake.AddNetwork("l2", hns.NetworkL2Bridge, nil)
	b := newStuckBed(t, ModeWindows, Settings{Windows: windows.Options{NetworkName: "l2", StateFile: filepath.Join(t.TempDir(), "hns.json"),
		Open: func() (hns.Host, error) { return fake.Host(), nil }}, IPTables: fallback.DefaultOptions()}, nil)
	b.idle()
	hang := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(goOn)
	go b.agent.ask(t.Context(), func() { <-hang })
	b.stuck("agent")
	goOn()
	b.well()
}

// A switch that answers echoes and nothing else turns /livez red, with a change to program or without, and so it stays while
// the agent gives up the connection, reconnects and is no better off; until the switch answers, or ends.
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	db, err := ovsdb.Connect(t.Context(), ovsdb.Options{Endpoint: bed.DB(), Bridge: bed.Bridge})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	set := Settings{Settings: bridge.Settings{OVSDB: bed.DB(), Bridge: bed.Bridge, OpenFlow: "unix:" + bed.RunDir + "/echo.mgmt", HostTraffic: bridge.HostOff,
		LocalDelivery: bridge.DeliverOff, Counters: true, Layout: pipeline.DefaultLayout(), AuditPeriod: time.Minute, CountPeriod: time.Second},
		IPTables: fallback.DefaultOptions()}
	b := newStuckBed(t, ModeOVS, set, db)
	b.idle()
	givenUp := func() {
		t.Helper()
		b.stuck("bridge")
		b.within(60*time.Second, "the log names the question", func() bool {
			text, _ := os.ReadFile(b.log)
			return strings.Contains(string(text), "switch has not answered")
		})
	}
	for _, change := range []bool{true, false} {
		deaf.Store(true)
		if change {
			b.service(2)
		}
		givenUp()
		if code := b.livez(); code != 503 {
			t.Errorf("/livez is %d after the connection was given up", code)
		}
		b.stuck("bridge")
		deaf.Store(false)
		b.well()
		os.Truncate(b.log, 0)
	}
	deaf.Store(true)
	b.service(3)
	givenUp()
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
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"iptables-nft-restore", "ip6tables-nft-restore"} {
		real, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\n[ -e %s/hang ] && exec sleep 600\nexec %s \"$@\"\n", dir, real)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	set := Settings{IPTables: fallback.DefaultOptions()}
	set.IPTables.Backend, set.IPTables.Families = "nf_tables", []k8s.Family{k8s.IPv4}
	set.IPTables.LocalhostNodePorts = false
	b := newStuckBed(t, ModeIPTables, set, nil)
	b.idle()
	if err := os.WriteFile(dir+"/hang", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.service(2)
	b.stuck("iptables IPv4")
	if b.agent.iptables.Detail().Families[0].InStep {
		t.Error("status says that the rules are as they should be")
	}
	if err := os.Remove(dir + "/hang"); err != nil {
		t.Fatal(err)
	}
	endChildren(t)
	b.well()
}

// endChildren ends the hanging programs that this process started.
func endChildren(t *testing.T) {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
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

// Clients that hold connections, more than each listener takes, keep nobody from asking the agent: at its socket, for its
// health, for metrics.
func TestAgentBesieged(t *testing.T) {
	fake := hnsfake.New(hns.Version{Major: 15, Minor: 5})
	fake.AddNetwork("l2", hns.NetworkL2Bridge, nil)
	b := newStuckBed(t, ModeWindows, Settings{Windows: windows.Options{NetworkName: "l2", StateFile: filepath.Join(t.TempDir(), "hns.json"),
		Open: func() (hns.Host, error) { return fake.Host(), nil }}, IPTables: fallback.DefaultOptions()}, nil)
	b.idle()
	tcp := func(addr string) guardtest.Dial {
		return func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	socket := func(ctx context.Context) (net.Conn, error) { return dial(ctx, b.socket) }
	guardtest.Besiege(t, socket, "/v1/status", 30) // 180 connections
	guardtest.Besiege(t, tcp(b.agent.proxy.Addr()), "/livez", 90)
	guardtest.Besiege(t, tcp(b.agent.metricsServer.Addr()), "/metrics", 90)
	guardtest.Answers(t, socket, "/v1/status", 200, 3*time.Second)
	guardtest.Answers(t, tcp(b.agent.proxy.Addr()), "/livez", 200, 3*time.Second)
	guardtest.Answers(t, tcp(b.agent.metricsServer.Addr()), "/metrics", 200, 3*time.Second)
}
