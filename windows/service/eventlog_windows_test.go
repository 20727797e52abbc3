package service

import (
	"log/slog"
	"slices"
	"testing"
)

// recorded notes events in place of the event log.
type recorded []string

func (r *recorded) Info(_ uint32, text string) error    { *r = append(*r, "info "+text); return nil }
func (r *recorded) Warning(_ uint32, text string) error { *r = append(*r, "warning "+text); return nil }
func (r *recorded) Error(_ uint32, text string) error   { *r = append(*r, "error "+text); return nil }

// Records of the level and above become events of the level's type, with attributes and groups.
func TestEventLog(t *testing.T) {
	if h, err := EventLog(slog.LevelInfo); err != nil {
		t.Fatal(err)
	} else {
		slog.New(h).Info("a test")
	}
	if IsService() {
		t.Error("this test is taken for a service")
	}

	var r recorded
	log := slog.New(textHandler(events{&r}, slog.LevelInfo))
	log.Debug("too much")
	log.Info("first", "a", "b c")
	log.With("a", "b").Warn("second")
	log.WithGroup("g").Error("third", "time", 1)
	want := []string{"info msg=first a=\"b c\"\n", "warning msg=second a=b\n", "error msg=third g.time=1\n"}
	if !slices.Equal(r, want) {
		t.Errorf("events %q, want %q", r, want)
	}
}
