//go:build linux

package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// tally counts connections and why some failed.
type tally struct {
	made, failed atomic.Int64

	mu      sync.Mutex // protects what follows
	reasons map[string]int
	first   []string // details of the first failures
}

func (t *tally) fail(reason, detail string, began time.Time) {
	t.failed.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reasons == nil {
		t.reasons = map[string]int{}
	}
	t.reasons[reason]++
	if len(t.first) < 30 {
		t.first = append(t.first, fmt.Sprintf("%s, %s: %s (after %v)",
			began.Format("15:04:05.000"), detail, reason, time.Since(began).Round(time.Millisecond)))
	}
}

func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d connections, %d failed", t.made.Load()+t.failed.Load(), t.failed.Load())
	for _, r := range slices.Sorted(maps.Keys(t.reasons)) {
		fmt.Fprintf(&b, "\n  %d: %s", t.reasons[r], r)
	}
	return b.String()
}

// details returns the first failures, one a line.
func (t *tally) details() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.first, "\n")
}
