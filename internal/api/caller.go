package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// AskTimeout bounds how long a command waits for the agent. statusTimeout is for status, for which the agent
// waits at most a fraction of a second.
const (
	AskTimeout    = 30 * time.Second
	statusTimeout = 5 * time.Second
)

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
	return newCaller(path, false, func(ctx context.Context) (net.Conn, error) { return Dial(ctx, path) })
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
	return &Caller{path: path, remote: remote, http: http.Client{Timeout: AskTimeout, Transport: t}}
}

// Close closes the connections to the agent.
func (c *Caller) Close() { c.http.CloseIdleConnections() }

// Listens returns nil if an agent listens on path, within a second.
func Listens(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := Dial(ctx, path)
	if err == nil {
		conn.Close()
	}
	return err
}

// Connect connects to the socket of the agent that listens on path.
func Connect(ctx context.Context, path string) (net.Conn, error) {
	conn, err := Dial(ctx, path)
	if err != nil {
		return nil, NewCaller(path).unanswered(err, 0)
	}
	return conn, nil
}

// Status asks for the agent's status.
func (c *Caller) Status(ctx context.Context) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return fetch[Status](ctx, c, GetStatus, nil)
}

// Diff asks the agent to compare the switch with what it wants; "" means equal.
func (c *Caller) Diff(ctx context.Context) (string, error) {
	body, err := c.request(ctx, GetDiff, nil)
	return string(body), err
}

// fetch asks for a value in JSON.
func fetch[T any](ctx context.Context, c *Caller, pattern string, q url.Values) (*T, error) {
	body, err := c.request(ctx, pattern, q)
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

// request sends a request, a pattern such as GetStatus, and returns the body of a good answer.
func (c *Caller) request(ctx context.Context, pattern string, q url.Values) ([]byte, error) {
	method, path, _ := strings.Cut(pattern, " ")
	req, err := http.NewRequestWithContext(ctx, method, "http://nkp"+path+"?"+q.Encode(), nil)
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
	case Listens(c.path) == nil:
		return fmt.Errorf("nkp is running (something listens on %s), but has not answered for %v: %w",
			c.path, after.Round(100*time.Millisecond), err)
	}
	return fmt.Errorf("%w on %s; is it running? (%w)", ErrAbsent, c.path, err)
}
