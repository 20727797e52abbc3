package ovsdb

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"
)

// Options for Connect. Only Bridge has to be set.
type Options struct {
	// Endpoint is a connection method of ovsdb(7): unix:PATH, tcp:HOST:PORT or
	// ssl:HOST:PORT; "" means DefaultEndpoint.
	Endpoint string
	// Bridge is the name of the bridge to watch.
	Bridge string
	// TLS for ssl: endpoints.
	TLS *tls.Config
	// Timeout bounds each attempt to connect with its listing, and each answer to
	// a probe; 0 means 5 s.
	Timeout time.Duration
	// ProbeInterval is the time between probes of the server; 0 means 10 s. A server that
	// stops answering is noticed after ProbeInterval + Timeout at most.
	ProbeInterval time.Duration
	// MinBackoff and MaxBackoff bound the time between attempts to reconnect; 0
	// means 100 ms and 5 s. It doubles from one to the other.
	MinBackoff, MaxBackoff time.Duration
}

func (o *Options) setDefaults() {
	o.Endpoint = cmp.Or(o.Endpoint, DefaultEndpoint)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.ProbeInterval = cmp.Or(o.ProbeInterval, 10*time.Second)
	o.MinBackoff = cmp.Or(o.MinBackoff, 100*time.Millisecond)
	o.MaxBackoff = max(cmp.Or(o.MaxBackoff, 5*time.Second), o.MinBackoff)
}

// Client watches one bridge. All methods may be called from any goroutine.
type Client struct {
	opt     Options
	changed chan struct{} // capacity 1
	cancel  context.CancelFunc
	done    chan struct{} // closed when run has ended

	// mu protects what run writes and the methods read.
	mu        sync.Mutex
	sw        Switch
	session   *session // nil while disconnected
	lastErr   error
	lostAt    time.Time     // when the last session was lost; zero while there is one
	published chan struct{} // closed and replaced whenever any of these changes
}

// Connect connects to the database and lists it. ctx and Options.Timeout bound
// that, not the client's life: Close ends the client. The error is
// ErrUnreachable unless Options are invalid. A bridge that is missing or not
// usable is not an error here: see [Switch.Check].
func Connect(ctx context.Context, o Options) (*Client, error) {
	o.setDefaults()
	if o.Bridge == "" {
		return nil, errors.New("ovsdb: no bridge named")
	}
	if _, err := parseEndpoint(o.Endpoint); err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.Background())
	c := &Client{
		opt: o, changed: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}),
		published: make(chan struct{}), sw: Switch{Bridge: o.Bridge},
	}
	s, err := c.connect(ctx)
	if err != nil {
		cancel()
		return nil, unreachable(o.Endpoint, err)
	}
	select {
	case <-c.changed: // the caller has not seen any other state
	default:
	}
	go c.run(life, s) // ended by Close
	return c, nil
}

// connect makes one attempt, the snapshot included.
func (c *Client) connect(ctx context.Context) (*session, error) {
	bounded, cancel := context.WithTimeout(ctx, c.opt.Timeout)
	defer cancel()
	s, err := open(bounded, c.opt)
	if err != nil {
		return nil, err
	}
	c.publish(func() {
		c.sw, c.session, c.lastErr, c.lostAt = buildSwitch(c.opt.Bridge, s.list()), s, nil, time.Time{}
	})
	return s, nil
}

// run keeps a session up until ctx ends.
func (c *Client) run(ctx context.Context, s *session) {
	defer close(c.done)
	for {
		err := s.serve(ctx, c.opt, func() { c.refresh(s) })
		c.publish(func() { c.session, c.lastErr, c.lostAt = nil, err, time.Now() })
		s.close()
		if s = c.reconnect(ctx); s == nil {
			return
		}
	}
}

// reconnect tries until it has a session; nil if ctx has ended.
func (c *Client) reconnect(ctx context.Context) *session {
	for wait := c.opt.MinBackoff; ; wait = min(2*wait, c.opt.MaxBackoff) {
		// Up to a fifth less, so that many nodes do not reconnect at the same time.
		if sleep(ctx, wait-rand.N(wait/5+1)) != nil {
			return nil
		}
		s, err := c.connect(ctx)
		if err == nil {
			return s
		}
		if ctx.Err() != nil {
			return nil
		}
		c.publish(func() { c.lastErr = err })
	}
}

// refresh makes a new snapshot.
func (c *Client) refresh(s *session) {
	sw := buildSwitch(c.opt.Bridge, s.list())
	if !reflect.DeepEqual(sw, c.Switch()) {
		c.publish(func() { c.sw = sw })
	}
}

// publish changes the client's state and wakes all waiters.
func (c *Client) publish(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.published)
	c.published = make(chan struct{})
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Switch returns the latest snapshot. While the database is unreachable it is the
// last one known.
func (c *Client) Switch() Switch {
	sw, _, _ := c.state()
	return sw
}

func (c *Client) state() (Switch, *session, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sw, c.session, c.published
}

// Changed returns a channel that delivers a value after the snapshot or the state
// of the connection has changed; several changes may result in one value. The
// channel is for one reader and is never closed.
func (c *Client) Changed() <-chan struct{} { return c.changed }

// Connected reports whether there is a connection that answers.
func (c *Client) Connected() bool {
	_, s, _ := c.state()
	return s != nil
}

// LastError returns why there is no connection, or why the last attempt failed; nil
// while connected.
func (c *Client) LastError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastErr == nil {
		return nil
	}
	return unreachable(c.opt.Endpoint, c.lastErr)
}

// Away returns since when there is no connection that answers, and why; a zero time while there is one.
func (c *Client) Away() (since time.Time, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lostAt, c.lastErr
}

// AwaitBridge waits until the bridge exists and returns the snapshot that has it.
// If ctx ends first, the error is that of Switch.Check joined with ctx.Err().
func (c *Client) AwaitBridge(ctx context.Context) (Switch, error) {
	return c.await(ctx, func(s Switch) error {
		if !s.Exists {
			return s.Check()
		}
		return nil
	})
}

// await waits until ok returns no error.
func (c *Client) await(ctx context.Context, ok func(Switch) error) (Switch, error) {
	for {
		sw, _, published := c.state()
		err := ok(sw)
		if err == nil {
			return sw, nil
		}
		select {
		case <-published:
		case <-c.done:
			return sw, errors.Join(err, errClosed)
		case <-ctx.Done():
			return sw, errors.Join(err, ctx.Err())
		}
	}
}

var errClosed = errors.New("ovsdb: client closed")

// Close ends the client and waits until its connection is closed. It may be called
// again.
func (c *Client) Close() {
	c.cancel()
	<-c.done
}
