package command

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"strconv"

	"k8s.io/klog/v2"
)

// verbosity is a handler whose level can be changed while nkp runs: by nkp log-level, and by PUT
// /debug/flags/v. It begins with the level of the handler that it wraps.
type verbosity struct {
	slog.Handler
	from  *slog.LevelVar
	start slog.Level
}

// debugVerbosity is klog's number for debugging output.
const debugVerbosity = 4

func newVerbosity(h slog.Handler) *verbosity {
	levels := []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}
	i := slices.IndexFunc(levels, func(l slog.Level) bool { return h.Enabled(context.Background(), l) })
	v := &verbosity{Handler: h, from: &slog.LevelVar{}, start: levels[max(i, 0)]}
	v.from.Set(v.start)
	return v
}

// set applies klog's number: 4 and above log what --log-level debug does, and as much of client-go's; lower
// ones what nkp started with.
func (v *verbosity) set(level uint32) {
	if level >= debugVerbosity {
		v.from.Set(slog.LevelDebug)
	} else {
		v.from.Set(v.start)
	}
	var k klog.Level
	_ = k.Set(strconv.FormatUint(uint64(min(level, math.MaxInt32)), 10)) // a number in range does not fail
}

// Enabled is part of slog.Handler.
func (v *verbosity) Enabled(_ context.Context, l slog.Level) bool { return l >= v.from.Level() }

// WithAttrs is part of slog.Handler.
func (v *verbosity) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &verbosity{v.Handler.WithAttrs(attrs), v.from, v.start}
}

// WithGroup is part of slog.Handler.
func (v *verbosity) WithGroup(name string) slog.Handler {
	return &verbosity{v.Handler.WithGroup(name), v.from, v.start}
}
