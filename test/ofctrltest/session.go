package ofctrltest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"net"
)

// Session is one connection to a Switch. One goroutine at a time uses it.
type Session struct {
	// Conn is the connection below, for a test that closes one direction of it.
	Conn net.Conn

	s       *Switch
	r       *bufio.Reader
	w       *bufio.Writer
	bundles map[uint32][]Message // open ones: the messages in them
}

func newSession(s *Switch, c net.Conn) *Session {
	return &Session{Conn: c, s: s, r: bufio.NewReaderSize(c, 1<<16), w: bufio.NewWriterSize(c, 1<<16), bundles: map[uint32][]Message{}}
}

// serve answers as a switch does until the connection ends, or until it has answered a message of type last, if that is not negative.
func (c *Session) serve(last int) error {
	c.Hello()
	for {
		m, err := c.Read()
		if err != nil {
			return err
		}
		if err := c.Answer(m); err != nil {
			return err
		}
		if int(m.Type()) == last {
			return c.w.Flush()
		}
	}
}

// Read returns the next message. Answers leave before it waits for one.
func (c *Session) Read() (Message, error) {
	if c.r.Buffered() == 0 {
		if err := c.w.Flush(); err != nil {
			return nil, err
		}
	}
	return readMessage(c.r)
}

// Drain reads and drops everything until the connection ends.
func (c *Session) Drain() {
	for {
		if _, err := c.Read(); err != nil {
			return
		}
	}
}

// Write sends bytes at once, whatever they are.
func (c *Session) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if err != nil {
		return n, err
	}
	return n, c.w.Flush()
}

// Send sends a message, at the latest when Read waits. An error is Read's: the writer keeps its first.
func (c *Session) Send(typ byte, xid uint32, body ...byte) {
	_, _ = c.w.Write(NewMessage(typ, xid, body...))
}

// Hello offers OpenFlow 1.5 alone.
func (c *Session) Hello() {
	_, _ = c.Write(NewMessage(Hello, 1, 0, 1, 0, 8, 0, 0, 0, 1<<6)) // a bitmap with the bit of 1.5 (§7.5.1)
}

// Handshake goes through hello and features to the first barrier, with which nkp ends its own.
func (c *Session) Handshake() error { return c.serve(BarrierRequest) }

// Answer does what a message asks for and answers it. It returns an error if the message cannot be understood.
func (c *Session) Answer(m Message) error {
	switch m.Type() {
	case EchoRequest:
		c.Send(EchoReply, m.XID(), m.Body()...)
	case FeaturesRequest:
		reply := make([]byte, 24)
		reply[7], reply[12] = 1, 254 // datapath id, tables
		c.Send(FeaturesReply, m.XID(), reply...)
	case BarrierRequest:
		c.Send(BarrierReply, m.XID())
	case MultipartRequest:
		return c.multipart(m.XID(), m.Body())
	case BundleControl:
		return c.bundle(m)
	case BundleAdd:
		body := m.Body()
		if len(body) < 8+headerLen {
			return errors.New("empty bundle message")
		}
		id := binary.BigEndian.Uint32(body)
		c.bundles[id] = append(c.bundles[id], Message(body[8:]))
	case FlowMod, GroupMod, MeterMod:
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		return c.s.apply(m)
	}
	return nil // the rest only configures
}

// bundle does what a control message asks for.
func (c *Session) bundle(m Message) error {
	const open, commit, discard = 0, 4, 6
	if len(m.Body()) < 8 {
		return errors.New("short bundle control message")
	}
	id := binary.BigEndian.Uint32(m.Body())
	switch binary.BigEndian.Uint16(m.Body()[4:]) {
	case open, discard:
		delete(c.bundles, id)
	case commit:
		if err := c.s.commit(c.bundles[id]); err != nil {
			return err
		}
		delete(c.bundles, id)
	}
	_, _ = c.w.Write(BundleDone(m))
	return nil
}
