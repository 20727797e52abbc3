package apiserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// maxAnswer bounds what is read of one answer of the API server, all pages of a list and all events of a watch included, in
// bytes. The largest clusters' EndpointSlices are a tenth of it. A watch that reaches it goes on with a new connection.
var maxAnswer int64 = 512 << 20

// errLonger says that maxAnswer was reached. To ask for the same page again would be of no use: the list begins anew.
var errLonger = errors.New("the answer is longer")

// limiter ends answers that do not end: whoever has taken over the API server, or the way to it, must not take the node's
// memory too.
type limiter struct {
	next http.RoundTripper
	mu   sync.Mutex       // protects read
	read map[string]int64 // by path: of the pages before the next
}

func limitAnswers(next http.RoundTripper) http.RoundTripper {
	return &limiter{next: next, read: map[string]int64{}}
}

// WrappedRoundTripper lets idle connections be closed (k8s.io/apimachinery/pkg/util/net).
func (l *limiter) WrappedRoundTripper() http.RoundTripper { return l.next }

func (l *limiter) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.next.RoundTrip(r)
	if err != nil || r.Method != http.MethodGet {
		return res, err
	}
	body := &limitedBody{ReadCloser: res.Body, of: l, path: r.URL.Path}
	if r.URL.Query().Get("continue") != "" {
		l.mu.Lock()
		body.read.Store(l.read[body.path])
		l.mu.Unlock()
	}
	res.Body = body
	return res, nil
}

type limitedBody struct {
	io.ReadCloser
	of   *limiter
	path string
	read atomic.Int64 // a watch is closed while somebody reads
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

// Close notes what a page had.
func (b *limitedBody) Close() error {
	b.of.mu.Lock()
	b.of.read[b.path] = b.read.Load()
	b.of.mu.Unlock()
	return b.ReadCloser.Close()
}
