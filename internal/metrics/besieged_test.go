package metrics

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/httpguard/guardtest"
)

// Clients that hold connections, more than the server takes, keep no scrape out.
func TestBesieged(t *testing.T) {
	m, _ := newTest(IPTables)
	s := NewServer(m, ServerOptions{Addr: "127.0.0.1:0", Profiling: true, Log: quiet()})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	for deadline := time.Now().Add(10 * time.Second); s.Addr() == ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not listen")
		}
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", s.Addr())
	}
	guardtest.Besiege(t, dial, "/metrics", 90) // 630 connections
	for _, path := range []string{"/metrics", "/healthz", "/healthz/ping"} {
		guardtest.Answers(t, dial, path, 200, 3*time.Second)
	}
}
