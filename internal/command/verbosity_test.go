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
