package ofctrltest

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Switch is a running switch. Its methods may be called from any goroutine.
type Switch struct {
	l     net.Listener
	serve func(*Session) // nil: as a switch does

	mu      sync.Mutex // protects all below
	conns   map[net.Conn]bool
	flows   map[string]Message // table, priority and match -> what added it
	groups  map[uint32]Message // id -> what added or changed it last
	meters  map[uint32]Message
	commits int
	last    time.Time     // of commits
	changed chan struct{} // closed and replaced with each commit
}

// Options change what a Switch does. The zero value changes nothing.
type Options struct {
	// Serve takes over each connection, from the first byte on; the connection ends with it. It runs in a goroutine of its own.
	Serve func(*Session)
}

// Listen makes an empty switch that listens at a unix socket. Close ends it.
func Listen(path string, o Options) (*Switch, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return Serve(l, o), nil
}

// Serve makes an empty switch of a listener. Close ends both.
func Serve(l net.Listener, o Options) *Switch {
	s := &Switch{l: l, serve: o.Serve, conns: map[net.Conn]bool{}, flows: map[string]Message{}, groups: map[uint32]Message{}, meters: map[uint32]Message{}, changed: make(chan struct{})}
	go s.accept() // ended by Close
	return s
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
			if session := newSession(s, c); s.serve != nil {
				s.serve(session)
			} else {
				_ = session.serve(-1) // how the connection ended is for the controller to tell
			}
			_ = c.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.conns, c)
		}()
	}
}

func (s *Switch) commit(messages []Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range messages {
		if err := s.apply(m); err != nil {
			return fmt.Errorf("in a bundle: %w", err)
		}
	}
	s.commits++
	s.last = time.Now()
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}
