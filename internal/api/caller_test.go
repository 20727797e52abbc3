package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"
)

// hostile is a Caller of another node's agent, which answers everything with the same.
func hostile(t *testing.T, status int, answer func(io.Writer)) *Caller {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		answer(w)
	}))
	t.Cleanup(s.Close)
	c := NewRemoteCaller("evil", func(context.Context) (net.Conn, error) { return net.Dial("tcp", s.Listener.Addr().String()) })
	t.Cleanup(c.Close)
	return c
}

// What another node's agent answers cannot do anything to the terminal of who asks, in JSON, as a text or as an error. What
// people write in their languages stays.
func TestRemoteAnswersAreHarmless(t *testing.T) {
	const evil = "a\x1b]0;title\x07b\u009b2Jc\u202egnp\u200b.\r\x08\x00d"
	escaped := `{"source":"a\u001b]0;title\u0007b\u009B2Jc\u202egnp\u200b.\r\b\f\\u001b Grüße \u65e5\u672c \ud83d\ude00 \"\\` + "\u009b" + `"}`
	check := func(what, text string, wants ...string) {
		t.Helper()
		for _, r := range text {
			if r != '\n' && r != '\t' && r != unicode.ReplacementChar && !unicode.IsPrint(r) {
				t.Errorf("%s: %q has %U", what, text, r)
			}
		}
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q has no %q", what, text, want)
			}
		}
	}
	says := func(text string) func(io.Writer) {
		return func(w io.Writer) { _, _ = io.WriteString(w, text) }
	}
	text, err := hostile(t, 200, says(evil+"\n\tend")).Diff(t.Context())
	if check("text", text, "title", "\n\tend"); err != nil {
		t.Error(err)
	}
	_, err = hostile(t, 500, says(evil)).Diff(t.Context())
	check("error", err.Error(), "title")
	v, err := fetch[struct{ Source string }](t.Context(), hostile(t, 200, says(escaped)), GetStatus, nil)
	if err != nil {
		t.Fatal(err)
	}
	check("JSON", v.Source, "title", `\u001b Grüße 日本 😀 "\`)
}

// One node's agent cannot fill the memory of who asks.
func TestRemoteAnswersAreBounded(t *testing.T) {
	c := hostile(t, 200, func(w io.Writer) {
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	})
	if _, err := c.Diff(t.Context()); err == nil || !strings.Contains(err.Error(), "nkp on node evil: the answer is longer than 64 MiB") {
		t.Errorf("an answer without end: %v", err)
	}
}
