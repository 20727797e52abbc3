package httpguard

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/guardtest"
	"github.com/nkp-proxy/nkp/test/wait"
)

// start serves / with a short and /long with a long answer, behind a guard.
func start(t *testing.T, l Limits) (*Guard, guardtest.Dial) {
	g := New(l, slog.New(slog.DiscardHandler))
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) {
		for range 64 {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<20)); err != nil {
				return
			}
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := g.Server(mux)
	server.ReadHeaderTimeout, server.ReadTimeout, server.IdleTimeout = 0, 0, 0 // the guard alone closes connections
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(listener) }()
	t.Cleanup(func() { server.Close(); <-done })
	return g, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", listener.Addr().String())
	}
}

// Whatever clients do with more connections than there may be, others are answered, and the connections stay within bounds.
func TestBesieged(t *testing.T) {
	g, dial := start(t, Limits{Conns: 64, Serving: 16})
	guardtest.Besiege(t, dial, "/long", 30)
	guardtest.Answers(t, dial, "/", 200)
	if n := g.Len(); n > 64 {
		t.Errorf("%d connections", n)
	}
}

// The connection that goes is the one that was silent for longest, not the oldest; one that is being answered stays.
func TestWhoGoes(t *testing.T) {
	g, dial := start(t, Limits{Conns: 3, Serving: 3})
	connect := func() net.Conn {
		before := g.Len()
		c, err := dial(t.Context())
		must(t, err)
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(wait.Limit))
		wait.For(t, "the connection to be accepted", func() bool { return before == 3 || g.Len() > before })
		return c
	}
	ask := func(c net.Conn, path string) error {
		io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err := c.Read(make([]byte, 300))
		return err
	}
	busy, old, silent := connect(), connect(), connect()
	if err := ask(busy, "/long"); err != nil { // and reads no further
		t.Fatal(err)
	}
	must(t, ask(old, "/"))
	connect()
	if _, err := silent.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the silent one: %v, want its end", err)
	}
	if err := ask(old, "/"); err != nil {
		t.Errorf("the one that spoke: %v", err)
	}
	if n, err := io.CopyN(io.Discard, busy, 32<<20); err != nil {
		t.Errorf("the one that is answered: %d bytes, %v", n, err)
	}
}

// Where all connections are being answered, a new one takes the place of the one whose answer takes longest.
func TestNewAmongAnswered(t *testing.T) {
	_, dial := start(t, Limits{Conns: 2, Serving: 2})
	ask := func(path string) net.Conn {
		c, err := dial(t.Context())
		must(t, err)
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(wait.Limit))
		io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, err := c.Read(make([]byte, 300)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		return c
	}
	first, second := ask("/long"), ask("/long")
	ask("/")
	if _, err := io.CopyN(io.Discard, first, 60<<20); err == nil {
		t.Error("the first one stays")
	}
	if _, err := io.CopyN(io.Discard, second, 60<<20); err != nil {
		t.Errorf("the second one: %v", err)
	}
}

// Of those that are being answered the one goes whose answer takes longest.
func TestTooManyAnswers(t *testing.T) {
	_, dial := start(t, Limits{Conns: 100, Serving: 2})
	var conns []net.Conn
	for range 3 {
		c, err := dial(t.Context())
		must(t, err)
		defer c.Close()
		c.SetDeadline(time.Now().Add(wait.Limit))
		io.WriteString(c, "GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, err := c.Read(make([]byte, 300)); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for i, c := range conns {
		_, err := io.CopyN(io.Discard, c, 60<<20)
		if (err != nil) != (i == 0) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
