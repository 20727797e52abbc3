package ofctrltest

import (
	"bufio"
	"net"
	"sync"
)

// Proxy stands between controllers and a switch, and hands a test every message that passes.
type Proxy struct {
	l  net.Listener
	to string
	h  Handlers

	mu    sync.Mutex // protects pairs
	pairs map[*Pair]bool
}

// Handlers treat what passes a Proxy. Each is called from goroutines of its own for each connection, and passes on what shall pass.
type Handlers struct {
	// Connected is called with each new connection; it may be nil.
	Connected func(*Pair)
	// FromController and FromSwitch are called with each message.
	FromController, FromSwitch func(*Pair, Message)
}

// Pair is a controller's connection and the one to the switch that goes with it. Its methods may be called from any goroutine.
type Pair struct {
	Controller, Switch *Side
}

// Close ends both connections.
func (p *Pair) Close() {
	_ = p.Controller.conn.Close() // the other side may have been first
	_ = p.Switch.conn.Close()
}

// Side is one end of a Pair.
type Side struct {
	conn net.Conn
	mu   sync.Mutex // orders writes
}

// Write sends whole messages.
func (s *Side) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn.Write(b)
}

// Intercept listens at a unix socket, and connects each controller there to the switch at another. Close ends it.
func Intercept(path, to string, h Handlers) (*Proxy, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	p := &Proxy{l: l, to: to, h: h, pairs: map[*Pair]bool{}}
	go p.accept() // ended by Close
	return p, nil
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() error {
	err := p.l.Close()
	p.Cut()
	return err
}

// Cut ends all connections; new ones are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		pair.Close()
	}
	clear(p.pairs)
}

func (p *Proxy) accept() {
	for {
		near, err := p.l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("unix", p.to)
		if err != nil {
			_ = near.Close() // as a switch that is away
			continue
		}
		pair := &Pair{Controller: &Side{conn: near}, Switch: &Side{conn: far}}
		p.mu.Lock()
		p.pairs[pair] = true
		p.mu.Unlock()
		go p.pass(pair, near, p.h.FromController) // these end with either connection
		go p.pass(pair, far, p.h.FromSwitch)
		if p.h.Connected != nil {
			go p.h.Connected(pair)
		}
	}
}

// pass hands over what comes from one side.
func (p *Proxy) pass(pair *Pair, from net.Conn, handle func(*Pair, Message)) {
	defer func() {
		pair.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.pairs, pair)
	}()
	r := bufio.NewReaderSize(from, 1<<17)
	for {
		m, err := readMessage(r)
		if err != nil {
			return
		}
		handle(pair, m)
	}
}
