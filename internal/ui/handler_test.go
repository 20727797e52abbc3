package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
)

const token = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// said returns a source that answers with what it was asked.
func said() Source {
	return Source{
		Status: func(context.Context) (any, error) { return map[string]string{"node": "<b>node</b>"}, nil },
		Services: func(_ context.Context, q ServicesQuery) (any, error) {
			if q.Name == "absent" {
				return nil, errors.New("no nkp answers on /run/nkp.sock")
			}
			return q, nil
		},
		Pods:      func(context.Context) (any, error) { return []string{"pod-1"}, nil },
		Trace:     func(_ context.Context, q TraceQuery) (any, error) { return q, nil },
		TableBase: 40,
	}
}

func request(method, path, host, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body == "" {
		r = httptest.NewRequest(method, path, nil)
	}
	r.Host = host
	return r
}

func ask(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Only a request with the token, to this machine's loopback, without a body, and that reads, gets an answer. Every answer has the
// headers that keep the page to itself.
func TestWhoIsAnswered(t *testing.T) {
	h := Handler(said(), token)
	for _, c := range []struct {
		method, path, host, body string
		status                   int
	}{
		{"GET", "/" + token + "/", "127.0.0.1:4000", "", 200},
		{"HEAD", "/" + token + "/", "127.0.0.1:4000", "", 200},
		{"GET", "/" + token + "/main.js", "localhost:80", "", 200},
		{"GET", "/" + token + "/style.css", "[::1]:4000", "", 200},
		{"GET", "/" + token + "/api/status", "127.0.0.1", "", 200},
		{"GET", "/" + token + "/api/pods", "127.0.0.1", "", 200},
		{"GET", "/" + token + "/api/status", "[::1]", "", 200},
		{"GET", "/" + token, "127.0.0.1:4000", "", 301},
		{"GET", "/" + token + "/nothing", "127.0.0.1:4000", "", 404},
		{"GET", "/" + token + "/../handler.go", "127.0.0.1:4000", "", 307},
		{"GET", "/", "127.0.0.1:4000", "", 403},
		{"GET", "/api/status", "127.0.0.1:4000", "", 403},
		{"GET", "/main.js", "127.0.0.1:4000", "", 403},
		{"GET", "/" + token[:25] + "/api/status", "127.0.0.1:4000", "", 403},
		{"GET", "/" + strings.ToLower(token) + "/api/status", "127.0.0.1:4000", "", 403},
		{"GET", "/api/status?token=" + token, "127.0.0.1:4000", "", 403},
		{"GET", "/" + token + "/api/status", "attacker.example:4000", "", 403},
		{"GET", "/" + token + "/api/status", "localhost.attacker.example", "", 403},
		{"GET", "/" + token + "/api/status", "127.0.0.1.attacker.example", "", 403},
		{"GET", "/" + token + "/api/status", "192.0.2.1:4000", "", 403},
		{"GET", "/" + token + "/api/status", "", "", 403},
		{"POST", "/" + token + "/api/status", "127.0.0.1:4000", "", 405},
		{"POST", "/" + token + "/api/trace", "127.0.0.1:4000", "", 405},
		{"GET", "/" + token + "/api/probe", "127.0.0.1:4000", "", 404},
		{"POST", "/" + token + "/api/probe", "127.0.0.1:4000", "", 200},
		{"POST", "/api/probe", "127.0.0.1:4000", "", 403},
		{"POST", "/" + token + "/api/probe", "attacker.example:4000", "", 403},
		{"DELETE", "/" + token + "/api/services", "127.0.0.1:4000", "", 405},
		{"OPTIONS", "/" + token + "/", "127.0.0.1:4000", "", 405},
		{"GET", "/" + token + "/api/status", "127.0.0.1:4000", "body", 413},
	} {
		w := ask(h, request(c.method, c.path, c.host, c.body))
		if w.Code != c.status {
			t.Errorf("%s %s at %q: %d, want %d", c.method, c.path, c.host, w.Code, c.status)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
			"X-Content-Type-Options":  "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if name == "Cache-Control" && w.Code == http.StatusNotFound {
				continue // http.FileServer removes it, and there is nothing to keep
			}
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s %s: %s is %q", c.method, c.path, name, got)
			}
		}
		if c.status == 403 && strings.Contains(w.Body.String(), token) {
			t.Errorf("%s %s: the refusal contains the token", c.method, c.path)
		}
	}
}

// What the page asks reaches the source, and the source's error the page.
func TestAnswers(t *testing.T) {
	h := Handler(said(), token)
	for _, c := range []struct{ path, want string }{
		{"about", `{"tableBase":40}`},
		{"status", `{"node":"\u003cb\u003enode\u003c/b\u003e"}`},
		{"services", `{"Namespace":"","Name":"","Connections":false}`},
		{"services?namespace=shop&name=web&connections=true", `{"Namespace":"shop","Name":"web","Connections":true}`},
		{"services?name=absent", "no nkp answers on /run/nkp.sock\n"},
		{"trace?from=10.0.0.5&to=%5Bfd00%3A%3A1%5D%3A80&protocol=udp&in=uplink&live=true", `{"From":"10.0.0.5","To":"[fd00::1]:80","Protocol":"udp","In":"uplink","Live":true,"Probe":false}`},
		{"trace?from=" + strings.Repeat("x", 601), "A field has more than 600 bytes.\n"},
		{"services?name=" + strings.Repeat("x", 601), "A field has more than 600 bytes.\n"},
	} {
		if got := ask(h, request("GET", "/"+token+"/api/"+c.path, "localhost", "")).Body.String(); got != c.want {
			t.Errorf("%.60s: %s, want %s", c.path, got, c.want)
		}
	}
}

// Of traces and listings of the conntrack table one runs at a time. The next waits for 5 s; a list of Services does not.
func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := said()
		running, end := 0, make(chan struct{})
		s.Trace = func(context.Context, TraceQuery) (any, error) {
			if running++; running > 1 {
				t.Error("two at a time")
			}
			<-end
			running--
			return "traced", nil
		}
		h := Handler(s, token)
		get := func(path string) *httptest.ResponseRecorder {
			return ask(h, request("GET", "/"+token+"/api/"+path, "localhost", ""))
		}
		first := make(chan int)
		go func() { first <- get("trace").Code }()
		synctest.Wait()
		for path, want := range map[string]int{"trace": 429, "services?connections=true": 429, "services": 200, "status": 200} {
			if code := get(path).Code; code != want {
				t.Errorf("%s during a trace: %d, want %d", path, code, want)
			}
		}
		close(end)
		if code := <-first; code != 200 {
			t.Errorf("the first trace: %d", code)
		}
		if code := get("trace").Code; code != 200 {
			t.Errorf("a trace after it: %d", code)
		}
	})
}

func TestLoopback(t *testing.T) {
	for ip, want := range map[string]bool{"127.0.0.1": true, "::1": true, "127.0.0.2": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "::ffff:127.0.0.1": false, "::1%lo": false} {
		if Loopback(netip.MustParseAddr(ip)) != want {
			t.Errorf("%s: %t", ip, !want)
		}
	}
}

// No file of the page names another host, and none puts text into the document as markup or runs text as a program.
func TestPageFiles(t *testing.T) {
	// The name of the SVG namespace is no address to load from.
	banned := regexp.MustCompile(`https?:|innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|Function\(|setTimeout\("|javascript:| style=|\son[a-z]+="`)
	err := fs.WalkDir(files, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := files.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		text, err := io.ReadAll(f)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			if found := banned.FindString(strings.ReplaceAll(line, "http://www.w3.org/2000/svg", "")); found != "" {
				return fmt.Errorf("%s:%d: %q", path, i+1, found)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
