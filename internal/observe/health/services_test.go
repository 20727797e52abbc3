//go:build linux

package health

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/internal/httpguard"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// servicesBed runs Services on a host of their own.
type servicesBed struct {
	*Services
	t       *testing.T
	host    *testbed.Host
	healthy atomic.Bool
	stop    func() // ends Run and waits for it

	mu       sync.Mutex // protects all below
	failures []string
}

// newServicesBed starts Services; opts.Healthy, OnFailure and Log are the bed's.
func newServicesBed(t *testing.T, opts ServicesOptions, addrs ...string) *servicesBed {
	t.Helper()
	b := &servicesBed{t: t, host: testbed.Alone(t, addrs...)}
	b.healthy.Store(true)
	opts.Healthy = b.healthy.Load
	opts.OnFailure = func(name k8s.ServiceName, at netip.AddrPort, err error) {
		b.mu.Lock()
		b.failures = append(b.failures, fmt.Sprintf("%s %s: %v", name, at, err))
		b.mu.Unlock()
	}
	opts.Log = slog.New(slog.DiscardHandler)
	b.Services = NewServices(opts)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // on a thread in the host's namespace, which ends with it
		defer close(done)
		runtime.LockOSThread()
		ns, err := os.Open(b.host.Netns())
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			t.Error(err)
			return
		}
		ns.Close()
		b.Run(ctx)
	}()
	b.stop = func() { cancel(); <-done }
	t.Cleanup(b.stop)
	return b
}

// dial connects to an address of the host.
func (b *servicesBed) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	return b.host.DialTCP(ctx, addr, testbed.DialOptions{})
}

// connect is dial for a connection that is held until the test ends.
func (b *servicesBed) connect(addr string) net.Conn {
	b.t.Helper()
	c, err := b.dial(b.t.Context(), "tcp", addr)
	must(b.t, err)
	b.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(wait.Limit))
	return c
}

// refuses reports whether nothing listens at an address.
func (b *servicesBed) refuses(addr string) bool {
	c, err := b.dial(context.Background(), "tcp", addr)
	if err == nil {
		c.Close()
	}
	return err != nil
}

// occupy listens at an address until the returned function is called.
func (b *servicesBed) occupy(addr string) (free func()) {
	b.t.Helper()
	l, err := b.host.Listen(addr)
	must(b.t, err)
	free = func() { l.Close() }
	b.t.Cleanup(free)
	return free
}

// client opens a connection for each request.
func (b *servicesBed) client() *http.Client {
	return &http.Client{Timeout: wait.Limit, Transport: &http.Transport{DialContext: b.dial, DisableKeepAlives: true}}
}

func name(s string) k8s.ServiceName {
	ns, n, _ := strings.Cut(s, "/")
	return k8s.ServiceName{Namespace: ns, Name: n}
}

// update hands over changes: "ns/name" to the health check, nil if it is gone.
func (b *servicesBed) update(changes map[string]*k8s.HealthCheck, local ...string) {
	c := k8s.Changes{HealthChecks: map[k8s.ServiceName]*k8s.HealthCheck{}}
	for n, h := range changes {
		c.HealthChecks[name(n)] = h
	}
	m := &k8s.Model{Node: b.nodeNow()}
	if local != nil {
		m.Node = k8s.Node{}
		for _, a := range local {
			m.Node.Local = append(m.Node.Local, netip.MustParseAddr(a))
			m.Node.IPs = append(m.Node.IPs, netip.MustParseAddr(a))
		}
	}
	b.Update(m, c)
}

func (b *servicesBed) nodeNow() k8s.Node {
	b.Services.mu.Lock()
	defer b.Services.mu.Unlock()
	return b.Services.node
}

func check(port uint16, local4, local6 int) *k8s.HealthCheck {
	return &k8s.HealthCheck{Port: port, Local4: local4, Local6: local6}
}

// waitOpen waits until something listens at an address, waitClosed until nothing does.
func (b *servicesBed) waitOpen(addr string) {
	b.t.Helper()
	wait.For(b.t, addr+" is open", func() bool { return !b.refuses(addr) })
}

func (b *servicesBed) waitClosed(addr string) {
	b.t.Helper()
	wait.For(b.t, addr+" is closed", func() bool { return b.refuses(addr) })
}

// get asks and returns status code and weight, such as "200 2", or the error.
func (b *servicesBed) get(url string) string {
	r, err := b.client().Get(url)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	return fmt.Sprint(r.StatusCode, " ", r.Header.Get("X-Load-Balancing-Endpoint-Weight"))
}

// The answer is kube-proxy's, header by header and byte by byte, at any path and in both families.
func TestAnswer(t *testing.T) {
	b := newServicesBed(t, ServicesOptions{})
	b.update(map[string]*k8s.HealthCheck{"default/web": check(31000, 2, 0)})
	b.waitOpen("127.0.0.1:31000")
	b.waitOpen("[::1]:31000")
	for _, c := range []struct {
		url     string
		healthy bool
		code    int
		body    string
	}{
		{"http://127.0.0.1:31000", true, 200, "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"},
		{"http://127.0.0.1:31000/a//b/../c?d=e", true, 200, "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"},
		{"http://127.0.0.1:31000/healthz", false, 503, "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": false\n}"},
		{"http://[::1]:31000/", true, 503, "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 0,\n\t\"serviceProxyHealthy\": true\n}"},
	} {
		b.healthy.Store(c.healthy)
		r, err := b.client().Get(c.url)
		must(t, err)
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != c.code || string(body) != c.body {
			t.Errorf("%s, healthy %v: %d\n%s\nwant %d\n%s", c.url, c.healthy, r.StatusCode, body, c.code, c.body)
		}
		weight := "2"
		if strings.Contains(c.url, "::1") {
			weight = "0"
		}
		for h, want := range map[string]string{"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "X-Load-Balancing-Endpoint-Weight": weight} {
			if got := r.Header.Values(h); !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %s is %q, want %q", c.url, h, got, want)
			}
		}
	}
}

// A changed count is in force when Update returns, over connections that were there before too.
func TestCountWithoutListeningAnew(t *testing.T) {
	b := newServicesBed(t, ServicesOptions{})
	b.update(map[string]*k8s.HealthCheck{"default/web": check(31000, 0, -1)})
	b.waitOpen("127.0.0.1:31000")
	dials := 0
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		return b.dial(ctx, network, addr)
	}}}
	for n := range 200 {
		b.update(map[string]*k8s.HealthCheck{"default/web": check(31000, n, -1)})
		r, err := client.Get("http://127.0.0.1:31000")
		must(t, err)
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if got := r.Header.Get("X-Load-Balancing-Endpoint-Weight"); got != fmt.Sprint(n) {
			t.Fatalf("told %s endpoints, want %d", got, n)
		}
	}
	if dials != 1 {
		t.Errorf("%d connections for 200 requests: the port was reopened", dials)
	}
}

func TestPortsComeAndGo(t *testing.T) {
	b := newServicesBed(t, ServicesOptions{})
	b.update(map[string]*k8s.HealthCheck{"default/a": check(31000, 1, -1), "default/b": check(31001, 2, 2)})
	for _, addr := range []string{"127.0.0.1:31000", "127.0.0.1:31001", "[::1]:31001"} {
		b.waitOpen(addr)
	}
	if !b.refuses("[::1]:31000") {
		t.Error("a Service that is not served over IPv6 has a health check there")
	}
	// Two Services swap their ports: each is closed before the other opens it.
	b.update(map[string]*k8s.HealthCheck{"default/a": check(31001, 1, -1), "default/b": check(31000, 2, 2)})
	b.waitOpen("[::1]:31000")
	b.waitClosed("[::1]:31001")
	wait.For(t, "the ports are swapped", func() bool {
		return b.get("http://127.0.0.1:31000") == "200 2" && b.get("http://127.0.0.1:31001") == "200 1"
	})
	// A Service that loses a family keeps the other.
	b.update(map[string]*k8s.HealthCheck{"default/b": check(31000, -1, 2)})
	b.waitClosed("127.0.0.1:31000")
	if got := b.get("http://[::1]:31000"); got != "200 2" {
		t.Errorf("over IPv6: %s", got)
	}
	b.update(map[string]*k8s.HealthCheck{"default/a": nil, "default/b": nil, "default/never": nil})
	b.waitClosed("127.0.0.1:31001")
	b.waitClosed("[::1]:31000")
	// Everything is closed when Run returns, and connections end.
	b.update(map[string]*k8s.HealthCheck{"default/a": check(31002, 1, 1)})
	b.waitOpen("127.0.0.1:31002")
	c := b.connect("127.0.0.1:31002")
	wait.For(t, "the connection is accepted", func() bool { return b.guard.Len() > 0 })
	b.stop()
	if !b.refuses("127.0.0.1:31002") || !b.refuses("[::1]:31002") {
		t.Error("open after the end")
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection did not end: %v", err)
	}
}

// --nodeport-addresses restricts each family by itself, and follows the node's addresses.
func TestNodePortAddresses(t *testing.T) {
	b := newServicesBed(t, ServicesOptions{NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
		"10.1.0.1/32", "10.1.0.2/32", "10.2.0.1/32")
	b.update(map[string]*k8s.HealthCheck{"default/web": check(31000, 1, 1)}, "10.1.0.1", "10.2.0.1")
	b.waitOpen("10.1.0.1:31000")
	b.waitOpen("[::1]:31000") // no prefix of the family: not restricted
	for _, addr := range []string{"10.2.0.1:31000", "127.0.0.1:31000", "10.1.0.2:31000"} {
		if !b.refuses(addr) {
			t.Errorf("%s is open", addr)
		}
	}
	b.update(nil, "10.1.0.2", "10.2.0.1")
	b.waitOpen("10.1.0.2:31000")
	b.waitClosed("10.1.0.1:31000")
}

func TestNodePortPrimary(t *testing.T) {
	b := newServicesBed(t, ServicesOptions{NodePortPrimary: true}, "10.1.0.1/32", "10.1.0.2/32")
	b.update(map[string]*k8s.HealthCheck{"default/web": check(31000, 1, 1)}, "10.1.0.2", "10.1.0.1")
	b.waitOpen("10.1.0.2:31000")
	for _, addr := range []string{"10.1.0.1:31000", "[::1]:31000"} {
		if !b.refuses(addr) {
			t.Errorf("%s is open", addr)
		}
	}
}

// A port that is taken is reported once, does not hold up the others, and is opened when it is free.
func TestTakenPort(t *testing.T) {
	b := newServicesBed(t, ServicesOptions{retry: 10 * time.Millisecond})
	free := b.occupy("127.0.0.1:31000")
	b.update(map[string]*k8s.HealthCheck{"default/a": check(31000, 1, 1), "default/b": check(31001, 1, 1)})
	b.waitOpen("127.0.0.1:31001")
	b.waitOpen("[::1]:31000") // the same Service in the other family
	want := "health check of Service default/a at 0.0.0.0:31000: bind: address already in use"
	wait.For(t, "the failure is known", func() bool { return slices.Equal(b.Failures(), []string{want}) })
	// A port that is closed has it tried again; a port that opens then comes after that.
	b.update(map[string]*k8s.HealthCheck{"default/b": nil})
	b.waitClosed("127.0.0.1:31001")
	b.update(map[string]*k8s.HealthCheck{"default/b": check(31002, 1, 1)})
	b.waitOpen("127.0.0.1:31002")
	b.mu.Lock()
	if want := []string{"default/a 0.0.0.0:31000: bind: address already in use"}; !slices.Equal(b.failures, want) {
		t.Errorf("told %q, want %q", b.failures, want)
	}
	b.mu.Unlock()
	free()
	wait.For(t, "the port is open now that it is free", func() bool { return len(b.Failures()) == 0 })
	if got := b.get("http://127.0.0.1:31000"); got != "200 1" {
		t.Errorf("answered %s", got)
	}
}

// Of two Services with one port, as only files can have them, the first by name has it; the other gets it at once when
// the first is gone.
func TestTwoServicesWithOnePort(t *testing.T) {
	b := newServicesBed(t, ServicesOptions{retry: retryLast}) // longer than the test waits
	b.update(map[string]*k8s.HealthCheck{"default/a": check(31000, 1, -1), "default/b": check(31000, 2, -1)})
	wait.For(t, "one fails", func() bool { return len(b.Failures()) == 1 })
	if got := b.get("http://127.0.0.1:31000"); got != "200 1" {
		t.Errorf("answered %s", got)
	}
	b.update(map[string]*k8s.HealthCheck{"default/a": nil})
	wait.For(t, "the other has it", func() bool { return len(b.Failures()) == 0 && !b.refuses("127.0.0.1:31000") })
	if got := b.get("http://127.0.0.1:31000"); got != "200 2" {
		t.Errorf("answered %s", got)
	}
}

// A port is free for the next nkp as soon as Run has returned, although connections lie in TIME_WAIT.
func TestRestart(t *testing.T) {
	b := newServicesBed(t, ServicesOptions{})
	b.update(map[string]*k8s.HealthCheck{"default/web": check(31000, 1, 1)})
	b.waitOpen("127.0.0.1:31000")
	for range 10 {
		b.get("http://127.0.0.1:31000")
	}
	b.stop()
	for _, addr := range []string{"0.0.0.0:31000", "[::]:31000"} {
		b.occupy(addr)()
	}
}

// Update returns at once, even where Run does nothing.
func TestUpdateDoesNotWait(t *testing.T) {
	s := NewServices(ServicesOptions{Log: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 10000 {
			s.Update(&k8s.Model{}, k8s.Changes{HealthChecks: map[k8s.ServiceName]*k8s.HealthCheck{{Namespace: "ns", Name: fmt.Sprint(i)}: check(uint16(20000+i), 1, 1)}})
		}
	}()
	wait.Closed(t, "Update to return", done)
}

// Clients that hold many connections and say nothing keep no probe out, and take no more than their share.
func TestSilentClients(t *testing.T) {
	b := newServicesBed(t, ServicesOptions{})
	b.guard = httpguard.New(httpguard.Limits{Conns: 20, Serving: 20}, slog.New(slog.DiscardHandler))
	b.update(map[string]*k8s.HealthCheck{"default/web": check(31000, 1, 1)})
	b.waitOpen("127.0.0.1:31000")
	for range 200 {
		b.connect("127.0.0.1:31000")
	}
	if got := b.get("http://127.0.0.1:31000"); got != "200 1" {
		t.Errorf("answered %s", got)
	}
	if n := b.guard.Len(); n > 20 {
		t.Errorf("%d connections", n)
	}
}

// A header without end is refused.
func TestEndlessHeader(t *testing.T) {
	b := newServicesBed(t, ServicesOptions{})
	b.update(map[string]*k8s.HealthCheck{"default/web": check(31000, 1, 1)})
	b.waitOpen("127.0.0.1:31000")
	c := b.connect("127.0.0.1:31000")
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n")
	sent := 0
	for ; sent < 1<<20; sent += 1000 {
		if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", sent, strings.Repeat("x", 990)); err != nil {
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Fatal(err)
			}
			return
		}
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if errors.Is(err, syscall.ECONNRESET) {
		return
	}
	if err != nil || r.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("after %d bytes of header: %v, %v", sent, r, err)
	}
}
