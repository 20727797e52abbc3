//go:build linux

package ofctrl

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// However long a switch on this machine was away, it is looked for every absentPause, and its absence is
// logged only now and then.
func TestSwitchIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer // written by Run, which has ended when it is read
		attempts := 0
		c := NewClient(Target{Network: "unix", Address: "/nonexistent"}, ClientOptions{
			Options:  Options{Log: slog.New(slog.NewTextHandler(&log, nil))},
			OnAbsent: func() { attempts++ },
		})
		const away = time.Minute - 1
		ctx, cancel := context.WithTimeout(t.Context(), away)
		defer cancel()
		if err := c.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		// A restart of ovs-vswitchd is an outage until it is found. An attempt costs microseconds, but not nothing.
		if attempts < 2000 || attempts > 10000 {
			t.Errorf("%d attempts in %v", attempts, away)
		}
		if n, want := strings.Count(log.String(), "OpenFlow connection failed"), int(away/repeatWarning)+1; n < 1 || n > want {
			t.Errorf("the absence is logged %d times, want at most %d:\n%s", n, want, log.String())
		}
	})
}
