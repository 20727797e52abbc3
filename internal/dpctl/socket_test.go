package dpctl

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// daemon listens like a daemon and answers the first request of each connection by serve; it gives the socket's path.
func daemon(t testing.TB, serve func(conn net.Conn, ask request)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dpctl") // short: socket paths are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "x.1.ctl")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var ask request
			if json.NewDecoder(conn).Decode(&ask) == nil {
				serve(conn, ask)
			}
			conn.Close()
		}
	}()
	return path
}

func says(text string) func(net.Conn, request) {
	return func(conn net.Conn, _ request) { _, _ = io.WriteString(conn, text) }
}

func TestCall(t *testing.T) {
	path := daemon(t, func(conn net.Conn, ask request) {
		text := ask.Method + " " + strings.Join(ask.Params, "|")
		_ = json.NewEncoder(conn).Encode(map[string]any{"id": ask.ID, "result": text, "error": nil})
	})
	got, err := (Daemon{Control: path}).call(context.Background(), "ofproto/trace", "br-int", "in_port=1,ip")
	if err != nil || got != "ofproto/trace br-int|in_port=1,ip" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err = (Daemon{Control: path}).call(context.Background(), "version"); err != nil || got != "version " {
		t.Errorf("without parameters: %q, %v", got, err)
	}
}

func TestCallErrors(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"refused":  {`{"id":0,"result":null,"error":"no such\nbridge"}`, "list: no such bridge"},
		"closed":   {``, "without an answer"},
		"cut":      {`{"id":0,"res`, "without an answer"},
		"nonsense": {`hello`, "not a JSON-RPC answer"},
		"empty":    {`{"id":0}`, "neither result nor error"},
	} {
		_, err := (Daemon{Control: daemon(t, says(c.answer))}).call(context.Background(), "list")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		var refused *CommandError
		if errors.As(err, &refused) != (name == "refused") {
			t.Errorf("%s: %T", name, err)
		}
	}
	if _, err := (Daemon{Control: "/nonexistent/x.ctl"}).call(context.Background(), "list"); err == nil || !strings.Contains(err.Error(), "/nonexistent/x.ctl") {
		t.Errorf("nobody there: %v", err)
	}
}

// A daemon that never answers, or never ends its answer, holds nobody up.
func TestCallIsBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	silent := daemon(t, func(conn net.Conn, _ request) {
		cancel()
		_, _ = io.Copy(io.Discard, conn)
	})
	if _, err := (Daemon{Control: silent}).call(ctx, "list"); !errors.Is(err, context.Canceled) {
		t.Errorf("a silent daemon: %v", err)
	}
	endless := daemon(t, func(conn net.Conn, _ request) {
		_, _ = io.WriteString(conn, `{"result":"`)
		block := []byte(strings.Repeat("x", 1<<20))
		for range 300 { // a client without a bound fails the test and not the machine
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
	})
	if _, err := (Daemon{Control: endless}).call(context.Background(), "list"); !errors.Is(err, errTooLong) {
		t.Errorf("an endless answer: %v", err)
	}
}
