package ovsdb

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// A server that reads nothing holds up nobody who asks it, and the session ends.
func TestServerReadsNothing(t *testing.T) {
	near, far := net.Pipe() // without a buffer
	defer far.Close()
	s := newSession(near, 50*time.Millisecond)
	defer s.close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	asked := make(chan error, 1)
	go func() { // ends with the call
		var reply []any
		asked <- s.call(ctx, "echo", []any{"x"}, &reply)
	}()
	select {
	case err := <-asked:
		if !errors.Is(err, errLost) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the call goes on")
	}
	select {
	case <-s.lost:
	case <-ctx.Done():
		t.Error("the session goes on")
	}
}
