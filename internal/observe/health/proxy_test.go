package health

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/wait"
)

// start is when the clock of the tests begins.
var start = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

type proxyBed struct {
	*Proxy
	t     *testing.T
	now   time.Time
	stuck []dataplane.State
	codes map[string]map[int]int
}

func newProxyBed(t *testing.T) *proxyBed {
	b := &proxyBed{t: t, now: start, codes: map[string]map[int]int{"/healthz": {}, "/livez": {}}}
	b.Proxy = NewProxy(ProxyOptions{
		Timeout: time.Minute, Clock: func() time.Time { return b.now }, Stuck: func() []dataplane.State { return b.stuck }, Log: slog.New(slog.DiscardHandler),
		OnResponse: func(path string, code int) { b.codes[path][code]++ },
	})
	b.SetNode(k8s.Node{Name: "node-1", Known: true})
	return b
}

func (b *proxyBed) pass(d time.Duration) { b.now = b.now.Add(d) }

func (b *proxyBed) get(path string) (code int, body string) {
	w := httptest.NewRecorder()
	b.Handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	for h, want := range map[string]string{"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"} {
		if got := w.Header().Get(h); got != want && w.Code != http.StatusNotFound {
			b.t.Errorf("%s: %s is %q, want %q", path, h, got, want)
		}
	}
	return w.Code, w.Body.String()
}

// expect asks both paths.
func (b *proxyBed) expect(when string, healthz, livez int) {
	b.t.Helper()
	for path, want := range map[string]int{"/healthz": healthz, "/livez": livez} {
		if code, body := b.get(path); code != want {
			b.t.Errorf("%s: %s is %d, want %d: %s", when, path, code, want, body)
		}
	}
	if b.Healthy() != (livez == 200) {
		b.t.Errorf("%s: Healthy is %v", when, b.Healthy())
	}
}

func TestProxyHealth(t *testing.T) {
	b := newProxyBed(t)
	b.expect("nothing to do yet", 200, 200)
	b.Queued(k8s.IPv4, k8s.IPv6)
	b.Updated(k8s.IPv4, k8s.IPv6)
	b.pass(24 * time.Hour)
	b.expect("nothing to do for long", 200, 200)
	b.Queued(k8s.IPv4)
	b.pass(59 * time.Second)
	b.Queued(k8s.IPv4) // the oldest counts
	b.expect("a change waits", 200, 200)
	b.pass(time.Second)
	b.expect("it waits for too long", 503, 503)
	b.Updated(k8s.IPv6)
	b.expect("the other family is programmed", 503, 503)
	b.Updated(k8s.IPv4)
	b.expect("it is programmed at last", 200, 200)
	b.Queued(k8s.IPv4, k8s.IPv6)
	b.Updated(k8s.IPv4)
	b.pass(time.Minute)
	b.expect("one family is behind", 503, 503)
	if n := b.codes["/healthz"][200]; n != 4 {
		t.Errorf("counted %v", b.codes)
	}
}

// Not even the first programming works: kube-proxy stays healthy, nkp does not.
func TestProxyHealthFromTheStart(t *testing.T) {
	b := newProxyBed(t)
	b.Queued(k8s.IPv4)
	b.pass(time.Minute)
	b.expect("nothing was ever programmed", 503, 503)
	if _, body := b.get("/livez"); body != `{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-03-01T12:01:00.123456789Z","healthy":false,"status":{"IPv4":{"lastUpdated":"0001-01-01T00:00:00Z","healthy":false}}}` {
		t.Error(body)
	}
}

// A loop that is stuck fails both, whether changes wait or not, and is named.
func TestProxyStuck(t *testing.T) {
	b := newProxyBed(t)
	b.Updated(k8s.IPv4)
	b.stuck = []dataplane.State{{Loop: "bridge", Doing: "counting flows", Since: start, Stuck: true}}
	b.expect("stuck", 503, 503)
	if _, body := b.get("/livez"); !strings.Contains(body, `"stuck":[{"loop":"bridge","doing":"counting flows","since":"2026-03-01T12:00:00.123456789Z"`) {
		t.Error(body)
	}
	b.stuck = nil
	b.expect("it goes on", 200, 200)
}

func TestNodeEligible(t *testing.T) {
	b := newProxyBed(t)
	for _, c := range []struct {
		node    k8s.Node
		healthz int
	}{
		{k8s.Node{}, 503},
		{k8s.Node{Known: true}, 200},
		{k8s.Node{Known: true, NotEligible: "being deleted"}, 503},
		{k8s.Node{Known: true}, 200},
	} {
		b.SetNode(c.node)
		b.expect("node "+c.node.NotEligible, c.healthz, 200)
	}
	b.Queued(k8s.IPv4)
	b.pass(time.Hour)
	b.SetNode(k8s.Node{})
	b.expect("both", 503, 503)
}

// The bodies are kube-proxy's.
func TestProxyBodies(t *testing.T) {
	b := newProxyBed(t)
	expect := func(path string, want string) {
		t.Helper()
		if _, body := b.get(path); body != want {
			t.Errorf("%s is\n%s, want\n%s", path, body, want)
		}
	}
	expect("/healthz", `{"lastUpdated":"2026-03-01T12:00:00.123456789Z","currentTime":"2026-03-01T12:00:00.123456789Z","nodeEligible":true,"healthy":true}`)
	b.Updated(k8s.IPv6, k8s.IPv4)
	b.pass(time.Second)
	b.Updated(k8s.IPv6)
	b.pass(time.Second)
	b.SetNode(k8s.Node{})
	status := `"status":{"IPv4":{"lastUpdated":"2026-03-01T12:00:00.123456789Z","healthy":true},"IPv6":{"lastUpdated":"2026-03-01T12:00:01.123456789Z","healthy":true}}}`
	expect("/healthz", `{"lastUpdated":"2026-03-01T12:00:01.123456789Z","currentTime":"2026-03-01T12:00:02.123456789Z","nodeEligible":false,"healthy":true,`+status)
	expect("/livez", `{"lastUpdated":"2026-03-01T12:00:02.123456789Z","currentTime":"2026-03-01T12:00:02.123456789Z","healthy":true,`+status)
	if code, _ := b.get("/metrics"); code != http.StatusNotFound {
		t.Errorf("/metrics is %d", code)
	}
}

// run starts a Proxy's server; the returned function ends it.
func run(t *testing.T, p *Proxy) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { stop() })
	return stop
}

func TestProxyServes(t *testing.T) {
	if err := NewProxy(ProxyOptions{Log: slog.New(slog.DiscardHandler)}).Run(t.Context()); err != nil {
		t.Error("without an address:", err)
	}
	p := NewProxy(ProxyOptions{Addr: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	stop := run(t, p)
	wait.For(t, "it to listen", func() bool { return p.Addr() != "" })
	addr := p.Addr()
	if strings.HasSuffix(addr, ":0") {
		t.Errorf("listens at %s", addr)
	}
	r, err := http.Get("http://" + addr + "/livez")
	must(t, err)
	var body map[string]any
	data, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if err := json.Unmarshal(data, &body); err != nil || r.StatusCode != 200 || body["healthy"] != true {
		t.Errorf("%d %s: %v", r.StatusCode, data, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("open after the end")
	}
}

// An address that is taken is an error if that was asked for.
func TestProxyAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	opts := ProxyOptions{Addr: l.Addr().String(), HardFail: true, Log: slog.New(slog.DiscardHandler)}
	err = NewProxy(opts).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), opts.Addr) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("error %v", err)
	}
	if strings.Count(err.Error(), opts.Addr) > 1 {
		t.Errorf("names the address more than once: %v", err)
	}
}

// In step is who has programmed something, and owes nothing.
func TestInStep(t *testing.T) {
	b := newProxyBed(t)
	expect := func(when string, want bool) {
		t.Helper()
		if got := b.InStep(); got != want {
			t.Errorf("%s: in step is %v", when, got)
		}
	}
	expect("at the start", false)
	b.Queued(k8s.IPv4, k8s.IPv6)
	expect("queued", false)
	b.Updated(k8s.IPv4)
	expect("one family", false)
	b.Updated(k8s.IPv6)
	expect("both families", true)
	b.Queued(k8s.IPv4)
	expect("a change", false)
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A fault of a data path, one of several, is told to load balancers, and is no reason to restart nkp.
func TestDataPath(t *testing.T) {
	b := newProxyBed(t)
	expect := func(when string, healthz int) {
		t.Helper()
		for path, want := range map[string]int{"/healthz": healthz, "/livez": 200} {
			if code, body := b.get(path); code != want {
				t.Errorf("%s: %s is %d, want %d: %s", when, path, code, want, body)
			}
		}
		if b.Healthy() != (healthz == 200) {
			t.Errorf("%s: health checks of Services pass: %t", when, b.Healthy())
		}
	}
	b.SetDataPath("ovs IPv4", true)
	b.SetDataPath("ovs IPv6", true)
	expect("two faults", 503)
	b.SetDataPath("ovs IPv4", false)
	expect("one fault", 503)
	b.SetDataPath("ovs IPv6", false)
	expect("no fault", 200)
}
