//go:build linux

package agent

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/k8s/manifest"
)

// idle is an agent that knows the guestbook's Services and has no data plane.
func idle(t testing.TB) *Agent {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	set := Settings{Socket: "/nonexistent/nkp.sock"}
	set.NodeName, set.Fallback = "n1", fallback.DefaultOptions()
	a, err := New(Options{Settings: set, Mode: mode.IPTables, Source: manifest.NewSource("/nonexistent"), Kind: "none",
		Events: apiserver.NewLogRecorder("n1", log), Log: log})
	must(t, err)
	m := manifest.Load("../../examples/guestbook.yaml")
	if len(m.Problems.Errors) > 0 {
		t.Fatal(m.Problems.Errors)
	}
	a.tracker.Apply(m.Objects)
	a.model, _ = a.tracker.Flush()
	a.delivered, a.planes = true, planes{}
	return a
}

// FuzzSocket sends anything to the control socket's handler. It must answer whatever is HTTP, refuse what it does not know,
// and never panic: net/http would hide that from everybody but the log.
func FuzzSocket(f *testing.F) {
	for _, s := range []string{
		"GET /v1/status HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"GET /v1/diff HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"GET /v1/trace?from=10.0.0.1&to=40.0.0.1:80&protocol=tcp&in=&live=false HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"GET /v1/trace?from=[fd00::1]:1&to=[fd00:40::1]:53&protocol=udp&in=11&live=true HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"GET /v1/services?namespace=default&name=web&vip=40.0.0.1 HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"POST /v1/status HTTP/1.1\r\nHost: nkp\r\nContent-Length: 5\r\n\r\nhello",
		"GET /v1/trace?from=pod/default/client&to=svc/default/web:http&reply=true HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"GET /v1/trace/sample?from=10.0.0.1&to=40.0.0.1:80&protocol=tcp HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"GET /v1/pods HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"GET /v1/report HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"GET /v1/flows?namespace=default&name=frontend&most=3 HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"POST /v1/log-level?level=debug HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"GET /v1/trace?from=10.0.0.1%25eth0&to=40.0.0.1:99999 HTTP/1.1\r\nHost: nkp\r\n\r\n",
		"GET //v1/../v1/status?%zz HTTP/1.0\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	a := idle(f)
	ctx, cancel := context.WithCancel(context.Background())
	f.Cleanup(cancel)
	go func() { // the loop, as far as questions are concerned; ends with ctx
		for {
			select {
			case q := <-a.asks:
				q()
			case <-ctx.Done():
				return
			}
		}
	}()
	h := a.handler()
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return // net/http refuses it before nkp sees it
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(ctx))
		body, _ := io.ReadAll(w.Result().Body)
		switch w.Code {
		case http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusServiceUnavailable,
			http.StatusMovedPermanently, http.StatusTemporaryRedirect:
		default:
			t.Errorf("status %d: %.200s", w.Code, body)
		}
		if w.Code == http.StatusBadRequest && (len(body) > 1000+3*len(raw) || strings.Count(string(body), "\n") > 1) {
			t.Errorf("an error of %d bytes, %d lines: %.300q", len(body), strings.Count(string(body), "\n"), body)
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead && w.Code == http.StatusOK {
			t.Errorf("%s is answered: %.200s", r.Method, body)
		}
	})
}
