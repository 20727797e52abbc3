package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
)

// serveAgent answers as an agent does at some paths, and returns its socket.
func serveAgent(t *testing.T, paths map[string]http.HandlerFunc) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "nkp.sock")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	mux := http.NewServeMux()
	for path, h := range paths {
		mux.HandleFunc(path, h)
	}
	server := &http.Server{Handler: mux}
	go server.Serve(listener) // ends with Close
	t.Cleanup(func() { server.Close() })
	return socket
}

// fakeAgent answers as an agent with two Services does, and returns its socket.
func fakeAgent(t *testing.T) string {
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(v) }
	}
	web, dns := info("web", countersOf(1, 2, 3, 4, 5)), info("dns", nil)
	dns.Namespace, dns.Port = "kube-system", "dns"
	web.Frontends = []api.FrontendInfo{{Type: "NodePort", Port: 30080}, {Type: "ClusterIP", Address: "10.96.0.1", Port: 80}}
	web.Endpoints = []api.EndpointInfo{
		{Address: "10.0.0.1:8080", Pod: "default/web-1", Local: true}, {Address: "10.0.0.2:8080", Pod: "default/web-2"}, {Address: "10.0.0.3:8080", Local: true},
	}
	return serveAgent(t, map[string]http.HandlerFunc{
		"/v1/services": answer(listOf(time.Unix(1_700_000_000, 0), web, dns)),
		"/v1/status":   answer(&api.Status{Node: "node-1"}),
		"/v1/diff":     func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "+ flow a\n- flow b\n") },
	})
}

// A frame has no more lines than the terminal, none is wider, and nothing in it is an escape code of another's.
func TestFrame(t *testing.T) {
	got := string(frame("a\x1b[31mred\none line that is too wide\nthree\nfour\nfive\n", 10, 4))
	want := cursorHome + "a[31mred" + clearToEOL + "\none line t" + clearToEOL + "\n... 3 more" + clearToEOL + "\n" + clearBelow
	if got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
	for height := range 3 {
		if n := strings.Count(string(frame("a\nb\nc", 80, height)), "\n"); n != 1 {
			t.Errorf("%d lines on a terminal of %d", n, height)
		}
	}
}

// Without a terminal, --watch prints a block for each refresh, without escape codes, and goes on after an error. Its end is no error.
func TestWatchWithoutTerminal(t *testing.T) {
	for format, want := range map[string]string{
		"text": "\nanswer 1\n\n__:__:__: away\n\nanswer 3\n",
		"json": "answer 1\nanswer 3\n",
		"yaml": "---\nanswer 1\n---\nanswer 3\n",
	} {
		ctx, cancel := context.WithCancel(context.Background())
		var b bytes.Buffer
		n := 0
		v := watch{interval: time.Millisecond}
		err := v.follow(ctx, &b, &output{format: format}, func(w io.Writer, _ int) error {
			switch n++; n {
			case 2:
				return errors.New("away")
			case 4:
				cancel()
				return ctx.Err()
			}
			_, err := fmt.Fprintf(w, "answer %d\n", n)
			return err
		})
		cancel()
		got := b.String()
		if i := strings.Index(got, ": away"); i > 8 {
			got = got[:i-8] + "__:__:__" + got[i:]
		}
		if err != nil || got != want {
			t.Errorf("%s: %v, %q, want %q", format, err, got, want)
		}
	}
	v := watch{interval: time.Millisecond}
	if err := v.follow(t.Context(), io.Discard, &output{}, func(io.Writer, int) error { return errors.New("none") }); err == nil {
		t.Error("the first error does not end it")
	}
}

// A table leaves out totals and frontends on a narrow terminal before it leaves out rates.
func TestServicesFit(t *testing.T) {
	list := listOf(time.Now(), info("web", countersOf(1, 2, 3, 4, 5)))
	for width, want := range map[int]string{
		0:   "SERVICE FAMILY FRONTENDS ENDPOINTS CONNECTIONS PKTS IN PKTS OUT BYTES IN BYTES OUT CONN/S PKTS/S IN PKTS/S OUT BYTES/S IN BYTES/S OUT",
		120: "SERVICE FAMILY FRONTENDS ENDPOINTS CONNECTIONS CONN/S PKTS/S IN PKTS/S OUT BYTES/S IN BYTES/S OUT",
		60:  "SERVICE ENDPOINTS CONN/S PKTS/S IN PKTS/S OUT",
	} {
		var b strings.Builder
		must(t, writeServices(&b, list, nil, false, true, width))
		head, _, _ := strings.Cut(b.String(), "\n")
		if got := strings.Join(strings.Fields(head), " "); got != want {
			t.Errorf("%d columns: %s\nwant %s", width, got, want)
		}
		if width > 0 && len(head) > width {
			t.Errorf("the head has %d columns of %d", len(head), width)
		}
	}
}
