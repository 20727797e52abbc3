//go:build linux

package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// manager is a service manager's end of the socket.
type manager int

// inBubble runs f with a service manager, in a bubble of synctest. watchdog is the time that the manager asks
// for, 0 for none.
func inBubble(t *testing.T, watchdog time.Duration, f func(t *testing.T, m manager)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "")
	if watchdog > 0 {
		t.Setenv("WATCHDOG_USEC", fmt.Sprint(watchdog.Microseconds()))
		t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	}
	synctest.Test(t, func(t *testing.T) { f(t, manager(fd)) })
}

// said returns what the manager was told since the last call. The socket takes ten messages.
func (m manager) said(t *testing.T) (lines []string) {
	t.Helper()
	synctest.Wait()
	buf := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(int(m), buf, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(buf[:n])) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
}

func (m manager) want(t *testing.T, when string, lines ...string) {
	t.Helper()
	if got := m.said(t); !slices.Equal(got, lines) {
		t.Errorf("%s the service manager is told %q, want %q", when, got, lines)
	}
}

// It is ready when it says so, says what is new, and says when it stops.
func TestReadyAndStopping(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, m manager) {
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
		m.want(t, "at the start", "STATUS=waiting")
		time.Sleep(Patience / 2)
		m.want(t, "while nothing is new")
		ready.Store(true)
		time.Sleep(whileStarting)
		m.want(t, "when it is ready", "READY=1", "STATUS=serving")
		time.Sleep(time.Hour)
		m.want(t, "for an hour without news")
		stop()
		m.want(t, "at the end", "STOPPING=1")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A process that goes on as another program reloads; it does not stop.
func TestRestart(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, m manager) {
		ctx, restart := context.WithCancelCause(t.Context())
		go Run(ctx, func(context.Context) (Sign, error) { return Sign{Ready: true}, nil })
		m.want(t, "at the start", "READY=1")
		restart(fmt.Errorf("new settings: %w", ErrRestart))
		if got := m.said(t); len(got) != 2 || got[0] != "RELOADING=1" || !strings.HasPrefix(got[1], "MONOTONIC_USEC=") {
			t.Errorf("the service manager is told %q, want a reload and the time", got)
		}
	})
}

// Who is not ready counts as started after some patience.
func TestPatience(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, m manager) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go Run(ctx, func(context.Context) (Sign, error) { return Sign{}, nil })
		time.Sleep(Patience)
		m.want(t, "before its patience ends")
		time.Sleep(whileStarting)
		m.want(t, "after that", "READY=1")
	})
}

// The watchdog is fed with every sign, and starves when signs fail, do not come, or are of a service that is
// stuck.
func TestWatchdog(t *testing.T) {
	const watchdog, period = 15 * time.Second, 5 * time.Second
	inBubble(t, watchdog, func(t *testing.T, m manager) {
		var dead, hangs, stuck atomic.Bool
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go Run(ctx, func(ctx context.Context) (Sign, error) {
			if hangs.Load() {
				<-ctx.Done()
			}
			if dead.Load() {
				return Sign{}, errors.New("dead")
			}
			return Sign{Ready: true, Stuck: stuck.Load()}, ctx.Err()
		})
		m.want(t, "at the start", "WATCHDOG=1", "READY=1")
		time.Sleep(2 * period)
		m.want(t, "two periods later", "WATCHDOG=1", "WATCHDOG=1")
		for name, flag := range map[string]*atomic.Bool{"dead": &dead, "hangs": &hangs, "stuck": &stuck} {
			flag.Store(true)
			time.Sleep(2 * watchdog)
			m.want(t, name)
			flag.Store(false)
			time.Sleep(2 * period)
			if got := m.said(t); len(got) == 0 || got[0] != "WATCHDOG=1" {
				t.Errorf("no longer %s: the service manager is told %q", name, got)
			}
		}
	})
}

// A service that is stuck says so.
func TestStuck(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, m manager) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go Run(ctx, func(context.Context) (Sign, error) { return Sign{Stuck: true, Status: "bridge is stuck"}, nil })
		m.want(t, "at the start", "STATUS=bridge is stuck")
	})
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
