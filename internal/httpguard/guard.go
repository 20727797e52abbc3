package httpguard

import (
	"container/list"
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// What a client may take up. A probe sends a few hundred bytes.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second // header and body
	// probes and scrapes come every few seconds, and may keep their connection
	idleTimeout = 90 * time.Second
	maxHeader   = 8 << 10 // bytes
)

// Limits bound what the clients of a group of servers take up.
type Limits struct {
	// Conns is the number of connections, Serving of those whose request is being answered.
	Conns, Serving int
	// Answer is how long an answer may take, the time in which the client reads it included. 0: as long as it
	// takes.
	Answer time.Duration
}

// Guard bounds how many connections a group of servers has at a time. A new one is always taken. Beyond
// Limits.Conns the connection goes that waits for its client and has been silent for longest; beyond
// Limits.Serving the one whose request has been answered for longest. Many clients that say nothing, or read
// nothing, thus keep each other out, and not a probe: its request is there at once, and then only that many
// later requests, all unanswered, could push it out. Local clients cannot be told apart by their address, so
// that no share is reserved for any of them.
type Guard struct {
	limits Limits
	log    *slog.Logger

	mu      sync.Mutex // protects all below
	conns   map[net.Conn]*entry
	waiting list.List // of net.Conn: no request is being answered; the one that was silent for longest first
	serving list.List // of net.Conn: the one that is being answered for longest first
}

// entry is where a connection is.
type entry struct {
	in *list.List
	at *list.Element
}

// New returns a Guard without servers. What goes wrong with connections is logged at level debug.
func New(l Limits, log *slog.Logger) *Guard {
	return &Guard{limits: l, log: log, conns: map[net.Conn]*entry{}}
}

type connKey struct{}

// Server returns a server for the handler. Its connections count until they are closed.
func (g *Guard) Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := r.Context().Value(connKey{}).(net.Conn)
			g.move(c, &g.serving)
			defer g.move(c, &g.waiting)
			h.ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      g.limits.Answer,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         g.state,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
}

// Len returns the number of connections.
func (g *Guard) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

// state is the servers' ConnState hook.
func (g *Guard) state(c net.Conn, s http.ConnState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case s == http.StateClosed || s == http.StateHijacked:
		g.drop(c)
	case s == http.StateNew:
		g.conns[c] = &entry{&g.waiting, g.waiting.PushBack(c)}
		if len(g.conns) > g.limits.Conns {
			oldest := g.waiting.Front()
			if oldest.Value == net.Conn(c) && g.serving.Len() > 0 {
				oldest = g.serving.Front()
			}
			g.evict(oldest)
		}
	}
}

// move puts a connection at the end of a list.
func (g *Guard) move(c net.Conn, to *list.List) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.conns[c]
	if e == nil {
		return // evicted meanwhile
	}
	e.in.Remove(e.at)
	e.in, e.at = to, to.PushBack(c)
	if g.serving.Len() > g.limits.Serving {
		g.evict(g.serving.Front())
	}
}

// evict closes a connection; its server notices.
func (g *Guard) evict(at *list.Element) {
	c := at.Value.(net.Conn)
	g.drop(c)
	_ = c.Close()
}

func (g *Guard) drop(c net.Conn) {
	if e := g.conns[c]; e != nil {
		e.in.Remove(e.at)
		delete(g.conns, c)
	}
}
