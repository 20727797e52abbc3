package apiserver

import (
	"slices"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// ListStats describes the first list of a kind: its size and when it was complete.
type ListStats struct {
	Kind    k8s.Kind      `json:"kind"`
	Objects int           `json:"objects"`
	Bytes   int64         `json:"bytes"` // of the answer, decompressed
	Took    time.Duration `json:"-"`     // from the start of Run
}

// firstLists records the first list of each kind. Its methods may be called from any goroutine.
type firstLists struct {
	start time.Time // set before anything else happens

	mu    sync.Mutex // protects below
	lists []ListStats
}

func (l *firstLists) record(kind k8s.Kind, objects int, bytes int64) {
	took := time.Since(l.start)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lists = append(l.lists, ListStats{Kind: kind, Objects: objects, Bytes: bytes, Took: took})
}

// FirstLists returns the first lists completed since Run began, in order of completion.
func (s *Source) FirstLists() []ListStats {
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	return slices.Clone(s.lists.lists)
}
