package service

import (
	"bytes"
	"context"
	"log/slog"
	"sync"

	"golang.org/x/sys/windows/svc/eventlog"
)

// eventID is the number of all events; eventlog.InstallAsEventCreate allows 1 to 1000.
const eventID = 1

// EventLog returns a handler that writes records of a level and above to the Windows event log under the
// source Name, which Install registers. It is safe for concurrent use.
func EventLog(level slog.Leveler) (slog.Handler, error) {
	l, err := eventlog.Open(Name)
	if err != nil {
		return nil, err
	}
	w := &eventWriter{log: l}
	w.text = slog.NewTextHandler(&w.buf, &slog.HandlerOptions{Level: level, ReplaceAttr: withoutTime})
	return eventHandler{w, w.text}, nil
}

// withoutTime drops the attributes that the event log records itself.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
		return slog.Attr{}
	}
	return a
}

type eventWriter struct {
	log  *eventlog.Log
	mu   sync.Mutex // protects buf, which all handlers of one event log format into
	buf  bytes.Buffer
	text slog.Handler
}

// eventHandler formats a record as text and writes it as an event of the level's type.
type eventHandler struct {
	w    *eventWriter
	text slog.Handler // formats into w.buf
}

func (h eventHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.text.Enabled(ctx, l) }

func (h eventHandler) Handle(ctx context.Context, r slog.Record) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.buf.Reset()
	if err := h.text.Handle(ctx, r); err != nil {
		return err
	}
	switch line := h.w.buf.String(); {
	case r.Level >= slog.LevelError:
		return h.w.log.Error(eventID, line)
	case r.Level >= slog.LevelWarn:
		return h.w.log.Warning(eventID, line)
	default:
		return h.w.log.Info(eventID, line)
	}
}

func (h eventHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return eventHandler{h.w, h.text.WithAttrs(attrs)}
}

func (h eventHandler) WithGroup(name string) slog.Handler {
	return eventHandler{h.w, h.text.WithGroup(name)}
}
