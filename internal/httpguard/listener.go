package httpguard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// retry is how often an address that cannot be listened on is tried again, as in kube-proxy.
const retry = 5 * time.Second

// Listener serves a handler at an address. Run it once; Addr and Failure may be called from any goroutine.
type Listener struct {
	Serves string // what, for messages
	// At is the address to listen on. "": Run does not listen. Port 0: any that is free.
	At string
	// HardFail makes Run return an error if it cannot listen (kube-proxy's bindAddressHardFail); else it
	// tries again.
	HardFail bool
	// OnFailure, if set, is called once for each reason why it cannot listen. It must not block.
	OnFailure func(error)
	Guard     *Guard
	Handler   http.Handler
	TLS       *tls.Config // nil: plain HTTP

	mu      sync.Mutex // protects all below
	addr    string
	failure string
}

// Run listens and serves until the context ends, and returns nil then. An address that cannot be listened on
// is tried again every few seconds, or, with HardFail, is an error.
func (l *Listener) Run(ctx context.Context) error {
	if l.At == "" {
		return nil
	}

	for {
		err := l.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}

		err = fmt.Errorf("%s at %s: %w", l.Serves, l.At, err)
		if l.Failure() != err.Error() {
			l.Guard.log.Error("cannot serve "+l.Serves, "error", err, "retryEvery", retry)
			if l.OnFailure != nil {
				l.OnFailure(err)
			}
		}

		l.set("", err.Error())
		if l.HardFail {
			return err
		}

		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// serve returns when the context ends or listening fails.
func (l *Listener) serve(ctx context.Context) error {
	var lc net.ListenConfig
	socket, err := lc.Listen(ctx, "tcp", l.At) // 0.0.0.0 listens in both families, as kube-proxy does
	if err != nil {
		return Plain(err)
	}
	if l.TLS != nil {
		socket = tls.NewListener(socket, l.TLS)
	}
	l.set(socket.Addr().String(), "")
	defer l.set("", "")
	l.Guard.log.Info("serving "+l.Serves, "address", socket.Addr())
	server := l.Guard.Server(l.Handler)
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (l *Listener) set(addr, failure string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addr, l.failure = addr, failure
}

// Addr is where Run listens, "" if it does not (yet).
func (l *Listener) Addr() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr
}

// Failure returns why nothing is served; "": something is, or nothing need be.
func (l *Listener) Failure() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// Plain removes the address from an error of package net, because the callers' messages contain it anyway.
func Plain(err error) error {
	if e := (*net.OpError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}
