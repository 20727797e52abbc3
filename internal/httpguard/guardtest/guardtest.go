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
)

// Dial connects to a server.
type Dial func(context.Context) (net.Conn, error)

// kinds are the ways to hold a connection; each returns when the server has closed it. long is the path of a long answer.
var kinds = map[string]func(c net.Conn, long string){
	"idle":          func(c net.Conn, _ string) { discard(c) },
	"half a header": func(c net.Conn, _ string) { fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\nX-"); discard(c) },
	"slow header": func(c net.Conn, _ string) {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n")
		trickle(c, "X-A: b\r\n")
	},
	"slow body": func(c net.Conn, _ string) {
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")
		trickle(c, "x")
	},
	"keep-alive": func(c net.Conn, _ string) { fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); discard(c) },
	"reads nothing": func(c net.Conn, long string) {
		if t, ok := c.(*net.TCPConn); ok {
			t.SetReadBuffer(1024)
		}
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", long)
		time.Sleep(30 * time.Second)
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
						go func() { defer close(held); hold(c, long) }()
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

// Answers asks for a path a few times, each time by a new connection, and expects the status within a time.
func Answers(t *testing.T, dial Dial, path string, status int, within time.Duration) {
	t.Helper()
	for range 5 {
		begun := time.Now()
		got, err := get(t.Context(), dial, path, 10*within)
		if err != nil { // on a busy machine a request can be one of the oldest before it is answered; a probe asks again
			got, err = get(t.Context(), dial, path, 10*within)
		}
		if took := time.Since(begun); err != nil || got != status || took > within {
			t.Errorf("%s answers %d after %v (%v), want %d within %v", path, got, took.Round(time.Millisecond), err, status, within)
		}
	}
}

func get(ctx context.Context, dial Dial, path string, most time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
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
