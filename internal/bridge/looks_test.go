package bridge

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/pipeline"
)

// An audit, and the changes that wait for its next pause, go on however many ask without end.
func TestLooksEnd(t *testing.T) {
	p := New(Settings{Layout: pipeline.DefaultLayout()}, nil, noHooks(), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 8 {
		go func() { // ends with ctx
			for ctx.Err() == nil {
				_ = p.ask(ctx, func() { time.Sleep(time.Millisecond) })
			}
		}()
	}
	done := make(chan struct{})
	go func() {
		time.Sleep(10 * time.Millisecond) // they wait by now
		p.answerLooks(ctx)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("questions hold up the loop")
	}
}
