package e2e

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// askPause is between two questions of a client.
const askPause = 10 * time.Millisecond

// client asks one address over and over, a new connection each time, until it is stopped.
type client struct {
	ctx    context.Context
	stop   chan struct{}
	done   chan struct{}
	mu     sync.Mutex // protects all below
	asked  int
	failed []error
}

// ask starts a client.
func (c *cluster) ask(h *testbed.Host, addr string) *client {
	k := &client{ctx: c.ctx, stop: make(chan struct{}), done: make(chan struct{})}
	go func() { // ends with stop
		defer close(k.done)
		for {
			select {
			case <-k.stop:
				return
			case <-time.After(askPause):
			}
			begin := time.Now()
			_, err := h.AskWith(c.ctx, "tcp", addr, testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
			k.mu.Lock()
			k.asked++
			if err != nil {
				k.failed = append(k.failed, fmt.Errorf("at %s after %v: %w", begin.Format("15:04:05.000"), time.Since(begin), err))
			}
			k.mu.Unlock()
		}
	}()
	return k
}

// end stops the client, on a busy machine once it has asked ten times, and fails if a question was not answered.
func (k *client) end() (asked int, err error) {
	err = wait.Until(k.ctx, func() error {
		if n := k.count(); n < 10 {
			return fmt.Errorf("only %d questions were asked", n)
		}
		return nil
	})
	close(k.stop)
	<-k.done
	if len(k.failed) > 0 {
		return k.asked, fmt.Errorf("%d of %d questions failed; the first: %w", len(k.failed), k.asked, k.failed[0])
	}
	return k.asked, err
}

func (k *client) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

// question is what a client asks over and over.
type question struct {
	from *testbed.Host
	addr string
}

// usage is what goes on while something happens to the cluster: clients that ask, and connections that are held.
type usage struct {
	c       *cluster
	clients map[question]*client
	held    []*testbed.Held
}

// use starts a client for each address and holds some connections to it.
func (c *cluster) use(h *testbed.Host, addrs ...string) *usage {
	c.t.Helper()
	u := &usage{c: c, clients: map[question]*client{}}
	u.add(h, addrs...)
	return u
}

func (u *usage) add(h *testbed.Host, addrs ...string) {
	u.c.t.Helper()
	const connections = 6
	for _, addr := range addrs {
		u.clients[question{h, addr}] = u.c.ask(h, addr)
		for range connections {
			k, err := h.Hold(u.c.ctx, addr, testbed.DialOptions{})
			must(u.c.t, err)
			u.held = append(u.held, k) // the end of the bed closes it
		}
	}
}

// check fails if a connection that is held broke.
func (u *usage) check(when string) {
	u.c.t.Helper()
	for _, k := range u.held {
		if err := k.Check(); err != nil {
			u.c.t.Errorf("%s: the connection of %s to %s: %v", when, k.Client, k.Who, err)
		}
	}
}

// stop stops the client of one address; its connections stay.
func (u *usage) stop(h *testbed.Host, addr string) {
	u.c.t.Helper()
	q := question{h, addr}
	asked, err := u.clients[q].end()
	if err != nil {
		u.c.t.Errorf("%s at %s: %v", h.Name, addr, err)
	}
	u.c.t.Logf("%s at %s: %d questions", h.Name, addr, asked)
	delete(u.clients, q)
}

// end stops the clients and fails if anything had failed.
func (u *usage) end() {
	u.c.t.Helper()
	u.check("at the end")
	for q := range u.clients {
		u.stop(q.from, q.addr)
	}
}
