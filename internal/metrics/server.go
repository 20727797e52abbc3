package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/httpguard"
)

// ServerOptions are the settings of a Server.
type ServerOptions struct {
	// Addr is the address to listen on, 127.0.0.1:10249 in kube-proxy. "": Run does not listen. Port 0: any that is free.
	Addr string
	// HardFail makes Run return an error if it cannot listen (kube-proxy's bindAddressHardFail); else it tries again.
	HardFail bool
	// OnFailure, if set, is called once for each reason why it cannot listen. It must not block.
	OnFailure func(error)
	// Profiling adds /debug/pprof and /debug/flags/v.
	Profiling bool
	// ProxyMode is the answer of /proxyMode.
	ProxyMode string
	// Config returns the configurations for /configz by their group, as values that can be encoded as JSON. nil: none.
	Config func() map[string]any
	// SetVerbosity changes how much is logged, by klog's number, for /debug/flags/v. nil: that path does not exist.
	SetVerbosity func(level uint32)
	Log          *slog.Logger
}

// bindRetry is how often an address that cannot be listened on is tried again, as in kube-proxy.
const bindRetry = 5 * time.Second

// answerTimeout is how long an answer may take, except for profiles, which take as long as requested.
const answerTimeout = 30 * time.Second

// limits of all clients. A scrape of 10,000 Services takes some 10 MB while it is being answered.
var limits = httpguard.Limits{Conns: 512, Serving: 32}

// Server serves Metrics and the other paths of kube-proxy's metrics port. Create it with NewServer; Run it once.
type Server struct {
	opts    ServerOptions
	handler http.Handler

	mu      sync.Mutex // protects all below
	addr    string     // where Run listens; "": nowhere
	failure string     // why it does not; "": it does, or need not
}

// NewServer returns a Server for the Metrics.
func NewServer(m *Metrics, o ServerOptions) *Server {
	return &Server{opts: o, handler: newHandler(m, &o)}
}

// Handler serves everything but the listening.
func (s *Server) Handler() http.Handler { return s.handler }

// Run listens and serves until the context ends, and returns nil then. An address that cannot be listened on is tried
// again every few seconds, or, with HardFail, is an error.
func (s *Server) Run(ctx context.Context) error {
	if s.opts.Addr == "" {
		return nil
	}
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		err = fmt.Errorf("metrics server at %s: %w", s.opts.Addr, err)
		if s.failed(err.Error()) {
			s.opts.Log.Error("cannot serve metrics", "error", err, "retryEvery", bindRetry)
			if s.opts.OnFailure != nil {
				s.opts.OnFailure(err)
			}
		}
		if s.opts.HardFail {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(bindRetry):
		}
	}
}

// serve returns when the context ends or listening fails.
func (s *Server) serve(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.opts.Addr)
	if err != nil {
		if e := (*net.OpError)(nil); errors.As(err, &e) {
			return e.Err // the caller adds the address
		}
		return err
	}
	s.listens(l.Addr().String())
	defer s.listens("")
	s.opts.Log.Info("serving metrics", "address", l.Addr())
	server := httpguard.New(limits, s.opts.Log).Server(s.handler)
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// failed records why nothing is served, and reports whether that is new.
func (s *Server) failed(why string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.failure
	s.failure = why
	return before != why
}

func (s *Server) listens(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr = addr
	if addr != "" {
		s.failure = ""
	}
}

// Addr is where Run listens, "" if it does not (yet).
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Failure returns why nothing is served; "": something is, or nothing need be.
func (s *Server) Failure() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}
