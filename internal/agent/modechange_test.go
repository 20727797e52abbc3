package agent

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/k8s/apiserver"
)

// Each reason to choose another data plane is a warning as long as it holds, for the node's own traffic too, and is announced once.
func TestLookForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		a := &Agent{log: slog.New(slog.NewTextHandler(&log, nil)), events: apiserver.NewLogRecorder("node-1", slog.New(slog.DiscardHandler))}
		ctx, stop := context.WithCancel(t.Context())
		var answer atomic.Value
		answer.Store("")
		go func() {
			_ = a.lookForAnother(ctx, time.Minute, &a.dropsChange, func(context.Context) string { return answer.Load().(string) })
		}()
		for _, step := range []struct {
			says string
			want []string
		}{{"", nil}, {"INPUT drops", []string{"INPUT drops"}}, {"INPUT drops", []string{"INPUT drops"}}, {"", nil}} {
			answer.Store(step.says)
			time.Sleep(time.Minute + time.Second) // past the look
			if got := a.modeChanges(); !slices.Equal(got, step.want) {
				t.Errorf("%q: %q", step.says, got)
			}
		}
		stop()
		synctest.Wait()
		if n := strings.Count(log.String(), "INPUT drops"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, &log)
		}
	})
}
