package localhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/httpguard"
	"github.com/nkp-proxy/nkp/k8s"
)

// The pause before nkp tries again to listen on a port that another process has. It doubles from the first to
// the last. The port must be free twice, with the first pause between, so that a process which is restarted
// gets its port back.
const (
	retryFirst = 30 * time.Second
	retryLast  = 5 * time.Minute
)

// acceptPause follows an error of accept, which may pass: the process has no descriptor left.
const acceptPause = 100 * time.Millisecond

// errFull is why a port beyond Limits.Listeners is not listened on.
var errFull = errors.New("nkp listens for at most")

// due returns the ports to try now, sorted by name, and how many of them may get a listener.
func (p *Proxy) due(now time.Time) (list []*port, room int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	room = p.opts.Limits.Listeners
	for _, q := range p.ports {
		if q.listener != nil {
			room--
		} else if !q.due.After(now) {
			list = append(list, q)
		}
	}
	slices.SortFunc(list, func(a, b *port) int { return a.name.Compare(b.name) })
	return list, room
}

// open listens on the ports that are due.
func (p *Proxy) open(ctx context.Context) {
	list, room := p.due(time.Now())
	for i, q := range list {
		var l net.Listener
		err := fmt.Errorf("%w %d NodePorts there", errFull, p.opts.Limits.Listeners)
		if i < room { // one that fails takes room, too, for now
			var config net.ListenConfig
			l, err = config.Listen(ctx, "tcp6", netip.AddrPortFrom(k8s.Loopback6, q.number).String())
		}

		if problem := p.opened(ctx, q, l, err); problem != "" {
			p.opts.Log.Warn(problem, "service", q.name)
			if p.opts.OnFailure != nil {
				p.opts.OnFailure(q.name, problem)
			}
		}
	}
}

// opened serves a port that is listened on, or records why it is not, and returns that if it is new. A port
// that is beyond the limit is tried again whenever another one goes.
func (p *Proxy) opened(ctx context.Context, q *port, l net.Listener, err error) (problem string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.gone || ctx.Err() != nil {
		if l != nil {
			_ = l.Close()
		}
		return ""
	}

	before := q.err
	switch {
	case errors.Is(err, errFull):
		q.err = err
	case err != nil:
		p.figures.Failures++
		q.err, q.free = httpguard.Plain(err), false
		q.pause = min(max(2*q.pause, retryFirst), retryLast)
		q.due = time.Now().Add(q.pause)
	case q.pause != 0 && !q.free:
		_ = l.Close()
		q.free, q.due = true, time.Now().Add(retryFirst)
	default:
		q.listener, q.err, q.pause = l, nil, 0
		p.serving.Go(func() { p.accept(ctx, q, l) })
	}
	if before == nil && q.err != nil {
		return q.text()
	}
	return ""
}

// accept serves a listener until it is closed.
func (p *Proxy) accept(ctx context.Context, q *port, l net.Listener) {
	for {
		client, err := l.Accept()
		switch {
		case err == nil:
			p.serve(ctx, q, client.(*net.TCPConn))
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(acceptPause)
		}
	}
}
