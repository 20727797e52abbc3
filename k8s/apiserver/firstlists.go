package apiserver

import (
	"io"
	"net/http"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// ListStats tells of the first list of a kind: what the start of an Source took.
type ListStats struct {
	Kind    k8s.Kind      `json:"kind"`
	Objects int           `json:"objects"`
	Bytes   int64         `json:"bytes"` // of the answer as it is decoded, which may have come compressed
	Took    time.Duration `json:"-"`     // from the begin of Run
}

// firstLists notes the first list of each kind. Its methods may be called from any goroutine.
type firstLists struct {
	began time.Time // set before anything else happens
	bytes answerBytes

	mu    sync.Mutex // protects below
	lists []ListStats
}

func (l *firstLists) note(r *resource, objects int) {
	took := time.Since(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lists = append(l.lists, ListStats{Kind: r.kind, Objects: objects, Bytes: l.bytes.of(r.plural).Load(), Took: took})
}

// FirstLists gives the lists that have come in since Run began, in that order.
func (s *Source) FirstLists() []ListStats {
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	return slices.Clone(s.lists.lists)
}

// answerBytes counts how much was read of the answers about each kind of object, by the plural that ends the path.
type answerBytes struct{ counts sync.Map }

func (b *answerBytes) of(plural string) *atomic.Int64 {
	n, _ := b.counts.LoadOrStore(plural, &atomic.Int64{})
	return n.(*atomic.Int64)
}

// observe makes a RoundTripper that counts.
func (b *answerBytes) observe(next http.RoundTripper) http.RoundTripper { return byteCounter{next, b} }

type byteCounter struct {
	next http.RoundTripper
	of   *answerBytes
}

// WrappedRoundTripper is part of k8s.io/apimachinery's net.RoundTripperWrapper.
func (c byteCounter) WrappedRoundTripper() http.RoundTripper { return c.next }

// RoundTrip is part of http.RoundTripper.
func (c byteCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(r)
	if err == nil {
		answer.Body = countedBody{answer.Body, c.of.of(path.Base(r.URL.Path))}
	}
	return answer, err
}

type countedBody struct {
	io.ReadCloser
	count *atomic.Int64
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.count.Add(int64(n))
	return n, err
}
