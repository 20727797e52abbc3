package ofctrl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"
)

// ClientOptions of a Client.
type ClientOptions struct {
	Options
	// OnConnect is called with each new connection, to read back and repair. If it fails, the connection is
	// closed and replaced. Its context ends with Run's or with the connection.
	OnConnect func(context.Context, *Conn) error
	// OnAbsent is called when an attempt finds that a local unix socket has no listener, by the goroutine
	// that calls Run; nil: not.
	OnAbsent func()
	// MinBackoff and MaxBackoff bound the pause between attempts, which doubles from MinBackoff to
	// MaxBackoff; its upper half is random (0 means 100 ms and 15 s, 2 s for a unix socket). Where a unix
	// socket has no listener the pause is absentPause instead.
	MinBackoff, MaxBackoff time.Duration
}

// absentPause is the pause between attempts while a local unix socket has no listener. An attempt costs
// microseconds; and while ovs-vswitchd is restarted, each moment until the flows are back is an outage.
const absentPause = 20 * time.Millisecond

// repeatWarning is the interval at which an unchanged warning is logged again.
const repeatWarning = 15 * time.Second

// Client keeps a connection to a bridge. Several may run in one process.
type Client struct {
	target Target
	opts   ClientOptions

	mu     sync.Mutex // protects status and conn
	status Status
	conn   *Conn // nil: not connected, or OnConnect has not returned
}

// Status is the state of a Client's connection.
type Status struct {
	Connected bool      // OnConnect has returned without an error and the connection lives
	Since     time.Time // when Connected last changed; zero if there was never a connection
	Attempts  int       // failed ones since the last success
	LastError error     // of the last attempt or connection; kept while connected
	Heard     time.Time // when the switch last sent something after a handshake; zero: never
}

// NewClient returns a Client; call Run to connect it.
func NewClient(t Target, o ClientOptions) *Client {
	if o.MinBackoff <= 0 {
		o.MinBackoff = 100 * time.Millisecond
	}
	if o.MaxBackoff < o.MinBackoff {
		o.MaxBackoff = max(15*time.Second, o.MinBackoff)
		if t.Network == "unix" {
			o.MaxBackoff = max(2*time.Second, o.MinBackoff)
		}
	}
	o.Options = o.Options.withDefaults()
	return &Client{target: t, opts: o}
}

// Status returns the present state of the connection.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	if c.conn != nil {
		s.Heard = c.conn.Heard()
	}
	return s
}

// Conn returns the connection in use; nil if there is none.
func (c *Client) Conn() *Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// Run keeps the client connected until ctx is done, and returns ctx.Err(). It must run only once.
func (c *Client) Run(ctx context.Context) error {
	pause := c.opts.MinBackoff
	lastWarning, warnedAt := "", time.Time{} // so that one is not repeated fifty times a second

	for ctx.Err() == nil {
		good, err := c.once(ctx)
		if ctx.Err() != nil {
			break
		}
		if good {
			pause, lastWarning = c.opts.MinBackoff, ""
		}

		if text := err.Error(); text != lastWarning || time.Since(warnedAt) >= repeatWarning {
			c.opts.Log.Warn("OpenFlow connection failed", "target", c.target.String(), "error", err)
			lastWarning, warnedAt = text, time.Now()
		}

		wait := absentPause
		if !absent(err) {
			wait = pause/2 + rand.N(pause/2+1)
			pause = min(2*pause, c.opts.MaxBackoff)
		} else if c.opts.OnAbsent != nil {
			c.opts.OnAbsent()
		}

		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return ctx.Err()
}

// absent reports whether there is no socket, or nothing listens on it. A network target is never
// absent: dialing it so often would load the network and the peer.
func absent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && op.Net == "unix" &&
		(errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED))
}

// once connects and blocks until the connection ends. good reports whether OnConnect succeeded.
func (c *Client) once(ctx context.Context) (good bool, err error) {
	var conn *Conn
	defer func() { c.ended(conn, err) }()

	conn, err = Dial(ctx, c.target, c.opts.Options)
	if err != nil {
		return false, err
	}
	defer conn.Close()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ended by cancel or by the connection's end, one of which always happens
		select {
		case <-conn.Done():
			cancel(conn.Err())
		case <-ctx.Done():
		}
	}()

	if c.opts.OnConnect != nil {
		if err := c.opts.OnConnect(ctx, conn); err != nil {
			if conn.Err() != nil {
				return false, conn.Err()
			}
			return false, fmt.Errorf("OnConnect: %w", err)
		}
	}

	c.up(conn)
	<-ctx.Done()
	if err := conn.Err(); err != nil {
		return true, err
	}
	return true, ctx.Err()
}

func (c *Client) up(conn *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	c.status.Connected, c.status.Since, c.status.Attempts = true, time.Now(), 0
}

// ended records the end of a connection, or of an attempt; conn is nil if the handshake failed.
func (c *Client) ended(conn *Conn, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.status.Connected {
		c.status.Since = now
	} else {
		c.status.Attempts++
	}
	if conn != nil {
		c.status.Heard = conn.Heard()
	}
	c.conn = nil
	c.status.Connected = false
	c.status.LastError = err
}
