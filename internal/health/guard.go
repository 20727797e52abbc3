package health

import (
	"container/list"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// What a client may take up. A probe sends a few hundred bytes and is answered at once.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 10 * time.Second
	idleTimeout   = 90 * time.Second // probes come every few seconds, and may keep their connection
	maxHeader     = 8 << 10          // bytes
	maxConns      = 512              // of all servers of a guard together
)

// guard bounds how many connections a group of servers has at a time. Where there are too many it closes the one that
// has been silent for longest, so that whoever holds many open and says nothing keeps nobody else out.
type guard struct {
	most int
	log  *slog.Logger

	mu    sync.Mutex // protects all below
	conns map[net.Conn]*list.Element
	order list.List // of net.Conn, the one that was silent for longest first
}

func newGuard(most int, log *slog.Logger) *guard {
	return &guard{most: most, log: log, conns: map[net.Conn]*list.Element{}}
}

// server gives a server for the handler. Its connections count until they are closed.
func (g *guard) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         g.state,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
}

// state is the servers' ConnState hook.
func (g *guard) state(c net.Conn, s http.ConnState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.conns[c]
	switch {
	case s == http.StateClosed || s == http.StateHijacked:
		if e != nil {
			g.order.Remove(e)
			delete(g.conns, c)
		}
	case e != nil:
		g.order.MoveToBack(e)
	default:
		g.conns[c] = g.order.PushBack(c)
		if oldest := g.order.Front(); len(g.conns) > g.most {
			victim := oldest.Value.(net.Conn)
			g.order.Remove(oldest)
			delete(g.conns, victim)
			victim.Close() // its server notices
		}
	}
}
