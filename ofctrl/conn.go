package ofctrl

import (
	"context"
	"crypto/tls"
	"fmt"
	"hash/maphash"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is one OpenFlow 1.5 connection to a bridge. It is made by Dial and ends with Close or with the first
// failure; then Done is closed, Err says why, and every waiting call returns.
type Conn struct {
	target  Target
	opts    Options
	nc      net.Conn
	frames  *frameReader
	trace   tracer
	encoder *encoder // used under commitSem

	out      chan *[]byte // to the writer, in order; bounded, so that a slow switch blocks callers
	ctl      chan []byte  // to the writer: echoes, which must not wait behind out
	epoch    time.Time
	lastRead atomic.Int64 // when the switch last sent something, in nanoseconds after epoch
	events   *events
	strays   uint64 // errors for no request; only for the reader
	foreign  foreignFlows

	commitSem chan struct{} // held by the running Commit
	bundle    uint32        // last bundle id; under commitSem

	// protects calls and nextXid; apart from the rest, as the reader takes it for each message
	mu      sync.Mutex
	calls   []*call
	nextXid uint32

	once sync.Once // guards the transition to closed
	err  error     // written once, before done is closed
	done chan struct{}
	wg   sync.WaitGroup
}

// Dial connects to the bridge and performs the handshake. For a bridge without OpenFlow 1.5 it returns a
// *VersionError.
func Dial(ctx context.Context, t Target, o Options) (*Conn, error) {
	o = o.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, o.ConnectTimeout)
	defer cancel()
	nc, err := dialTarget(ctx, t, o.TLS)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", t, err)
	}
	c := newConn(nc, t, o)
	if err := c.handshake(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("openflow handshake with %s: %w", t, err)
	}
	c.start()
	return c, nil
}

func dialTarget(ctx context.Context, t Target, files TLSFiles) (net.Conn, error) {
	var d net.Dialer
	if !t.TLS {
		return d.DialContext(ctx, t.Network, t.Address)
	}
	cfg, err := files.Config(t.Address)
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{NetDialer: &d, Config: cfg}).DialContext(ctx, t.Network, t.Address)
}

func newConn(nc net.Conn, t Target, o Options) *Conn {
	c := &Conn{
		target: t, opts: o, nc: nc, frames: newFrameReader(nc), trace: newTracer(t), encoder: newEncoder(),
		out: make(chan *[]byte, 8), ctl: make(chan []byte, 16), events: newEvents(o),
		commitSem: make(chan struct{}, 1), nextXid: 1, done: make(chan struct{}), epoch: time.Now(),
	}
	c.foreign.seed, c.foreign.max, c.foreign.known = maphash.MakeSeed(), maxForeign, map[uint64]foreignFlow{}
	c.foreign.onOthers = o.OnOthers
	c.frames.onRead = func() { c.lastRead.Store(int64(time.Since(c.epoch))) }
	return c
}

// start starts the goroutines. Each ends when done is closed or the socket fails; fail causes both.
func (c *Conn) start() {
	c.lastRead.Store(int64(time.Since(c.epoch)))
	for _, run := range []func(){c.readLoop, c.writeLoop, c.keepAlive, func() { c.events.run(c.done) }} {
		c.wg.Add(1)
		go func() {
			defer c.wg.Done()
			run()
		}()
	}
}

// fail closes the connection for the given reason, once.
func (c *Conn) fail(err error) {
	c.once.Do(func() {
		c.err = err
		close(c.done)
		c.nc.Close()
	})
}

// Close ends the connection and waits for its goroutines. It returns nil even if the connection had failed
// before.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	c.wg.Wait()
	return nil
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err reports why the connection ended; nil while it lives.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Heard returns when the switch last sent something over this connection.
func (c *Conn) Heard() time.Time { return c.epoch.Add(time.Duration(c.lastRead.Load())) }

// answersInterval is the interval at which Answers looks for a message.
const answersInterval = 5 * time.Millisecond

// Answers sends an echo request and reports whether the switch sends anything before ctx or the connection
// ends. It does not wait for the answers to other requests, so that a large one does not delay it. Unlike
// requests it does not call Options.OnAnswer.
func (c *Conn) Answers(ctx context.Context) bool {
	before := c.lastRead.Load()
	c.post(message(typeEchoRequest, 0))
	look := time.NewTicker(answersInterval)
	defer look.Stop()
	for c.lastRead.Load() == before {
		select {
		case <-ctx.Done():
			return false
		case <-c.done:
			return false
		case <-look.C:
		}
	}
	return true
}

// PacketInDrops returns the number of packets from the switch that were dropped because the queue was full.
func (c *Conn) PacketInDrops() uint64 { return c.events.drops.Load() }

// Target returns where the connection leads.
func (c *Conn) Target() Target { return c.target }
