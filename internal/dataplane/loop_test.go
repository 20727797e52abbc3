package dataplane

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pass lets the time pass that is said in looks of the Watch.
func pass(w *Watch, n int) {
	for range n {
		w.look()
	}
}

func TestStuck(t *testing.T) {
	var log bytes.Buffer
	w := NewWatch(0, slog.New(slog.NewTextHandler(&log, nil)))
	l, other := NewLoop("bridge"), NewLoop("agent")
	w.Add(l, other)
	expect := func(when string, stuck bool) {
		t.Helper()
		if got := len(w.Stuck()) > 0; got != stuck {
			t.Errorf("%s: stuck is %v: %v", when, got, w.Working())
		}
	}
	pass(w, 100*looks)
	expect("at rest for hours", false)
	l.Progress()
	pass(w, 2*looks)
	expect("an answer to another question, at rest", false)
	l.Work("a transaction")
	pass(w, looks-1)
	expect("almost", false)
	l.Progress()
	pass(w, looks)
	expect("progress", false)
	for range 10 {
		l.Progress()
		pass(w, looks-1)
	}
	expect("slow, but steady", false)
	pass(w, 2)
	expect("no progress", true)
	if s := w.Stuck()[0]; s.Loop != "bridge" || s.Doing != "a transaction" || s.Since.IsZero() {
		t.Errorf("%+v", s)
	}
	if text := w.Stuck()[0].String(); !strings.HasPrefix(text, "bridge has made no progress since 2") || !strings.HasSuffix(text, ": a transaction") {
		t.Error(text)
	}
	pass(w, 10*looks)
	if n := strings.Count(log.String(), "makes no progress"); n != 1 {
		t.Errorf("logged %d times: %s", n, &log)
	}
	l.Progress()
	expect("it goes on", false)
	l.Work("the next")
	pass(w, looks-1)
	expect("the next", false)
	l.Rest()
	pass(w, 2*looks)
	expect("at rest again", false)
	var none *Loop
	none.Work("")
	none.Progress()
	none.Rest()
}

// A machine that sleeps for long does not look, and finds nothing stuck when it wakes.
func TestSuspended(t *testing.T) {
	w := NewWatch(0, slog.New(slog.DiscardHandler))
	l := NewLoop("bridge")
	w.Add(l)
	l.Work("a transaction")
	pass(w, 1)
	l.last = l.last.Add(-8 * time.Hour)
	pass(w, 1)
	if s := w.Stuck(); len(s) > 0 {
		t.Error(s)
	}
}

// Run looks by itself: a loop is stuck one look after the bound.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatch(0, slog.New(slog.DiscardHandler))
		l := NewLoop("bridge")
		w.Add(l)
		l.Work("a transaction")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		time.Sleep(Bound)
		synctest.Wait()
		if s := w.Stuck(); len(s) != 0 {
			t.Errorf("too early: %v", s)
		}
		time.Sleep(Bound / looks)
		synctest.Wait()
		if len(w.Stuck()) != 1 {
			t.Error("not found to be stuck")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
