package localhost

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// dialTimeout is how long an endpoint may take to accept a connection, as in kube-proxy.
	dialTimeout = 5 * time.Second
	// bufferSize is what is copied at a time in each direction.
	bufferSize = 16 << 10
)

// halfOpen is how long a connection may pause after one end has closed its half, about as long as conntrack
// remembers such a connection: nobody reads from the end that closed, to meet the error if it is gone. A
// variable for tests.
var halfOpen = 2 * time.Minute

// stalled is how long an end may read nothing of what the other has sent, so that ends which never read do
// not use up the connections. The kernel tells of reading only once a part of its buffers is free, some
// 4 MB at most. A variable for tests.
var stalled = 15 * time.Minute

// connection is a client's connection and the one to its endpoint.
type connection struct {
	endpoint netip.AddrPort
	cancel   context.CancelFunc // ends it, if need be before the endpoint has accepted it
}

// serve forwards a client's connection on a goroutine of its own, or resets it if there are too many.
func (p *Proxy) serve(ctx context.Context, q *port, client *net.TCPConn) {
	ctx, cancel := context.WithCancel(ctx)
	c := &connection{cancel: cancel}
	if !p.admit(q, c) {
		cancel()
		reset(client)
		return
	}
	p.serving.Go(func() {
		defer cancel()
		defer p.release(q, c)
		p.forward(ctx, client, c.endpoint)
	})
}

// admit chooses the connection's endpoint unless a limit is reached, or the port is closed.
func (p *Proxy) admit(q *port, c *connection) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case q.gone:
	case len(q.conns) >= p.opts.Limits.PerPort:
		p.figures.Results[tooManyOfPort]++
	case p.figures.Open >= p.opts.Limits.Connections:
		p.figures.Results[tooMany]++
	default:
		c.endpoint = q.choose()
		q.conns[c] = struct{}{}
		p.figures.Open++
		return true
	}
	return false
}

// release forgets a connection that has ended.
func (p *Proxy) release(q *port, c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(q.conns, c)
	p.figures.Open--
}

// forward connects to the endpoint and copies in both directions until both ends have closed, one has reset
// the connection or closed and the other pauses, or the context ends.
func (p *Proxy) forward(ctx context.Context, client *net.TCPConn, endpoint netip.AddrPort) {
	dialer := net.Dialer{Timeout: dialTimeout}
	server, err := dialer.DialContext(ctx, "tcp", endpoint.String())
	if err != nil {
		p.count(unanswered)
		reset(client)
		return
	}
	p.count(connected)

	ends := [2]*net.TCPConn{client, server.(*net.TCPConn)}
	abort := func() {
		reset(ends[0])
		reset(ends[1])
	}
	defer context.AfterFunc(ctx, abort)()

	var half atomic.Bool
	var both sync.WaitGroup
	for i, from := range ends {
		both.Go(func() {
			if copyHalf(ends[1-i], from, &half) != nil {
				abort()
			}
		})
	}
	both.Wait()
	for _, end := range ends {
		_ = end.Close()
	}
}

func (p *Proxy) count(result string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.figures.Results[result]++
}

// copyHalf copies one direction of a connection until its sender closes it, and then closes it at the other
// end and sets half. io.Copy would move the bytes through a pipe in the kernel of up to 1 MiB.
func copyHalf(to, from *net.TCPConn, half *atomic.Bool) error {
	for b := make([]byte, bufferSize); ; {
		if half.Load() {
			_ = from.SetReadDeadline(time.Now().Add(halfOpen))
		}

		n, err := from.Read(b)
		if err == io.EOF {
			half.Store(true)
			_ = to.SetReadDeadline(time.Now().Add(halfOpen))
			return to.CloseWrite()
		}
		if err == nil {
			_ = to.SetWriteDeadline(time.Now().Add(stalled))
			_, err = to.Write(b[:n])
		}
		if err != nil {
			return err
		}
	}
}

// reset closes a connection so that its other end does not take it for complete.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
