//go:build linux

package ofctrl

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nkp-proxy/nkp/test/ofctrltest"
)

// dialPipe connects to a fake switch that answers with serve, from the first byte on. It needs no socket, so
// that it works in a bubble of synctest, where time passes only while all goroutines wait.
func dialPipe(t testing.TB, serve func(*ofctrltest.Session), o Options) (*Conn, error) {
	t.Helper()
	o = o.withDefaults()
	p, far := net.Pipe()
	near := &counted{Conn: p}
	l := make(listener)
	s := ofctrltest.Serve(l, ofctrltest.Options{Serve: serve})
	t.Cleanup(func() { s.Close() })
	l <- newBuffered(far)

	ctx, cancel := context.WithTimeout(t.Context(), o.ConnectTimeout)
	defer cancel()
	c := newConn(near, Target{}, o)
	if err := c.handshake(ctx); err != nil {
		near.Close()
		return nil, err
	}
	c.start()
	t.Cleanup(func() { c.Close() })
	return c, nil
}

// mustPipe is dialPipe with a switch that answers with serve after the handshake.
func mustPipe(t testing.TB, serve func(*ofctrltest.Session), o Options) *Conn {
	t.Helper()
	c, err := dialPipe(t, func(f *ofctrltest.Session) {
		if f.Handshake() == nil {
			serve(f)
		}
	}, o)
	must(t, err)
	return c
}

// counted counts the writes of a connection.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// listener accepts what is sent to it.
type listener chan net.Conn

func (l listener) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l listener) Close() error   { close(l); return nil }
func (l listener) Addr() net.Addr { return &net.UnixAddr{} }

// buffered is an end of a net.Pipe with a buffer of some writes, as sockets have one: both ends begin by
// writing.
type buffered struct {
	net.Conn
	out   chan []byte
	ended chan struct{} // closed when nothing is written any more
	close func()
}

func newBuffered(c net.Conn) *buffered {
	closed := make(chan struct{})
	b := &buffered{c, make(chan []byte, 16), make(chan struct{}), sync.OnceFunc(func() { close(closed) })}
	go func() { // ended by Close, or by the end of the connection
		defer close(b.ended)
		defer c.Close()
		for {
			select {
			case p := <-b.out:
				if _, err := c.Write(p); err != nil {
					return
				}
				continue
			default:
			}
			select {
			case p := <-b.out:
				if _, err := c.Write(p); err != nil {
					return
				}
			case <-closed:
				return
			}
		}
	}()
	return b
}

func (b *buffered) Write(p []byte) (int, error) {
	select {
	case <-b.ended:
		return 0, io.ErrClosedPipe
	default:
	}
	select {
	case b.out <- bytes.Clone(p):
		return len(p), nil
	case <-b.ended:
		return 0, io.ErrClosedPipe
	}
}

// Close ends the connection once what is in the buffer was written.
func (b *buffered) Close() error {
	b.close()
	return nil
}
