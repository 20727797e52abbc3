package ovsdb

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/cenkalti/rpc2"
)

// maxMessage bounds one message from the server, in bytes. The longest is the initial state of a bridge: 16
// MiB hold some 30,000 ports.
const maxMessage = 16 << 20

var errTooLong = fmt.Errorf("the server sends a message of more than %d MiB", maxMessage>>20)

// dial connects to the server.
func dial(ctx context.Context, e endpoint, cfg *tls.Config) (net.Conn, error) {
	if e.tls {
		return (&tls.Dialer{Config: cfg}).DialContext(ctx, e.network, e.address)
	}
	return (&net.Dialer{}).DialContext(ctx, e.network, e.address)
}

// boundedConn is a connection that limits the bytes read and sets a deadline for each write, so that a server
// that reads nothing does not block callers. It has one reader.
type boundedConn struct {
	net.Conn
	left  int           // bytes that may be read
	ended error         // why reading failed; only for the reader
	limit time.Duration // of a write
}

func (c *boundedConn) Read(b []byte) (n int, err error) {
	if c.left > 0 {
		n, err = c.Conn.Read(b[:min(len(b), c.left)])
		c.left -= n
	} else {
		err = errTooLong
	}
	c.ended = err
	return n, err
}

func (c *boundedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// boundedCodec bounds each message and keeps the read error, which rpc2 does not return.
type boundedCodec struct {
	rpc2.Codec
	conn *boundedConn
	err  error // the first; only for the reader
}

// ReadHeader reads a whole message: jsonrpc decodes its parts later.
func (c *boundedCodec) ReadHeader(req *rpc2.Request, resp *rpc2.Response) error {
	c.conn.left = maxMessage
	return c.keep(c.Codec.ReadHeader(req, resp))
}

func (c *boundedCodec) ReadRequestBody(to any) error  { return c.keep(c.Codec.ReadRequestBody(to)) }
func (c *boundedCodec) ReadResponseBody(to any) error { return c.keep(c.Codec.ReadResponseBody(to)) }

func (c *boundedCodec) keep(err error) error {
	if c.err == nil {
		c.err = err
	}
	return err
}

// why returns why reading ended.
func (c *boundedCodec) why() error {
	switch err := c.conn.ended; {
	case errors.Is(err, errTooLong):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, net.ErrClosed):
		return errLost
	case err != nil:
		return fmt.Errorf("%w: %w", errLost, err)
	case c.err != nil:
		return malformed(c.err)
	}
	return errLost
}

// malformed returns the error for a message that cannot be decoded. what is a library's error or panic value;
// a bounded part of it is quoted, because it may contain text from the server.
func malformed(what any) error {
	return fmt.Errorf("%w: %.120q", errMalformed, fmt.Sprint(what))
}
