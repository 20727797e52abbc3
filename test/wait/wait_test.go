package wait_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nkp-proxy/nkp/test/wait"
)

// failing records a failure instead of failing the test. Fatalf ends the goroutine, as testing.T's does, by a panic.
type failing struct {
	*testing.T
	text string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	panic(f)
}

// fails returns what f fails with.
func fails(t *testing.T, f func(wait.TB)) string {
	t.Helper()
	tb := &failing{T: t}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(tb) {
				panic(r)
			}
		}()
		f(tb)
	}()
	return tb.text
}

// An event that happens ends the wait; one that never does fails the test at Limit, with its name and the last error.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		wait.For(t, "the tenth call", func() bool { calls++; return calls == 10 })
		if calls != 10 {
			t.Errorf("%d calls", calls)
		}
		for name, tc := range map[string]struct {
			wait func(wait.TB)
			want string
		}{
			"For":     {func(t wait.TB) { wait.For(t, "never", func() bool { return false }) }, "never: after 1m0s"},
			"NoError": {func(t wait.TB) { wait.NoError(t, "never", func() error { return errors.New("broken") }) }, "broken"},
			"Receive": {func(t wait.TB) { wait.Receive(t, "an event", make(chan int)) }, "an event: nothing came"},
			"Closed":  {func(t wait.TB) { wait.Closed(t, "the end", make(chan int)) }, "the end: not in 1m0s"},
		} {
			if got := fails(t, tc.wait); !strings.Contains(got, tc.want) {
				t.Errorf("%s fails with %q, want %q", name, got, tc.want)
			}
		}
		closed := make(chan int)
		close(closed)
		wait.Closed(t, "nothing", closed)
		if got := fails(t, func(t wait.TB) { wait.Receive(t, "an event", closed) }); !strings.Contains(got, "closed") {
			t.Errorf("a closed channel: %q", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := wait.Until(ctx, func() error { return errors.New("broken") }); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of the context: %v", err)
		}
	})
}

// A cleanup waits as a test does, although the test's context has ended by then.
func TestWaitsInCleanup(t *testing.T) {
	calls := 0
	t.Run("", func(t *testing.T) {
		t.Cleanup(func() { wait.For(t, "the third call", func() bool { calls++; return calls == 3 }) })
	})
	if calls != 3 {
		t.Errorf("%d calls", calls)
	}
}
