package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/nkp-proxy/nkp/internal/httpguard"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
)

// askTimeout bounds how long a command waits for the agent. statusTimeout is for status, for which the agent
// waits at most a fraction of a second. The agent ends its own waits after serveTimeout, so that its reason
// reaches the command.
const (
	askTimeout    = 30 * time.Second
	serveTimeout  = askTimeout - 5*time.Second
	statusTimeout = 5 * time.Second
)

// socketLimits limits the clients of the socket. An answer may start at the very end of askTimeout, and be
// long.
var socketLimits = httpguard.Limits{Conns: 128, Serving: 32, Answer: 2 * askTimeout}

// serve answers commands on the agent's socket, HTTP over a unix socket that only root may use, or over a
// named pipe for Administrators only, until the context ends. A socket that a dead agent left behind is taken
// over; a live one is an error. A socket that was removed is made again. While another user holds the pipe's
// name, the agent goes on without the pipe and tries again.
func (a *Agent) serve(ctx context.Context) error {
	for ctx.Err() == nil {
		l, err := a.listen(ctx)
		if err != nil {
			return err
		}
		if err := a.serveOn(ctx, l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("socket %s: %w", a.set.Socket, err)
		}
	}
	return nil
}

// serveOn answers commands until the context ends or the socket is removed, which ends the connections, too.
func (a *Agent) serveOn(ctx context.Context, l net.Listener) error {
	srv := httpguard.New(socketLimits, a.log).Server(a.handler())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the goroutine

	go func() {
		defer srv.Close()
		for !socketRemoved(a.set.Socket) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(socketCheck):
			}
		}
		a.log.Warn("the socket was removed: no command was answered since; it is made again",
			"socket", a.set.Socket)
	}()
	return srv.Serve(l)
}

// socketCheck is the time between two looks for the agent's socket.
const socketCheck = 2 * time.Second

// How long the agent waits before it tries to listen again; pauses double.
const (
	listenRetryFirst = time.Second
	listenRetryMost  = time.Minute
)

// listen listens on the agent's socket. After an errTaken it logs, writes an Event, and retries.
func (a *Agent) listen(ctx context.Context) (net.Listener, error) {
	logged := false
	for pause := listenRetryFirst; ; pause = min(2*pause, listenRetryMost) {
		l, err := listen(a.set.Socket)
		if taken := (*errTaken)(nil); !errors.As(err, &taken) {
			if logged && err == nil {
				a.log.Info("the socket could be made", "socket", a.set.Socket)
			}
			return l, err
		}
		if !logged {
			a.log.Warn(err.Error())
			a.events.Node(apiserver.EventWarning, "SocketTaken", "Listen", err.Error())
			logged = true
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// errTaken is the error of a socket whose name another user holds.
type errTaken struct {
	path string
	why  error
}

func (e *errTaken) Error() string {
	return fmt.Sprintf("cannot listen on %s, because another user's program holds the name: "+
		"nkp serves Services without it and tries again, but its commands "+
		"(nkp status, diff, trace, services) get no answer. "+
		"End that program, or choose another --socket (%s)",
		e.path, strings.ReplaceAll(e.why.Error(), "\n", "; "))
}

// handler returns the handler of all requests. GET changes nothing, POST sends a probe or sets the log level,
// and request bodies are not read.
func (a *Agent) handler() http.Handler {
	mux := a.mux()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), serveTimeout)
		defer cancel()
		mux.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (a *Agent) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		s, err := a.status(r.Context())
		reply(w, s, err)
	})
	mux.HandleFunc("GET /v1/diff", func(w http.ResponseWriter, r *http.Request) {
		text, err := a.diff(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, text)
	})

	mux.HandleFunc("GET /v1/trace", a.serveTrace)
	mux.HandleFunc("GET /v1/trace/sample", a.serveSample)
	mux.HandleFunc("POST /v1/trace/probe", a.serveProbe)
	mux.HandleFunc("GET /v1/services", a.serveServices)
	mux.HandleFunc("GET /v1/inforce", a.serveInForce)

	mux.HandleFunc("GET /v1/pods", func(w http.ResponseWriter, r *http.Request) {
		list, err := a.pods(r.Context())
		reply(w, list, err)
	})

	mux.HandleFunc("GET /v1/flows", a.serveFlows)
	mux.HandleFunc("GET /v1/report", func(w http.ResponseWriter, r *http.Request) {
		reply(w, a.report(r.Context()), nil)
	})
	mux.HandleFunc("POST /v1/log-level", a.serveLogLevel)

	return mux
}

// reply answers a request with a value as JSON, or with an error.
func reply(w http.ResponseWriter, value any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client may be gone
}

// errRunning is the error of a second agent.
func errRunning(path string) error {
	return fmt.Errorf(
		"another nkp is running on this node, or another program listens on --socket %s: stop it first "+
			"(systemctl stop nkp); two with bridges of their own need a --socket each",
		path)
}

// CheckAlone returns an error if another agent listens on the socket. An agent that starts calls it before it
// touches anything; [Agent.Run] checks again.
func CheckAlone(path string) error {
	if path != "" && NewCaller(path).Running() {
		return errRunning(path)
	}
	return nil
}

// diff compares what is installed with what should be; "" means equal. What has come from the source counts.
func (a *Agent) diff(ctx context.Context) (string, error) {
	delivered, active := false, planes{}
	if err := a.ask(ctx, func() { delivered, active = a.delivered, a.planes }); err != nil {
		return "", err
	}
	if !delivered {
		return "", errors.New("the agent's source has not synced yet")
	}
	return active.Diff(ctx)
}

// ErrAbsent reports that no agent listens on the socket.
var ErrAbsent = errors.New("no nkp answers")

// Caller asks a running agent through its socket.
type Caller struct {
	path   string // of the socket; of a remote agent, the node's name for messages
	remote bool   // the agent is another node's, and errors of dialing say why it cannot be reached
	http   http.Client
}

// NewCaller returns a Caller for the agent that listens on path.
func NewCaller(path string) *Caller {
	return newCaller(path, false, func(ctx context.Context) (net.Conn, error) { return dial(ctx, path) })
}

// NewRemoteCaller returns a Caller for the agent of another node, to whose socket dial connects.
func NewRemoteCaller(node string, dial func(context.Context) (net.Conn, error)) *Caller {
	return newCaller("node "+node, true, dial)
}

// remoteConns bounds the connections of a remote Caller, because each is a process in the agent's pod. After
// remoteIdle an unused one is closed.
const (
	remoteConns = 2
	remoteIdle  = time.Minute
)

func newCaller(path string, remote bool, dial func(context.Context) (net.Conn, error)) *Caller {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	if remote {
		t.MaxConnsPerHost, t.IdleConnTimeout = remoteConns, remoteIdle
	}
	return &Caller{path: path, remote: remote, http: http.Client{Timeout: askTimeout, Transport: t}}
}

// Close closes the connections to the agent.
func (c *Caller) Close() { c.http.CloseIdleConnections() }

// Running reports whether an agent answers.
func (c *Caller) Running() bool {
	conn, err := dialBriefly(c.path)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// dialBriefly connects to an agent, or fails within a second.
func dialBriefly(path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return dial(ctx, path)
}

// Connect connects to the socket of the agent that listens on path.
func Connect(ctx context.Context, path string) (net.Conn, error) {
	conn, err := dial(ctx, path)
	if err != nil {
		return nil, NewCaller(path).unanswered(err, 0)
	}
	return conn, nil
}

// Status asks for the agent's status.
func (c *Caller) Status(ctx context.Context) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return fetch[Status](ctx, c, http.MethodGet, "/v1/status")
}

// Diff asks the agent to compare the switch with what it wants; "" means equal.
func (c *Caller) Diff(ctx context.Context) (string, error) {
	body, err := c.request(ctx, http.MethodGet, "/v1/diff")
	return string(body), err
}

// fetch asks for a value in JSON.
func fetch[T any](ctx context.Context, c *Caller, method, path string) (*T, error) {
	body, err := c.request(ctx, method, path)
	if err != nil {
		return nil, err
	}
	value := new(T)
	if err := json.Unmarshal(body, value); err != nil {
		return nil, fmt.Errorf("agent on %s: %w", c.path, err)
	}
	return value, nil
}

// What is read of an agent's answer at most. An agent of another node is trusted with less, because the
// administrator who asks all of them must not suffer from one.
const (
	maxLocalAnswer  = 1 << 30
	maxRemoteAnswer = 64 << 20
)

// printable returns a text, or one in JSON, without characters that a terminal could interpret or that hide
// others.
func printable(text []byte) []byte {
	keep := func(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) }
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == '\\' && len(text) > 1 {
			switch size = 2; text[1] { // the escapes of JSON (RFC 8259, 7)
			case 'b', 'f', 'r':
				r = utf8.RuneError
			case 'u':
				digits := string(text[2:min(6, len(text))])
				if n, err := strconv.ParseUint(digits, 16, 16); err == nil && len(text) >= 6 {
					if size = 6; !keep(rune(n)) && !utf16.IsSurrogate(rune(n)) {
						r = utf8.RuneError
					}
				}
			}
		} else if !keep(r) {
			r = utf8.RuneError
		}

		if r == utf8.RuneError {
			out = utf8.AppendRune(out, r)
		} else {
			out = append(out, text[:size]...)
		}
		text = text[size:]
	}
	return out
}

func (c *Caller) request(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://nkp"+path, nil)
	if err != nil {
		return nil, err
	}

	begun := time.Now()
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.unanswered(errors.Unwrap(err), time.Since(begun))
	}
	defer res.Body.Close()
	most := int64(maxLocalAnswer)
	if c.remote {
		most = maxRemoteAnswer
	}

	body, err := io.ReadAll(io.LimitReader(res.Body, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > most {
		return nil, fmt.Errorf("nkp on %s: the answer is longer than %d MiB", c.path, most>>20)
	}

	if c.remote {
		body = printable(body)
	}
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, fmt.Errorf("nkp on %s is of another version, which does not answer this: "+
			"upgrade the older one", c.path)
	default:
		return nil, fmt.Errorf("nkp on %s: %s", c.path, strings.TrimSpace(string(body)))
	}

	return body, nil
}

// unanswered returns the error for a request that got no answer. It wraps ErrAbsent only if nothing listens
// on the socket.
func (c *Caller) unanswered(err error, after time.Duration) error {
	switch {
	case c.remote:
		return fmt.Errorf("nkp on %s: %w", c.path, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("cannot ask nkp on %s: %w", c.path, err)
	case c.Running():
		return fmt.Errorf("nkp is running (something listens on %s), but has not answered for %v: %w",
			c.path, after.Round(100*time.Millisecond), err)
	}
	return fmt.Errorf("%w on %s; is it running? (%w)", ErrAbsent, c.path, err)
}
