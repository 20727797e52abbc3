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
	// OnConnect is called with each new connection; the place to read back and to repair. If it fails the
	// connection is closed and replaced. Its context ends with Run's and with the connection.
	OnConnect func(context.Context, *Conn) error
	// MinBackoff and MaxBackoff bound the pause between attempts, which doubles from the one to the other and
	// of which up to half is left to chance (0 means 100 ms and 15 s, 2 s for a switch on this machine). Where a
	// unix socket has no listener the pause is absentPause instead.
	MinBackoff, MaxBackoff time.Duration
}

// absentPause is between two looks for a switch on this machine that is not there. A look costs microseconds; and while
// ovs-vswitchd is restarted each moment until the flows are back is an outage.
const absentPause = 20 * time.Millisecond

// sayAgain is when a warning is repeated though nothing has changed.
const sayAgain = 15 * time.Second

// Client keeps a connection to a bridge. Several may run in one process.
type Client struct {
	target Target
	opts   ClientOptions

	mu     sync.Mutex // protects status and conn
	status Status
	conn   *Conn // nil: not connected, or OnConnect has not returned
}

// Status is how a Client fares.
type Status struct {
	Target    Target
	Connected bool      // OnConnect has returned without an error and the connection lives
	Since     time.Time // of that; or when the last connection ended; zero if there was none
	Attempts  int       // to connect that failed, since the last success
	LastError error     // of the last attempt or connection; kept while connected
	LastTime  time.Time // when LastError came
}

// NewClient returns a Client that Run sets to work.
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
	return &Client{target: t, opts: o, status: Status{Target: t}}
}

// Status returns how the client fares now.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Conn returns the connection in use; nil if there is none.
func (c *Client) Conn() *Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// Run keeps the connection until ctx ends, whose error it gives. It must run only once.
func (c *Client) Run(ctx context.Context) error {
	pause := c.opts.MinBackoff
	said, at := "", time.Time{} // the last warning, so that one is not repeated fifty times a second
	for ctx.Err() == nil {
		good, err := c.once(ctx)
		if ctx.Err() != nil {
			break
		}
		if good {
			pause, said = c.opts.MinBackoff, ""
		}
		if text := err.Error(); text != said || time.Since(at) >= sayAgain {
			c.opts.Log.Warn("openflow channel is down", "target", c.target.String(), "error", err)
			said, at = text, time.Now()
		}
		if absent(err) {
			sleep(ctx, absentPause)
			continue
		}
		sleep(ctx, pause/2+rand.N(pause/2+1))
		pause = min(2*pause, c.opts.MaxBackoff)
	}
	return ctx.Err()
}

// absent reports whether there is no socket, or nothing listens on it. What is reached over a network is never absent: there a
// look costs others something.
func absent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && op.Net == "unix" &&
		(errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED))
}

func sleep(ctx context.Context, d time.Duration) {
	wait := time.NewTimer(d)
	defer wait.Stop()
	select {
	case <-ctx.Done():
	case <-wait.C:
	}
}

// once makes a connection and stays until it ends. good says that it was of use.
func (c *Client) once(ctx context.Context) (good bool, err error) {
	defer func() { c.ended(err) }()
	conn, err := Dial(ctx, c.target, c.opts.Options)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ended by cancel or by the connection's end, both of which are sure
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
			return false, fmt.Errorf("after connecting: %w", err)
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

func (c *Client) ended(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.status.Connected {
		c.status.Since = now
	} else {
		c.status.Attempts++
	}
	c.conn = nil
	c.status.Connected = false
	c.status.LastError, c.status.LastTime = err, now
}
