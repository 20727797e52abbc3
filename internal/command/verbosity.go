package command

import (
	"context"
	"log/slog"
	"math"
	"strconv"

	"k8s.io/klog/v2"
)

// verbosity is a handler that logs more than the wrapped one after PUT /debug/flags/v. It never logs less.
type verbosity struct {
	slog.Handler
	from *slog.LevelVar // logged in any case
}

// debugVerbosity is klog's number for debugging output.
const debugVerbosity = 4

func newVerbosity(h slog.Handler) *verbosity {
	v := &verbosity{h, &slog.LevelVar{}}
	v.from.Set(math.MaxInt32)
	return v
}

// set takes klog's number: 4 and above log what --log-level debug does, and as much of client-go's.
func (v *verbosity) set(level uint32) {
	if level >= debugVerbosity {
		v.from.Set(slog.LevelDebug)
	} else {
		v.from.Set(math.MaxInt32)
	}
	var k klog.Level
	_ = k.Set(strconv.FormatUint(uint64(min(level, math.MaxInt32)), 10)) // a number in range does not fail
}

// Enabled is part of slog.Handler.
func (v *verbosity) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= v.from.Level() || v.Handler.Enabled(ctx, l)
}

// WithAttrs is part of slog.Handler.
func (v *verbosity) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &verbosity{v.Handler.WithAttrs(attrs), v.from}
}

// WithGroup is part of slog.Handler.
func (v *verbosity) WithGroup(name string) slog.Handler {
	return &verbosity{v.Handler.WithGroup(name), v.from}
}
