package health

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nkp-proxy/nkp/internal/httpguard"
	"github.com/nkp-proxy/nkp/k8s"
)

// The pause before nkp retries to listen on a port. It doubles from the first to the last. When nkp itself
// closes a port, it retries all others at once.
const (
	retryFirst = time.Second
	retryLast  = 30 * time.Second
)

// listeners are the open ports of Services. They belong to the goroutine of Run.
type listeners struct {
	services *Services
	open     map[listenKey]*listener
	waiting  map[listenKey]*failure
	serving  sync.WaitGroup // one for each goroutine in serve
}

type listener struct {
	server *http.Server
	err    atomic.Pointer[error] // why it stopped accepting although nkp did not close it; nil: it accepts
}

// failure is a port that cannot be listened on.
type failure struct {
	err   error
	pause time.Duration // until the next attempt, from the last one
	due   time.Time
}

// Run opens, keeps and closes the ports until the context ends; then it closes all of them and returns nil.
func (s *Services) Run(ctx context.Context) error {
	l := listeners{services: s, open: map[listenKey]*listener{}, waiting: map[listenKey]*failure{}}
	defer l.close()
	for {
		again := l.reconcile(ctx, s.wanted())
		select {
		case <-ctx.Done():
			return nil
		case <-s.news:
		case <-again:
		}
	}
}

// reconcile opens and closes ports so that the open ones are the wanted ones, as far as possible now. The
// channel fires when to retry; nil: no port failed.
func (l *listeners) reconcile(ctx context.Context, want map[listenKey]struct{}) <-chan time.Time {
	freed := false
	for k, o := range l.open {
		_, wanted := want[k]
		err := o.err.Load()
		if wanted && err == nil {
			continue
		}

		o.server.Close()
		delete(l.open, k)
		if !wanted {
			freed = true
		} else {
			l.fail(k, *err)
		}
	}

	for k := range l.waiting {
		if _, ok := want[k]; !ok {
			delete(l.waiting, k)
		}
	}

	now := time.Now()
	for _, k := range slices.SortedFunc(maps.Keys(want), listenKey.compare) {
		f := l.waiting[k]
		if l.open[k] != nil || f != nil && f.due.After(now) && !freed {
			continue
		}
		if err := l.listen(ctx, k); err != nil {
			l.fail(k, err)
		} else {
			delete(l.waiting, k)
		}
	}

	l.report()
	return l.next()
}

func (l *listeners) fail(k listenKey, err error) {
	f := l.waiting[k]
	if f == nil {
		f = &failure{}
		l.waiting[k] = f
	}
	f.err, f.pause = err, min(max(2*f.pause, l.services.opts.retry), retryLast)
	f.due = time.Now().Add(f.pause)
}

// next returns when the first port that waits is due.
func (l *listeners) next() <-chan time.Time {
	var first time.Time
	for _, f := range l.waiting {
		if first.IsZero() || f.due.Before(first) {
			first = f.due
		}
	}
	if first.IsZero() {
		return nil
	}
	return time.After(time.Until(first))
}

// listen opens one port. It skips a family that this machine does not support, without an error.
func (l *listeners) listen(ctx context.Context, k listenKey) error {
	network, family := "tcp4", k8s.IPv4
	if k.at.Addr().Is6() {
		network, family = "tcp6", k8s.IPv6
	}
	o := &listener{server: l.services.guard.Server(answer{l.services, k.name, family})}
	var lc net.ListenConfig
	socket, err := lc.Listen(ctx, network, k.at.String())
	if err != nil {
		if errors.Is(err, syscall.EAFNOSUPPORT) {
			l.open[k] = o
			return nil
		}
		return httpguard.Plain(err)
	}
	l.open[k] = o
	l.services.opts.Log.Debug("health check opened", "service", k.name, "address", k.at)
	l.serving.Go(func() { // until the server is closed
		if err := o.server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			o.err.Store(&err)
			l.services.news.Notify()
		}
	})
	return nil
}

// close ends all servers and waits for their goroutines. Answers under way are cut off.
func (l *listeners) close() {
	for _, o := range l.open {
		o.server.Close()
	}
	l.serving.Wait()
}

// report publishes the failures, and logs and reports new ones.
func (l *listeners) report() {
	failed := make(map[listenKey]error, len(l.waiting))
	for k, f := range l.waiting {
		failed[k] = f.err
	}

	s := l.services
	s.mu.Lock()
	before := s.failed
	s.failed = failed
	s.mu.Unlock()

	for _, k := range slices.SortedFunc(maps.Keys(failed), listenKey.compare) {
		err := failed[k]
		if old := before[k]; old != nil && old.Error() == err.Error() {
			continue
		}

		s.opts.Log.Error("cannot listen for a Service's health check; "+
			"load balancers consider this node unhealthy; will retry",
			"service", k.name, "address", k.at, "error", err)
		if s.opts.OnFailure != nil {
			s.opts.OnFailure(k.name, k.at, err)
		}
	}

	for k := range before {
		if l.open[k] != nil {
			s.opts.Log.Info("now listening for a Service's health check", "service", k.name, "address", k.at)
		}
	}
}
