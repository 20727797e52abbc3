package service

import (
	"log/slog"
	"strings"

	"golang.org/x/sys/windows/svc/eventlog"
)

// eventID is the number of all events; eventlog.InstallAsEventCreate allows 1 to 1000.
const eventID = 1

// EventLog returns a handler that writes records of a level and above to the Windows event log, under the
// source Name that Install registers. It is safe for concurrent use.
func EventLog(level slog.Leveler) (slog.Handler, error) {
	l, err := eventlog.Open(Name)
	if err != nil {
		return nil, err
	}
	return textHandler(events{l}, level), nil
}

// events are where records go: an *eventlog.Log.
type events struct {
	log interface {
		Info(id uint32, text string) error
		Warning(id uint32, text string) error
		Error(id uint32, text string) error
	}
}

// Write writes one record as an event of its level's type. A TextHandler calls it once for each record, never
// concurrently, and begins the record with the level.
func (e events) Write(record []byte) (int, error) {
	level, text, _ := strings.Cut(string(record), " ")
	write := e.log.Info
	switch {
	case strings.HasPrefix(level, "level=ERROR"):
		write = e.log.Error
	case strings.HasPrefix(level, "level=WARN"):
		write = e.log.Warning
	}
	return len(record), write(eventID, text)
}

// textHandler returns a handler without the time, which the event log records itself.
func textHandler(e events, level slog.Leveler) slog.Handler {
	withoutTime := func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	return slog.NewTextHandler(e, &slog.HandlerOptions{Level: level, ReplaceAttr: withoutTime})
}
