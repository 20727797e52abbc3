package memswitch

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Switch is a running switch. Its methods may be called from any goroutine.
type Switch struct {
	l net.Listener

	mu      sync.Mutex // protects all below
	conns   map[net.Conn]bool
	flows   map[string][]byte // table, priority and match -> entry of a flow description
	groups  map[uint32][]byte // id -> entry of a group description
	meters  map[uint32][]byte // id -> entry of a meter description
	commits int
	last    time.Time     // of commits
	changed chan struct{} // closed and replaced with each commit
}

// Listen makes an empty switch that listens at a unix socket.
func Listen(path string) (*Switch, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := &Switch{l: l, conns: map[net.Conn]bool{}, flows: map[string][]byte{}, groups: map[uint32][]byte{}, meters: map[uint32][]byte{}, changed: make(chan struct{})}
	go s.accept() // ended by Close
	return s, nil
}

// Close ends the switch and its connections.
func (s *Switch) Close() error {
	err := s.l.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
	return err
}

// Held returns the numbers of flows and groups.
func (s *Switch) Held() (flows, groups int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.flows), len(s.groups)
}

// Commits returns how many bundles were committed, and when the last was.
func (s *Switch) Commits() (n int, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits, s.last
}

// Changed returns a channel that is closed with the next commit.
func (s *Switch) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Switch) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[c] = true
		s.mu.Unlock()
		go func() { // ends with the connection
			_ = (&session{s: s, r: bufio.NewReaderSize(c, 1<<16), w: bufio.NewWriterSize(c, 1<<16), bundles: map[uint32][][]byte{}}).run()
			_ = c.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.conns, c)
		}()
	}
}

// Message types (§7.1.1).
const (
	hello            = 0
	echoRequest      = 2
	echoReply        = 3
	featuresRequest  = 5
	featuresReply    = 6
	flowMod          = 14
	groupMod         = 15
	multipartRequest = 18
	multipartReply   = 19
	barrierRequest   = 20
	barrierReply     = 21
	meterMod         = 29
	bundleControl    = 33
	bundleAdd        = 34
)

const headerLen = 8

// session is one connection.
type session struct {
	s       *Switch
	r       *bufio.Reader
	w       *bufio.Writer
	bundles map[uint32][][]byte // open ones: the messages in them
}

func (c *session) run() error {
	c.send(hello, 1, 0, 1, 0, 8, 0, 0, 0, 1<<6) // a bitmap with the bit of 1.5 (§7.5.1)
	for {
		if c.r.Buffered() == 0 {
			if err := c.w.Flush(); err != nil {
				return err
			}
		}
		var head [headerLen]byte
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint16(head[2:]))
		if n < headerLen {
			return errors.New("message shorter than its header")
		}
		body := make([]byte, n-headerLen)
		if _, err := io.ReadFull(c.r, body); err != nil {
			return err
		}
		if err := c.message(head[1], binary.BigEndian.Uint32(head[4:]), body); err != nil {
			return err
		}
	}
}

// send never fails: the writer keeps its first error for Flush.
func (c *session) send(typ byte, xid uint32, body ...byte) {
	b := append(make([]byte, 0, headerLen+len(body)), 6, typ, 0, 0)
	binary.BigEndian.PutUint16(b[2:], uint16(headerLen+len(body)))
	b = binary.BigEndian.AppendUint32(b, xid)
	_, _ = c.w.Write(append(b, body...))
}

func (c *session) message(typ byte, xid uint32, body []byte) error {
	switch typ {
	case echoRequest:
		c.send(echoReply, xid, body...)
	case featuresRequest:
		reply := make([]byte, 24)
		reply[7], reply[12] = 1, 254 // datapath id, tables
		c.send(featuresReply, xid, reply...)
	case barrierRequest:
		c.send(barrierReply, xid)
	case multipartRequest:
		return c.multipart(xid, body)
	case bundleControl:
		return c.bundle(xid, body)
	case bundleAdd:
		if len(body) < 8+headerLen {
			return errors.New("empty bundle message")
		}
		id := binary.BigEndian.Uint32(body)
		c.bundles[id] = append(c.bundles[id], body[8:])
	case flowMod, groupMod, meterMod:
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		return c.s.apply(typ, body)
	}
	return nil // what only configures is taken note of by nobody
}

// bundle answers a control message (§7.3.9.2): each reply's type is the request's plus one.
func (c *session) bundle(xid uint32, body []byte) error {
	if len(body) < 8 {
		return errors.New("short bundle control message")
	}
	const open, commit, discard = 0, 4, 6
	id, typ := binary.BigEndian.Uint32(body), binary.BigEndian.Uint16(body[4:])
	switch typ {
	case open, discard:
		delete(c.bundles, id)
	case commit:
		if err := c.s.commit(c.bundles[id]); err != nil {
			return err
		}
		delete(c.bundles, id)
	}
	binary.BigEndian.PutUint16(body[4:], typ+1)
	c.send(bundleControl, xid, body[:8]...)
	return nil
}

func (s *Switch) commit(messages [][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range messages {
		if err := s.apply(m[1], m[headerLen:]); err != nil {
			return fmt.Errorf("in a bundle: %w", err)
		}
	}
	s.commits++
	s.last = time.Now()
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}
