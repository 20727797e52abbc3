package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
)

// settle is how long a session collects changes before it lists: one transaction
// comes as many events.
const settle = 5 * time.Millisecond

var (
	errLost   = errors.New("connection lost")
	errSilent = errors.New("the server does not answer")
)

// session is one connection with its monitor. libovsdb could reconnect by itself,
// but its Close does not end a client that is between two connections; a client
// for each connection also begins with an empty cache.
type session struct {
	cli   client.Client
	dirty chan struct{} // capacity 1: something has changed
	lost  chan struct{} // closed when the connection is gone
	quit  chan struct{} // closed by close
}

// open connects and lists everything; ctx bounds both.
func open(ctx context.Context, o Options) (*session, error) {
	m, err := newModel()
	if err != nil {
		return nil, err
	}
	endpoint, err := parseEndpoint(o.Endpoint)
	if err != nil {
		return nil, err
	}
	cli, err := client.NewOVSDBClient(m, client.WithEndpoint(endpoint), client.WithTLSConfig(o.TLS))
	if err != nil {
		return nil, err
	}
	s := &session{cli: cli, dirty: make(chan struct{}, 1), lost: make(chan struct{}), quit: make(chan struct{})}
	go s.watch()
	if err := s.start(ctx); err != nil {
		s.close()
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", errSilent, ctx.Err())
		}
		return nil, err
	}
	return s, nil
}

func (s *session) start(ctx context.Context) error {
	if err := s.cli.Connect(ctx); err != nil {
		return err
	}
	c := s.cli.Cache()
	if c == nil {
		return errLost
	}
	c.AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(string, model.Model) { s.touch() },
		UpdateFunc: func(string, model.Model, model.Model) { s.touch() },
		DeleteFunc: func(string, model.Model) { s.touch() },
	})
	_, err := s.cli.Monitor(ctx, newMonitor())
	return err
}

func (s *session) touch() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// watch listens all the time, for libovsdb says only once that it is
// disconnected. It ends with the connection or with close.
func (s *session) watch() {
	select {
	case <-s.cli.DisconnectNotify():
	case <-s.quit:
	}
	close(s.lost)
}

func (s *session) close() {
	close(s.quit)
	s.cli.Close()
}

// serve calls refresh after each change until the connection is lost, the server
// does not answer, or ctx ends.
func (s *session) serve(ctx context.Context, o Options, refresh func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := make(chan error, 1)
	go s.probe(ctx, o, silent) // ends with ctx
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.lost:
			return errLost
		case err := <-silent:
			return err
		case <-s.dirty:
		}
		if err := sleep(ctx, settle); err != nil {
			return err
		}
		if err := refresh(ctx); err != nil {
			return err
		}
	}
}

// probe sends an empty transaction each interval and reports the first that is
// not answered. It is what libovsdb has for an echo request: its Echo reads the
// answer, when the context ends, while that may still be coming in.
func (s *session) probe(ctx context.Context, o Options, silent chan<- error) {
	for {
		if sleep(ctx, o.ProbeInterval) != nil {
			return
		}
		probe, cancel := context.WithTimeout(ctx, o.Timeout)
		_, err := s.cli.Transact(probe)
		late := probe.Err()
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if late != nil {
				err = fmt.Errorf("%w: silent for %s", errSilent, o.Timeout)
			}
			silent <- err
			return
		}
	}
}

// sleep waits for d or for the end of ctx, whose error it then returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// list reads the whole cache. Rows of one transaction may still be missing; the
// events of those follow.
func (s *session) list(ctx context.Context) (r rows, err error) {
	// List fills a nil slice with everything, another one up to its capacity.
	for _, to := range []any{&r.roots, &r.bridges, &r.ports, &r.interfaces} {
		if err := s.cli.List(ctx, to); err != nil {
			return rows{}, err
		}
	}
	return r, nil
}
