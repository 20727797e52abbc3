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

// maxLogged bounds how many ports that cannot be listened on are logged and reported at a time.
const maxLogged = 20

// failure is why a port is not listened on.
type failure struct {
	err   error         // nil: there was no attempt, or it is listened on
	free  bool          // the last attempt found the port free
	pause time.Duration // before the next attempt; 0: none has failed
	due   time.Time     // of the next attempt
}

// due returns the ports to try now, sorted by name, and how many of them may get a listener.
func (p *Proxy) due(now time.Time) (list []*port, room int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	room = p.opts.Limits.Listeners
	for _, q := range p.ports {
		if q.listener != nil {
			room--
		} else if !q.failed.due.After(now) {
			list = append(list, q)
		}
	}
	slices.SortFunc(list, func(a, b *port) int { return a.name.Compare(b.name) })
	return list, room
}

// open listens on the ports that are due. The channel fires when to try the others; nil: there are none.
func (p *Proxy) open(ctx context.Context) <-chan time.Time {
	list, room := p.due(time.Now())
	logged := 0
	for i, q := range list {
		var problem string
		if i < room { // one that fails takes room, too, for now
			problem = p.listen(ctx, q)
		} else {
			problem = p.full(q)
		}

		if problem == "" {
			continue
		}
		if logged++; logged <= maxLogged {
			p.opts.Log.Warn(problem, "service", q.name)
			if p.opts.OnFailure != nil {
				p.opts.OnFailure(q.name, problem)
			}
		}
	}

	if logged > maxLogged {
		p.opts.Log.Warn("more NodePorts are not served at [::1]: nkp status names them",
			"more", logged-maxLogged)
	}
	return p.next()
}

// full records that a port is beyond Limits.Listeners, and returns that if it is new. The port is tried again
// when another one goes.
func (p *Proxy) full(q *port) (problem string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.failed.err == nil {
		q.failed.err = fmt.Errorf("nkp listens for %d NodePorts at most", p.opts.Limits.Listeners)
		problem = q.text()
	}
	return problem
}

// listen tries to listen on a port, and serves it. It returns why that failed, unless the attempt before has
// failed, too.
func (p *Proxy) listen(ctx context.Context, q *port) (problem string) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp6", netip.AddrPortFrom(k8s.Loopback6, q.number).String())

	p.mu.Lock()
	defer p.mu.Unlock()
	f, again := &q.failed, q.failed.pause != 0
	switch {
	case q.gone || ctx.Err() != nil:
		if err == nil {
			_ = l.Close()
		}
	case err != nil:
		p.figures.Failures++
		*f = failure{err: httpguard.Plain(err), pause: min(max(2*f.pause, p.opts.retry), retryLast)}
		f.due = time.Now().Add(f.pause)
		if !again {
			problem = q.text()
		}
	case again && !f.free:
		_ = l.Close()
		f.free, f.due = true, time.Now().Add(p.opts.retry)
	default:
		if again {
			p.opts.Log.Info("now listening for a NodePort at [::1]", "service", q.name, "port", q.number)
		}
		q.listener, *f = l, failure{}
		p.serving.Go(func() { p.accept(ctx, q, l) })
	}
	return problem
}

// next returns when the first port that waits is due.
func (p *Proxy) next() <-chan time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first time.Time
	for _, q := range p.ports {
		if due := q.failed.due; !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	if first.IsZero() {
		return nil
	}
	return time.After(time.Until(first))
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
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
		}
	}
}
