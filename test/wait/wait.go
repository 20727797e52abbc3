package wait

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Limit ends a wait for an event that must happen. It is the only time limit of the tests: far longer than any wait takes on a
// machine that is busy with other work, so that only a hang reaches it. NKP_WAIT_LIMIT is another one, for machines that are emulated.
var Limit = limit()

func limit() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("NKP_WAIT_LIMIT")); err == nil && d > 0 {
		return d
	}
	return 60 * time.Second
}

// TB is the part of testing.TB that the waits need; it keeps package testing out of programs that use a test bed.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Context() context.Context
}

// For polls ok until it returns true. After Limit the test fails with what did not happen.
func For(t TB, what string, ok func() bool) {
	t.Helper()
	NoError(t, what, func() error {
		if ok() {
			return nil
		}
		return errNotYet
	})
}

var errNotYet = fmt.Errorf("it has not happened")

// NoError polls check until it returns nil. After Limit the test fails with what did not happen and check's last error.
func NoError(t TB, what string, check func() error) {
	t.Helper()
	ctx := t.Context()
	if ctx.Err() != nil { // in a cleanup: the test's context has ended before
		ctx = context.Background()
	}
	if err := Until(ctx, check); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// Until polls check until it returns nil, until Limit, or until ctx ends, and returns check's last error. The pauses between calls
// grow from 2 ms to 300 ms, because many checks start a program.
func Until(ctx context.Context, check func() error) error {
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	pause := 2 * time.Millisecond
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-timer.C:
			return fmt.Errorf("after %v: %w", Limit, err)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(pause):
			pause = min(pause+pause/4+time.Millisecond, 300*time.Millisecond)
		}
	}
}

// Receive returns the next value from c. If none comes before Limit, or c is closed, the test fails with what did not come.
func Receive[T any](t TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-c:
		if !ok {
			t.Fatalf("waiting for %s: the channel is closed", what)
		}
		return v
	case <-time.After(Limit):
	}
	t.Fatalf("waiting for %s: nothing came in %v", what, Limit)
	panic("unreachable")
}

// Closed waits until c is closed, or has a value. After Limit the test fails with what did not end.
func Closed[T any](t TB, what string, c <-chan T) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(Limit):
		t.Fatalf("waiting for %s: not in %v", what, Limit)
	}
}

// Context returns a context that ends after Limit, or when the test ends: for a call that must return by itself.
func Context(t interface {
	TB
	Cleanup(func())
}) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	t.Cleanup(cancel)
	return ctx
}
