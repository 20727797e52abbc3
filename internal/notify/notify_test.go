//go:build linux

package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// manager is a service manager's end of the socket.
func manager(t *testing.T, watchdog time.Duration) (messages <-chan string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "")
	if watchdog > 0 {
		t.Setenv("WATCHDOG_USEC", fmt.Sprint(watchdog.Microseconds()))
		t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	}
	c := make(chan string, 1000)
	go func() { // ends with conn
		defer close(c)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			for line := range strings.Lines(string(buf[:n])) {
				c <- strings.TrimSpace(line)
			}
		}
	}()
	return c
}

// next waits for a message.
func next(t *testing.T, messages <-chan string) string {
	t.Helper()
	select {
	case m := <-messages:
		return m
	case <-time.After(5 * time.Second):
		t.Fatal("no message within 5 s")
		return ""
	}
}

func want(t *testing.T, messages <-chan string, list ...string) {
	t.Helper()
	for _, w := range list {
		if got := next(t, messages); got != w {
			t.Fatalf("the service manager is told %q, want %q", got, w)
		}
	}
}

// It is ready when it says so, says what is new, and says when it stops.
func TestReadyAndStopping(t *testing.T) {
	messages := manager(t, 0)
	var ready atomic.Bool
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, func(context.Context) (Sign, error) {
			if ready.Load() {
				return Sign{Ready: true, Status: "serving"}, nil
			}
			return Sign{Status: "waiting"}, nil
		})
	}()
	want(t, messages, "STATUS=waiting")
	time.Sleep(3 * whileStarting)
	ready.Store(true)
	want(t, messages, "READY=1", "STATUS=serving")
	stop()
	want(t, messages, "STOPPING=1")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A process that goes on as another program reloads; it does not stop.
func TestRestart(t *testing.T) {
	messages := manager(t, 0)
	ctx, restart := context.WithCancelCause(t.Context())
	go Run(ctx, func(context.Context) (Sign, error) { return Sign{Ready: true}, nil })
	want(t, messages, "READY=1")
	restart(fmt.Errorf("new settings: %w", ErrRestart))
	want(t, messages, "RELOADING=1")
	if got := next(t, messages); !strings.HasPrefix(got, "MONOTONIC_USEC=") {
		t.Errorf("the service manager is told %q, want the time", got)
	}
}

// Who is not ready counts as started after some patience.
func TestPatience(t *testing.T) {
	messages := manager(t, 0)
	r := reporter{sign: func(context.Context) (Sign, error) { return Sign{}, nil }, patience: time.Now().Add(-time.Second), period: time.Minute}
	if wait, err := r.report(t.Context()); err != nil || wait != time.Minute {
		t.Errorf("the next sign is after %v, %v", wait, err)
	}
	want(t, messages, "READY=1")
}

// The watchdog is fed with every sign, and starves when signs fail or do not come.
func TestWatchdog(t *testing.T) {
	messages := manager(t, 300*time.Millisecond)
	var dead, hangs atomic.Bool
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go Run(ctx, func(ctx context.Context) (Sign, error) {
		if hangs.Load() {
			<-ctx.Done()
		}
		if dead.Load() {
			return Sign{}, errors.New("dead")
		}
		return Sign{Ready: true}, ctx.Err()
	})
	want(t, messages, "WATCHDOG=1", "READY=1", "WATCHDOG=1", "WATCHDOG=1")
	for name, flag := range map[string]*atomic.Bool{"dead": &dead, "hangs": &hangs} {
		flag.Store(true)
		time.Sleep(200 * time.Millisecond) // two signs
		for len(messages) > 0 {
			<-messages
		}
		select {
		case m := <-messages:
			t.Errorf("%s: the service manager is told %q", name, m)
		case <-time.After(500 * time.Millisecond):
		}
		flag.Store(false)
		want(t, messages, "WATCHDOG=1")
	}
}

// A service that is stuck says so, and does not feed the watchdog.
func TestStuck(t *testing.T) {
	messages := manager(t, time.Minute)
	r := reporter{sign: func(context.Context) (Sign, error) { return Sign{Stuck: true, Status: "bridge is stuck"}, nil }, patience: time.Now().Add(time.Hour),
		period: time.Minute, watchdog: true}
	if _, err := r.report(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, messages, "STATUS=bridge is stuck")
	if len(messages) > 0 {
		t.Errorf("the service manager is told %q", <-messages)
	}
}

// Without a service manager nothing happens.
func TestNobodyListens(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Run(t.Context(), func(context.Context) (Sign, error) {
		t.Error("a sign is asked for")
		return Sign{}, nil
	}); err != nil {
		t.Error(err)
	}
}
