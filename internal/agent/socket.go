package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/httpguard"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
)

// serveTimeout ends the agent's own waits before the client's, so that its reason reaches the command.
const serveTimeout = api.AskTimeout - 5*time.Second

// socketLimits limits the clients of the socket. An answer may start at the very end of api.AskTimeout, and
// be long.
var socketLimits = httpguard.Limits{Conns: 128, Serving: 32, Answer: 2 * api.AskTimeout}

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
	mux.HandleFunc(api.GetStatus, func(w http.ResponseWriter, r *http.Request) {
		s, err := a.status(r.Context())
		reply(w, s, err)
	})
	mux.HandleFunc(api.GetDiff, func(w http.ResponseWriter, r *http.Request) {
		text, err := a.diff(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, text)
	})

	mux.HandleFunc(api.GetTrace, a.serveTrace)
	mux.HandleFunc(api.GetSample, a.serveSample)
	mux.HandleFunc(api.SendProbe, a.serveProbe)
	mux.HandleFunc(api.GetServices, a.serveServices)
	mux.HandleFunc(api.GetInForce, a.serveInForce)

	mux.HandleFunc(api.GetPods, func(w http.ResponseWriter, r *http.Request) {
		list, err := a.pods(r.Context())
		reply(w, list, err)
	})

	mux.HandleFunc(api.GetFlows, a.serveFlows)
	mux.HandleFunc(api.GetReport, func(w http.ResponseWriter, r *http.Request) {
		reply(w, a.report(r.Context()), nil)
	})
	mux.HandleFunc(api.SetLogLevel, a.serveLogLevel)

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
	if path != "" && api.Listens(path) == nil {
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
