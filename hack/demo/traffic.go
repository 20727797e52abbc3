//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const (
	workers      = 4 // clients that ask at the same time
	requestLimit = 5 * time.Second
)

// tally counts requests by who answered. Its methods may be called from any goroutine.
type tally struct {
	mu      sync.Mutex // protects the rest
	who     map[string]int
	last    map[string]time.Time // when a pod answered last
	clients map[netip.Addr]bool  // the client's addresses as pods saw them
	errs    []error
	took    time.Duration // all requests together
}

func newTally() *tally {
	return &tally{who: map[string]int{}, last: map[string]time.Time{}, clients: map[netip.Addr]bool{}}
}

func (t *tally) add(pod string, client netip.Addr, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.errs = append(t.errs, err)
		return
	}
	t.who[pod]++
	t.last[pod] = time.Now()
	t.clients[client] = true
}

// answered is how many requests were answered so far.
func (t *tally) answered() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, c := range t.who {
		n += c
	}
	return n
}

// failure is nil if every request was answered.
func (t *tally) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.errs) == 0 {
		return nil
	}
	return fmt.Errorf("%d requests failed, the first with: %w", len(t.errs), t.errs[0])
}

// seenAs lists the addresses from which pods saw the requests come.
func (t *tally) seenAs() string {
	var list []string
	for a := range t.clients {
		list = append(list, a.String())
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// get makes one HTTP request on its own connection and returns which pod answered and the client address that the pod saw.
func get(ctx context.Context, from *testbed.Host, addr string) (pod string, client netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	c, err := from.DialTCP(ctx, addr, testbed.DialOptions{})
	if err != nil {
		return "", client, err
	}
	defer c.Close()
	return exchange(ctx, c, bufio.NewReader(c), addr, true)
}

// exchange makes one HTTP request on a connection that is open.
func exchange(ctx context.Context, c net.Conn, r *bufio.Reader, addr string, last bool) (pod string, client netip.Addr, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return "", client, err
	}
	req.Close = last
	if end, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(end)
	}
	if err := req.Write(c); err != nil {
		return "", client, err
	}
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return "", client, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", client, err
	}
	words := strings.Fields(string(body))
	if resp.StatusCode != http.StatusOK || len(words) != 2 {
		return "", client, fmt.Errorf("odd answer from %s: %s: %q", addr, resp.Status, body)
	}
	seen, err := netip.ParseAddrPort(words[1])
	return words[0], seen.Addr(), err
}

// ask makes n requests, some at the same time.
func ask(ctx context.Context, from *testbed.Host, addr string, n int) *tally {
	t, start := newTally(), time.Now()
	next := make(chan struct{})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { // ends when next is closed
			for range next {
				t.add(get(ctx, from, addr))
			}
		})
	}
	for range n {
		next <- struct{}{}
	}
	close(next)
	wg.Wait()
	t.took = time.Since(start)
	return t
}

// load is an uninterrupted series of requests.
type load struct {
	*tally
	end func() // ends it and waits for the last answer
}

// keepAsking makes requests until it is ended.
func keepAsking(ctx context.Context, from *testbed.Host, addr string) *load {
	t, stop := newTally(), make(chan struct{})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { // ends when stop is closed
			for {
				select {
				case <-stop:
					return
				default:
					t.add(get(ctx, from, addr))
				}
			}
		})
	}
	return &load{tally: t, end: sync.OnceFunc(func() { close(stop); wg.Wait() })}
}

// goOn waits until n more requests were answered.
func (l *load) goOn(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for until := l.answered() + n; l.answered() < until; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("requests stall: %w", ctx.Err())
		case <-time.After(pollPause):
		}
	}
	return nil
}

// held is an HTTP connection that stays open between requests.
type held struct {
	pod  string
	addr string
	c    net.Conn
	r    *bufio.Reader
}

// hold opens a connection whose pod is one that is wanted.
func hold(ctx context.Context, from *testbed.Host, addr string, wanted func(pod string) bool) (*held, error) {
	for range 100 {
		c, err := from.DialTCP(ctx, addr, testbed.DialOptions{})
		if err != nil {
			return nil, err
		}
		h := &held{addr: addr, c: c, r: bufio.NewReader(c)}
		if h.pod, err = h.ask(ctx); err != nil {
			c.Close()
			return nil, err
		}
		if wanted(h.pod) {
			return h, nil
		}
		c.Close()
	}
	return nil, fmt.Errorf("100 connections to %s reached none of the pods wanted", addr)
}

// ask makes another request on the same connection.
func (h *held) ask(ctx context.Context) (pod string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	pod, _, err = exchange(ctx, h.c, h.r, h.addr, false)
	return pod, err
}
