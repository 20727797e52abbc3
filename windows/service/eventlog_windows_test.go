package service

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// Records of the level and above go to the event log, with attributes and groups, by several handlers of one log.
func TestEventLog(t *testing.T) {
	h, err := EventLog(slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	if IsService() {
		t.Error("this test is taken for a service")
	}
	ctx := context.Background()
	if h.Enabled(ctx, slog.LevelDebug) || !h.Enabled(ctx, slog.LevelInfo) {
		t.Error("the level is not observed")
	}
	for _, h := range []slog.Handler{h, h.WithAttrs([]slog.Attr{slog.String("a", "b")}), h.WithGroup("g")} {
		for _, l := range []slog.Level{slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			if err := h.Handle(ctx, slog.NewRecord(time.Now(), l, "message", 0)); err != nil {
				t.Errorf("%v: %v", l, err)
			}
		}
	}
	if got := h.(eventHandler).w.buf.String(); got != "msg=message\n" {
		t.Errorf("the text of an event is %q", got)
	}
}
