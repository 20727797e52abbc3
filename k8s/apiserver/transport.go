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

// How soon a server that says nothing at all is noticed: a silent connection is asked whether it lives after idleTimeout
// and given up pingTimeout later, and a new one is tried for dialTimeout. With client-go's own numbers a node that is cut
// off learns of it after more than five minutes, because it retries timeouts ten times before it returns an error.
const (
	idleTimeout = 10 * time.Second
	pingTimeout = 5 * time.Second
	dialTimeout = 5 * time.Second
)

// noticeSilence sets what client-go reads from the environment alone, unless an operator has.
func noticeSilence() {
	for name, d := range map[string]time.Duration{
		"HTTP2_READ_IDLE_TIMEOUT_SECONDS": idleTimeout, "HTTP2_PING_TIMEOUT_SECONDS": pingTimeout,
	} {
		if os.Getenv(name) == "" {
			os.Setenv(name, strconv.Itoa(int(d.Seconds())))
		}
	}
}

// maxAnswer bounds what is read of one answer of the API server, all pages of a list and all events of a watch included, in
// bytes. The largest clusters' EndpointSlices are a tenth of it. A watch that reaches it goes on with a new connection.
var maxAnswer int64 = 512 << 20

// errLonger says that maxAnswer was reached. To ask for the same page again would be of no use: the list starts over.
var errLonger = errors.New("the answer is longer")

// transport is a RoundTripper that reports to health whether requests are answered, also those that client-go retries by
// itself, and that ends answers which do not end: an attacker who has taken over the API server, or the way to it, must not
// take the node's memory too.
type transport struct {
	next   http.RoundTripper
	health *health          // nil: not reported
	mu     sync.Mutex       // protects read
	read   map[string]int64 // bytes of the last answer that was closed, with the pages before it, by the end of its path
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
		t.health.noteContact(err)
	}
	if err != nil || r.Method != http.MethodGet {
		return res, err
	}
	body := &limitedBody{ReadCloser: res.Body, of: t, plural: path.Base(r.URL.Path)}
	if r.URL.Query().Get("continue") != "" {
		body.read.Store(t.bytes(body.plural))
	}
	res.Body = body
	return res, nil
}

// bytes returns how much was read of the last answer about a kind of object, by the plural that ends the path.
func (t *transport) bytes(plural string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read[plural]
}

type limitedBody struct {
	io.ReadCloser
	of     *transport
	plural string
	read   atomic.Int64 // a watch is closed by another goroutine than reads it
}

func (b *limitedBody) Read(p []byte) (int, error) {
	read := b.read.Load()
	if read >= maxAnswer {
		return 0, fmt.Errorf("%w than %d MiB: the rest is not read", errLonger, maxAnswer>>20)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), maxAnswer-read)])
	b.read.Add(int64(n))
	return n, err
}

// Close records what a page had.
func (b *limitedBody) Close() error {
	b.of.mu.Lock()
	b.of.read[b.plural] = b.read.Load()
	b.of.mu.Unlock()
	return b.ReadCloser.Close()
}
