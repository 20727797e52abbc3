package ofctrl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// readLoop is the only reader: messages are handled in the order they come, so that the reply to a barrier or
// to the end of a bundle proves that every error before it was seen.
func (c *Conn) readLoop() {
	for {
		f, err := c.readTraced()
		if err == nil {
			err = c.dispatch(f)
		}
		if err != nil {
			c.fail(lost(err))
			return
		}
	}
}

// lost returns the error for a broken connection.
func lost(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("switch closed the openflow connection")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("switch closed the openflow connection: %w", err)
	case errors.Is(err, net.ErrClosed):
		return ErrClosed
	}
	return fmt.Errorf("openflow connection broke: %w", err)
}

// dispatch delivers one message to its receiver. A panic while decoding becomes a protocol error.
func (c *Conn) dispatch(f frame) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v cannot be decoded: %v", ErrProtocol, f.typ(), p)
		}
	}()

	switch f.typ() {
	case typeEchoRequest:
		c.post(echoReply(f))
	case typePacketIn:
		if c.opts.OnPacketIn == nil {
			return nil
		}
		p, err := decodePacketIn(f)
		if err != nil {
			return err
		}
		c.events.packet(p)
	case typeRequestForward:
		if c.opts.OnForward != nil {
			c.opts.OnForward()
		}
	case typeHello, typeEchoReply:
	default:
		if s, i := c.sinkOf(f.xid()); s != nil {
			return s.receive(i, f)
		}
		if f.typ() == typeError && f.xid() == 0 {
			if q := c.monitorQuestion(); q != nil {
				return q.receive(0, f)
			}
		}

		switch {
		case f.typ() == typeError:
			c.strayError(f)
		case f.typ() == typeMultipartReply && f.xid() == 0:
			return c.foreign.update(f)
		}
	}

	return nil
}

// strayError logs an error that matches no request: the first, second, fourth, eighth, … of a connection, so
// that a switch cannot fill the log.
func (c *Conn) strayError(f frame) {
	if c.strays++; c.strays&(c.strays-1) == 0 {
		e, _ := parseError(f)
		c.opts.Log.Warn("switch sent an error that answers no request of ours",
			"error", e, "xid", f.xid(), "count", c.strays)
	}
}

func echoReply(f frame) []byte { return message(typeEchoReply, f.xid(), f.body()...) }

// writeLoop is the only writer after the handshake.
func (c *Conn) writeLoop() {
	for {
		var err error
		select {
		case b := <-c.ctl:
			err = c.write(b)
		case p := <-c.out:
			err = c.write(*p)
			putBuffer(p)
		case <-c.done:
			return
		}
		if err != nil {
			c.writeFailed(err)
			return
		}
	}
}

func (c *Conn) write(b []byte) error {
	c.trace.stream(">", b)
	_, err := c.nc.Write(b)
	return err
}

// readAfterWriteFailed is how long the reader may go on after writing has failed.
const readAfterWriteFailed = 200 * time.Millisecond

// writeFailed ends the connection, but lets the reader find the reason first: an error message that the
// switch sent before it closed the connection explains more than a broken pipe.
func (c *Conn) writeFailed(err error) {
	select {
	case <-c.done:
	case <-time.After(readAfterWriteFailed):
		c.fail(lost(err))
	}
}

// send queues whole messages for the writer and takes ownership of the buffer. It blocks while the switch is
// slow. If the switch reads nothing for Options.AnswerTimeout, send ends the connection.
func (c *Conn) send(ctx context.Context, p *[]byte) error {
	select {
	case c.out <- p:
		return nil
	default:
	}
	timer := time.NewTimer(c.opts.AnswerTimeout)
	defer timer.Stop()
	select {
	case c.out <- p:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		c.fail(fmt.Errorf("%w: it has read nothing for %v", ErrNoAnswer, c.opts.AnswerTimeout))
	case <-c.done:
	}
	return c.err
}

// sendAll sends n messages, several at once. add appends message i.
func (c *Conn) sendAll(ctx context.Context, n int, add func(b []byte, i int) ([]byte, error)) (err error) {
	var p *[]byte
	for i := range n {
		if p == nil {
			p = getBuffer()
		}
		if *p, err = add(*p, i); err != nil {
			return err
		}
		if len(*p) < chunk && i < n-1 {
			continue
		}
		if err := c.send(ctx, p); err != nil {
			return err
		}
		p = nil
	}
	return nil
}

// post queues an echo without ever blocking. If the queue is full it drops the echo, because the switch is
// not reading then.
func (c *Conn) post(b []byte) {
	select {
	case c.ctl <- b:
	default:
	}
}

// chunk is about how much is queued for the writer at once.
const chunk = 64 << 10

var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 2*chunk)
	return &b
}}

func getBuffer() *[]byte {
	p := buffers.Get().(*[]byte)
	*p = (*p)[:0]
	return p
}

func putBuffer(p *[]byte) {
	if cap(*p) <= 4*chunk {
		buffers.Put(p)
	}
}

// keepAlive asks a quiet switch for an echo and ends the connection if nothing comes (OpenFlow 1.5.1 §7.5.2).
func (c *Conn) keepAlive() {
	tick := time.NewTicker(max(min(c.opts.EchoInterval, c.opts.EchoTimeout)/4, time.Millisecond))
	defer tick.Stop()
	var asked time.Time // when the last echo request was queued; zero: none is out
	for {
		select {
		case now := <-tick.C:
			quiet := now.Sub(c.epoch) - time.Duration(c.lastRead.Load())
			switch {
			case quiet < c.opts.EchoInterval:
				asked = time.Time{}
			case asked.IsZero():
				asked = now
				c.post(message(typeEchoRequest, 0))
			case now.Sub(asked) >= c.opts.EchoTimeout:
				c.fail(fmt.Errorf("%w: no answer to an echo request for %v", ErrSilent, c.opts.EchoTimeout))
				return
			}
		case <-c.done:
			return
		}
	}
}
