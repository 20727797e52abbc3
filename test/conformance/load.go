package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	loadPause    = 50 * time.Millisecond // between two connections of a worker
	loadWorkers  = 2                     // for each address
	loadPatience = 10 * time.Second      // for a connection and its answer: two SYNs may be lost
)

// tally counts what load has done. A failed connection was not opened or not answered; a broken one had been answered before.
type tally struct {
	Connections int    `json:"connections"`
	Failed      int    `json:"failed"`
	Held        int    `json:"held"` // requests on connections that stay open
	Broken      int    `json:"broken"`
	First       string `json:"first,omitempty"` // failure
}

func (t *tally) add(o tally) {
	t.Connections, t.Failed, t.Held, t.Broken = t.Connections+o.Connections, t.Failed+o.Failed, t.Held+o.Held, t.Broken+o.Broken
	if t.First == "" {
		t.First = o.First
	}
}

// since returns what was counted after an earlier tally.
func (t tally) since(o tally) tally {
	t.Connections, t.Failed, t.Held, t.Broken = t.Connections-o.Connections, t.Failed-o.Failed, t.Held-o.Held, t.Broken-o.Broken
	return t
}

// loader asks addresses over HTTP; mu protects its tally.
type loader struct {
	mu    sync.Mutex
	total tally
}

func (l *loader) count(one tally, err error) {
	if err != nil {
		one.First = time.Now().UTC().Format(time.RFC3339Nano) + " " + err.Error()
	}
	l.mu.Lock()
	l.total.add(one)
	l.mu.Unlock()
}

// load opens connections to each address, and holds one, until ctx ends. It prints its tally to w every second, a line of JSON each.
func load(ctx context.Context, w io.Writer, addresses []string) error {
	l := &loader{}
	var all sync.WaitGroup
	defer all.Wait()
	for _, a := range addresses {
		for range loadWorkers {
			all.Go(func() { l.open(ctx, a) })
		}
		all.Go(func() { l.hold(ctx, a) })
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			l.mu.Lock()
			text, err := json.Marshal(l.total)
			l.mu.Unlock()
			if err == nil {
				_, err = fmt.Fprintln(w, string(text))
			}
			if err != nil {
				return err
			}
		}
	}
}

// pause waits and reports whether ctx is still there.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (l *loader) open(ctx context.Context, address string) {
	for pause(ctx, loadPause) {
		c, err := net.DialTimeout("tcp", address, loadPatience)
		if err == nil {
			err = request(c)
			c.Close()
		}
		one := tally{Connections: 1}
		if err != nil {
			one.Failed = 1
		}
		l.count(one, err)
	}
}

// hold keeps a connection and asks over it every second. After a failure it opens another one.
func (l *loader) hold(ctx context.Context, address string) {
	var c net.Conn
	for pause(ctx, time.Second) {
		var err error
		if c == nil {
			if c, err = net.DialTimeout("tcp", address, loadPatience); err != nil {
				l.count(tally{Connections: 1, Failed: 1}, err)
				c = nil
				continue
			}
		}
		if err = request(c); err != nil {
			l.count(tally{Broken: 1}, err)
			c.Close()
			c = nil
			continue
		}
		l.count(tally{Held: 1}, nil)
	}
	if c != nil {
		c.Close()
	}
}

// request asks an HTTP server for its name and leaves the connection open.
func request(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(loadPatience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET /hostname HTTP/1.1\r\nHost: server\r\n\r\n"); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n := 0
	for {
		k, err := c.Read(answer[n:])
		n += k
		if head, body, ok := strings.Cut(string(answer[:n]), "\r\n\r\n"); ok && body != "" {
			if !strings.HasPrefix(head, "HTTP/1.1 200") {
				return fmt.Errorf("%s: answer %q", c.RemoteAddr(), answer[:n])
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w after %d bytes", c.RemoteAddr(), err, n)
		}
		if n == len(answer) {
			return fmt.Errorf("%s: an answer of more than %d bytes", c.RemoteAddr(), n)
		}
	}
}

// readTallies returns the sum of one line of JSON from each of n clients.
func readTallies(text string, n int) (sum tally, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != n {
		return sum, fmt.Errorf("tallies of %d clients, want %d: %q", len(lines), n, text)
	}
	for _, line := range lines {
		var t tally
		if err := json.Unmarshal([]byte(line), &t); err != nil {
			return sum, fmt.Errorf("tally %q: %w", line, err)
		}
		if t.Connections == 0 || t.Held == 0 {
			return sum, fmt.Errorf("a client has no connection yet: %q", line)
		}
		sum.add(t)
	}
	return sum, nil
}

// runLoad is the command load of the clients' pods.
func runLoad(ctx context.Context, addresses []string) error {
	if len(addresses) == 0 {
		return errUsage
	}
	return load(ctx, os.Stdout, addresses)
}
