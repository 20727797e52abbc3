package command

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// A higher number logs more while it is set, also for loggers made before; a lower one takes nothing away.
func TestVerbosity(t *testing.T) {
	var out bytes.Buffer
	v := newVerbosity(slog.NewTextHandler(&out, nil))
	log := slog.New(v).With("a", 1).WithGroup("g")
	for _, step := range []struct {
		level uint32
		want  string
	}{{0, "info"}, {4, "debug info"}, {10, "debug info"}, {1, "info"}} {
		out.Reset()
		v.set(step.level)
		log.Debug("debug")
		log.Info("info")
		var got []string
		for line := range strings.Lines(out.String()) {
			_, msg, _ := strings.Cut(strings.TrimSpace(line), "msg=")
			msg, _, _ = strings.Cut(msg, " ")
			got = append(got, msg)
		}
		if strings.Join(got, " ") != step.want {
			t.Errorf("at %d: %v, want %s", step.level, got, step.want)
		}
	}
}

// The level can also be lowered, and klog's number 0 brings back what nkp started with.
func TestLevelIsLowered(t *testing.T) {
	v := newVerbosity(slog.NewTextHandler(new(bytes.Buffer), nil))
	log := slog.New(v).With("a", 1)
	for _, step := range []struct {
		change func()
		from   slog.Level
	}{
		{func() {}, slog.LevelInfo},
		{func() { v.from.Set(slog.LevelWarn) }, slog.LevelWarn},
		{func() { v.from.Set(slog.LevelDebug) }, slog.LevelDebug},
		{func() { v.set(0) }, slog.LevelInfo},
	} {
		step.change()
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			if log.Enabled(t.Context(), l) != (l >= step.from) {
				t.Errorf("from %s on: %s is wrong", step.from, l)
			}
		}
	}
}
