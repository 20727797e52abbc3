package dpctl

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
)

func lines(ctx context.Context, path string) (got []string, err error) {
	err = Daemon{Control: path}.lines(ctx, "dump", nil, func(line []byte) error {
		got = append(got, string(line))
		return nil
	})
	return got, err
}

// The members of an answer come in any order, and with any escapes.
func TestLines(t *testing.T) {
	for answer, want := range map[string][]string{
		`{"id":0,"result":"a\nb\n","error":null}`:             {"a", "b"},
		`{"error":null,"result":"a=\"1\"\nb\u0041\/","id":0}`: {`a="1"`, "bA/"},
		` { "id" : 0 , "result" : "" , "error" : null } `:     nil,
		`{"id":0,"result":"\n\n","error":null}`:               {"", ""},
	} {
		got, err := lines(t.Context(), daemon(t, says(answer)))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", answer, got, err, want)
		}
	}
	for answer, want := range map[string]string{
		`{"id":0,"result":null,"error":"no such\nzone"}`: "dump: no such zone",
		``:                             "without an answer",
		`{"id":0,"result":"a\nb`:       "without an answer",
		`hello`:                        "not a JSON-RPC answer",
		`{"id":0,"result":"\x","e":1}`: "not a JSON-RPC answer",
		`{"id":0,"result":["a"]}`:      "not a JSON-RPC answer",
		`{"id":0}`:                     "neither result nor error",
		`{"result":"` + strings.Repeat("x", maxLine+1) + `"}`: errTooLong.Error(),
	} {
		if _, err := lines(t.Context(), daemon(t, says(answer))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.50s: %v, want %q", answer, err, want)
		}
	}
	stop := errors.New("enough")
	err := Daemon{Control: daemon(t, says(`{"result":"a\nb\n"}`))}.lines(t.Context(), "dump", nil, func([]byte) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("stopped: %v", err)
	}
}

// A daemon that never ends its answer is left when the context ends.
func TestLinesIsBounded(t *testing.T) {
	endless := daemon(t, func(conn net.Conn, _ request) {
		_, err := conn.Write([]byte(`{"result":"`))
		for err == nil {
			_, err = conn.Write([]byte(strings.Repeat(`x\n`, 1000)))
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := Daemon{Control: endless}.lines(ctx, "dump", nil, func([]byte) error {
		if n++; n == 10000 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || n < 10000 {
		t.Errorf("after %d lines: %v", n, err)
	}
}

// FuzzLines is a daemon that answers anything: lines ends with all of the result or one clear error.
func FuzzLines(f *testing.F) {
	for _, s := range []string{
		`{"id":0,"result":"a\nb\n","error":null}`, `{"id":0,"result":null,"error":"no"}`, `{"result":7}`, `{"result":"\ud800\u00e4"}`, `{}`, `{"a":"b"`, "\x00",
	} {
		f.Add([]byte(s))
	}
	var answer []byte // written before lines, read while it runs
	path := daemon(f, func(conn net.Conn, _ request) { conn.Write(answer) })
	f.Fuzz(func(t *testing.T, b []byte) {
		answer = b
		got, err := lines(t.Context(), path)
		if n := len(strings.Join(got, "\n")); n > 3*len(b) {
			t.Errorf("%d bytes of an answer of %d", n, len(b))
		}
		if err != nil && len(err.Error()) > maxLine+500 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}
