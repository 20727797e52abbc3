package apiserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Timeouts that detect a silent server: an idle connection is pinged after idleTimeout and closed pingTimeout
// later, and dialing a new one takes at most dialTimeout. With client-go's defaults a node that is cut off
// notices it after more than five minutes, because client-go retries timeouts ten times before it returns an
// error.
const (
	idleTimeout = 10 * time.Second
	pingTimeout = 5 * time.Second
	dialTimeout = 5 * time.Second
)

// setHTTP2Timeouts sets the timeouts that client-go reads only from the environment, unless an operator has
// set them.
func setHTTP2Timeouts() {
	for name, d := range map[string]time.Duration{
		"HTTP2_READ_IDLE_TIMEOUT_SECONDS": idleTimeout, "HTTP2_PING_TIMEOUT_SECONDS": pingTimeout,
	} {
		if os.Getenv(name) == "" {
			os.Setenv(name, strconv.Itoa(int(d.Seconds())))
		}
	}
}

// maxAnswer is the largest answer read from the API server, in bytes, all pages of a list and all events of a
// watch included. A watch that reaches it continues on a new connection. Of a list that is taken object by
// object no more is in memory than what is kept of it (maxKept), so that maxList only ends one that has no
// end: no etcd stores a quarter of it.
var (
	maxAnswer int64 = 512 << 20
	maxList   int64 = 32 << 30
)

// errTooLong reports that maxAnswer or maxList was reached. Requesting the same page again cannot help: the
// list starts over.
var errTooLong = errors.New("the answer is longer")

// objectByObject is the key of a request's context whose answer decodeList reads, with bounds of its own.
type objectByObject struct{}

// transport is a RoundTripper that reports to health whether requests are answered, including those that
// client-go retries itself. It also truncates endless answers, because an attacker who controls the API
// server, or the path to it, must not exhaust the node's memory.
type transport struct {
	next   http.RoundTripper
	health *health          // nil: not reported
	mu     sync.Mutex       // protects read
	read   map[string]int64 // bytes of the last closed answer, with earlier pages, by last path element
}

func (t *transport) wrap(next http.RoundTripper) http.RoundTripper {
	t.next, t.read = next, map[string]int64{}
	return t
}

// WrappedRoundTripper lets idle connections be closed (k8s.io/apimachinery/pkg/util/net).
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip is part of http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(r)
	if t.health != nil && (err == nil || r.Context().Err() == nil) {
		t.health.recordContact(err)
	}
	if err != nil || r.Method != http.MethodGet {
		return res, err
	}
	body := &limitedBody{ReadCloser: res.Body, of: t, plural: path.Base(r.URL.Path), limit: maxAnswer}
	if r.Context().Value(objectByObject{}) != nil {
		body.limit = maxList
	}
	if r.URL.Query().Get("continue") != "" {
		body.read.Store(t.bytes(body.plural))
	}
	res.Body = body
	return res, nil
}

// bytes returns how many bytes were read of the last answer for a resource, named by its plural.
func (t *transport) bytes(plural string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read[plural]
}

type limitedBody struct {
	io.ReadCloser
	of     *transport
	plural string
	limit  int64
	read   atomic.Int64 // a watch is not closed by the goroutine that reads it
}

func (b *limitedBody) Read(p []byte) (int, error) {
	read := b.read.Load()
	if read >= b.limit {
		return 0, fmt.Errorf("%w than %d MiB: the rest is not read", errTooLong, b.limit>>20)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.limit-read)])
	b.read.Add(int64(n))
	return n, err
}

// Close records how many bytes were read.
func (b *limitedBody) Close() error {
	b.of.mu.Lock()
	b.of.read[b.plural] = b.read.Load()
	b.of.mu.Unlock()
	return b.ReadCloser.Close()
}
