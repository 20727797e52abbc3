//go:build linux

package faults

import (
	"bytes"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// channel stands between the agent and the switch's OpenFlow socket and disturbs what passes.
type channel struct {
	path, to string
	l        net.Listener

	mu     sync.Mutex // protects what follows
	conns  map[net.Conn]bool
	closed bool
	now    disturbance
}

// disturbance is what a channel does to bytes.
type disturbance struct {
	refuse    bool          // new connections are closed at once
	hole      bool          // nothing passes, nothing is closed
	delay     time.Duration // before each piece that is passed
	drip      int           // bytes of a piece at most; 0: any
	after     int           // close a connection after so many bytes; 0: never
	behaviour int           // of what goes to the agent, change one byte in so many; 0: none
	digits    bool          // change digits to digits, and only once the agent has asked for rows (RFC 7047 §4.1.5)
}

func newChannel(path, to string) (*channel, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	c := &channel{path: path, to: to, l: l, conns: map[net.Conn]bool{}}
	go c.accept() // ended by close
	return c, nil
}

func (c *channel) accept() {
	for {
		near, err := c.l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("unix", c.to)
		if err != nil || c.get().refuse || !c.add(near, far) {
			near.Close()
			if far != nil {
				far.Close()
			}
			continue
		}
		asked := &atomic.Bool{}
		go c.pass(near, far, false, asked) // both end with either connection
		go c.pass(far, near, true, asked)
	}
}

func (c *channel) add(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range conns {
		c.conns[n] = true
	}
	return !c.closed
}

// pass copies from one side to the other. What waits in a hole comes out at its end.
func (c *channel) pass(from, to net.Conn, toAgent bool, asked *atomic.Bool) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, n := range []net.Conn{from, to} {
			n.Close()
			delete(c.conns, n)
		}
	}()
	buf, passed := make([]byte, 64<<10), 0
	for {
		d := c.get()
		room := buf
		if d.drip > 0 {
			room = buf[:d.drip]
		}
		n, err := from.Read(room)
		for d = c.get(); d.hole; d = c.get() {
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(d.delay)
		if !toAgent && bytes.Contains(buf[:n], []byte("monitor")) {
			asked.Store(true)
		}
		if d.behaviour > 0 && toAgent && (!d.digits || asked.Load()) {
			d.falsify(buf[:n])
		}
		if d.after > 0 && passed+n > d.after {
			to.Write(buf[:max(0, d.after-passed)])
			return
		}
		if passed += n; d.after == 0 {
			passed = 0
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// falsify changes some bytes.
func (d disturbance) falsify(b []byte) {
	for i := rand.IntN(2 * d.behaviour); i < len(b); i += 1 + rand.IntN(2*d.behaviour) {
		switch digit := '0' <= b[i] && b[i] <= '9'; {
		case d.digits && digit:
			b[i] = '1' + byte(rand.IntN(9))
		case !d.digits:
			b[i] = byte(rand.IntN(256))
		}
	}
}

func (c *channel) get() disturbance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// set disturbs from now on; the zero disturbance is a good channel.
func (c *channel) set(d disturbance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = d
}

// cut closes all connections.
func (c *channel) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.conns {
		n.Close()
	}
}

func (c *channel) close() {
	c.mu.Lock()
	c.closed, c.now = true, disturbance{}
	c.mu.Unlock()
	c.l.Close()
	c.cut()
	os.Remove(c.path)
}
