// Package guardtest has clients that misuse an HTTP server, for tests of servers that must answer others nevertheless.
package guardtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/wait"
)

// Dial connects to a server.
type Dial func(context.Context) (net.Conn, error)

// kinds are the ways to hold a connection; each returns when the server has closed it, or ctx ends. long is
// the path of a long answer.
var kinds = map[string]func(ctx context.Context, c net.Conn, long string){
	"idle": func(_ context.Context, c net.Conn, _ string) { discard(c) },
	"half a header": func(_ context.Context, c net.Conn, _ string) {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\nX-")
		discard(c)
	},
	"slow header": func(_ context.Context, c net.Conn, _ string) {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n")
		trickle(c, "X-A: b\r\n")
	},
	"slow body": func(_ context.Context, c net.Conn, _ string) {
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")
		trickle(c, "x")
	},
	"keep-alive": func(_ context.Context, c net.Conn, _ string) {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		discard(c)
	},
	"reads nothing": func(ctx context.Context, c net.Conn, long string) {
		if t, ok := c.(*net.TCPConn); ok {
			t.SetReadBuffer(1024)
		}
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", long)
		<-ctx.Done()
	},
}

func discard(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func trickle(c net.Conn, text string) {
	go discard(c)
	for err := error(nil); err == nil; {
		_, err = io.WriteString(c, text)
		time.Sleep(500 * time.Millisecond)
	}
}

// Besiege holds n connections of each kind to a server until the test ends: a connection that the server closes is recreated.
// It returns when all have been made once. long is the path of an answer that is as long as the server has one.
func Besiege(t *testing.T, dial Dial, long string, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all, first sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	for _, hold := range kinds {
		for range n {
			first.Add(1)
			all.Go(func() {
				once := sync.OnceFunc(first.Done)
				defer once()
				for ctx.Err() == nil {
					c, err := dial(ctx)
					if err == nil {
						stop := context.AfterFunc(ctx, func() { c.Close() })
						held := make(chan struct{})
						go func() { defer close(held); hold(ctx, c, long) }()
						once()
						select {
						case <-held:
						case <-ctx.Done():
						}
						stop()
						c.Close()
					}
					select {
					case <-ctx.Done():
					case <-time.After(time.Second):
					}
				}
			})
		}
	}
	first.Wait()
}

// attempts is how often a request may be among the oldest before it is answered, and be dropped for that. A
// probe asks again.
const attempts = 20

// Answers asks for a path a few times, each time by a new connection, and expects the status.
func Answers(t *testing.T, dial Dial, path string, status int) {
	t.Helper()
	for range 5 {
		got, err := get(t.Context(), dial, path)
		for i := 1; i < attempts && err != nil; i++ {
			got, err = get(t.Context(), dial, path)
		}
		if err != nil || got != status {
			t.Errorf("%s answers %d (%v), want %d", path, got, err, status)
		}
	}
}

func get(ctx context.Context, dial Dial, path string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	c, err := dial(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	c.SetDeadline(deadline)
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return r.StatusCode, err
}
