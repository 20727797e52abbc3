package ui

import (
	"context"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"fmt"
	"html"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/internal/httpguard"
)

//go:embed page
var files embed.FS

// page is the folder of the page's files.
var page = func() fs.FS {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return page
}()

// Limits bounds what browsers may take up. An answer may start at the very end of the agent's 30 s, and be
// long.
var Limits = httpguard.Limits{Conns: 32, Serving: 16, Answer: time.Minute}

// dearWait is how long a request that costs the switch or the kernel much waits for the one before it.
const dearWait = 5 * time.Second

// maxField is the length in bytes up to which a parameter of a request is passed on. A Kubernetes name has at
// most 253.
const maxField = 600

// Source returns what the page shows. The values are encoded as JSON. The functions must be safe for
// concurrent use.
type Source struct {
	Status   func(context.Context) (any, error)
	Services func(context.Context, ServicesQuery) (any, error)
	Trace    func(context.Context, TraceQuery) (any, error)
	Pods     func(context.Context) (any, error) // the bridge's ports that lead to pods
	// TableBase is the number of nkp's first flow table on the bridge.
	TableBase uint8
}

// ServicesQuery selects Services; what is empty selects all.
type ServicesQuery struct {
	Namespace, Name string
	// Connections requests the outcomes of TCP connections, which costs one listing of the conntrack table.
	Connections bool
}

// TraceQuery is the packet that a trace is about, as a person wrote it.
type TraceQuery struct {
	From, To, Protocol, In string
	// Live requests the comparison with what is installed, Probe that the packet is sent.
	Live, Probe bool
}

// Handler returns the handler of the page at /token/. Of the requests that are costly (traces, listings of
// the conntrack table) it runs one at a time.
func Handler(s Source, token string) http.Handler {
	return guard(token, pageOf(s))
}

// NodesHandler returns the handler of a list of nodes at /token/, with the page of each node below its name.
func NodesHandler(nodes map[string]Source, token string) http.Handler {
	mux := http.NewServeMux()
	var list strings.Builder
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		page := http.StripPrefix("/"+name, pageOf(nodes[name]))
		mux.Handle("GET /"+url.PathEscape(name)+"/", page)
		mux.Handle("POST /"+url.PathEscape(name)+"/", page)
		fmt.Fprintf(&list, "<li><a href=\"%s/\">%s</a></li>\n", url.PathEscape(name), html.EscapeString(name))
	}
	mux.Handle("GET /style.css", http.FileServerFS(page))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, nodesPage, list.String())
	})
	return guard(token, mux)
}

// nodesPage is the page of NodesHandler, with the list's items left open.
const nodesPage = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>nkp: nodes</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="style.css">
<main><h1>Nodes</h1><ul>
%s</ul></main>
</html>
`

// pageOf returns the handler of the page at /.
func pageOf(s Source) http.Handler {
	h := &handler{Source: s, dear: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /api/about", h.about)
	mux.HandleFunc("GET /api/status", h.status)
	mux.HandleFunc("GET /api/services", h.services)
	mux.HandleFunc("GET /api/pods", h.pods)
	mux.HandleFunc("GET /api/trace", h.trace)
	mux.HandleFunc("POST /api/probe", h.trace)
	return mux
}

// guard passes on requests whose path begins with the token and whose Host is loopback. The Host keeps out
// pages of other sites whose name resolves to 127.0.0.1 (DNS rebinding).
func guard(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		for name, value := range headers {
			header.Set(name, value)
		}
		given, rest, slash := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch {
		case subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1:
			http.Error(w,
				"This is not the address that nkp ui printed, or it is the one of an earlier run.",
				http.StatusForbidden)
		case !local(r.Host):
			http.Error(w, "Open the page as 127.0.0.1, [::1] or localhost.", http.StatusForbidden)
		case r.ContentLength != 0:
			http.Error(w, "Requests to this page have no body.", http.StatusRequestEntityTooLarge)
		case !slash:
			http.Redirect(w, r, "/"+token+"/", http.StatusMovedPermanently)
		default:
			r.URL.Path, r.URL.RawPath = "/"+rest, ""
			next.ServeHTTP(w, r)
		}
	})
}

// headers are those of every answer.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src " +
		"'self'; img-src 'self' data:; " +
		"frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
	"X-Content-Type-Options":       "nosniff",
	"Referrer-Policy":              "no-referrer",
	"Cache-Control":                "no-store",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cross-Origin-Opener-Policy":   "same-origin",
}

// local reports whether a Host header names this machine's loopback, at any port: ssh -L may choose another.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && Loopback(ip)
}

// Loopback reports whether ip is an address that the page may be served at: 127.0.0.1 or ::1.
func Loopback(ip netip.Addr) bool {
	return ip == netip.IPv6Loopback() || ip == netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

type handler struct {
	Source
	dear chan struct{} // holds a value while a costly request runs
}

func (h *handler) about(w http.ResponseWriter, _ *http.Request) {
	write(w, map[string]any{"tableBase": h.TableBase}, nil)
}

func (h *handler) status(w http.ResponseWriter, r *http.Request) {
	v, err := h.Status(r.Context())
	write(w, v, err)
}

func (h *handler) pods(w http.ResponseWriter, r *http.Request) {
	v, err := h.Pods(r.Context())
	write(w, v, err)
}

func (h *handler) services(w http.ResponseWriter, r *http.Request) {
	q := ServicesQuery{Namespace: r.FormValue("namespace"), Name: r.FormValue("name")}
	q.Connections, _ = strconv.ParseBool(r.FormValue("connections"))
	if !short(w, q.Namespace, q.Name) || q.Connections && !h.begin(w, r) {
		return
	}
	if q.Connections {
		defer h.end()
	}
	v, err := h.Services(r.Context(), q)
	write(w, v, err)
}

func (h *handler) trace(w http.ResponseWriter, r *http.Request) {
	q := TraceQuery{From: r.FormValue("from"), To: r.FormValue("to"),
		Protocol: r.FormValue("protocol"), In: r.FormValue("in")}
	q.Live, _ = strconv.ParseBool(r.FormValue("live"))
	q.Probe = r.Method == http.MethodPost
	if !short(w, q.From, q.To, q.Protocol, q.In) || !h.begin(w, r) {
		return
	}
	defer h.end()
	v, err := h.Trace(r.Context(), q)
	write(w, v, err)
}

// begin waits until no costly request runs. If that takes too long it answers the request and returns false.
func (h *handler) begin(w http.ResponseWriter, r *http.Request) bool {
	ctx, cancel := context.WithTimeout(r.Context(), dearWait)
	defer cancel()
	select {
	case h.dear <- struct{}{}:
		return true
	case <-ctx.Done():
		http.Error(w, "Another trace is running; try again when it has ended.", http.StatusTooManyRequests)
		return false
	}
}

func (h *handler) end() { <-h.dear }

// short answers the request and returns false if a field is too long.
func short(w http.ResponseWriter, fields ...string) bool {
	for _, f := range fields {
		if len(f) > maxField {
			http.Error(w, "A field has more than "+strconv.Itoa(maxField)+" bytes.", http.StatusBadRequest)
			return false
		}
	}
	return true
}

// write answers with a value as JSON, or with the error's text.
func write(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the browser may be gone
}
