package command

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// redirectKlog sends client-go's log to ours, a level lower, because the source itself reports its important
// errors.
func redirectKlog(log *slog.Logger) { klog.SetSlogLogger(slog.New(lower{log.Handler()})) }

// lower is a handler that lowers each record by one level: info to debug, errors to warnings.
type lower struct{ slog.Handler }

func (l lower) level(level slog.Level) slog.Level { return level - 4 } // the distance of slog's named levels

func (l lower) Enabled(ctx context.Context, level slog.Level) bool {
	return l.Handler.Enabled(ctx, l.level(level))
}

func (l lower) Handle(ctx context.Context, r slog.Record) error {
	r.Level = l.level(r.Level)
	return l.Handler.Handle(ctx, r)
}

func (l lower) WithAttrs(attrs []slog.Attr) slog.Handler { return lower{l.Handler.WithAttrs(attrs)} }
func (l lower) WithGroup(name string) slog.Handler       { return lower{l.Handler.WithGroup(name)} }
