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

// slow is from when on a connection is counted as slow: it took a retransmission (the first comes after 1 s).
const slow = 900 * time.Millisecond

// tally counts connections and why some failed.
type tally struct {
	made, slow, failed atomic.Int64
	longest            atomic.Int64 // of those that were made, in nanoseconds

	mu      sync.Mutex // protects what follows
	reasons map[string]int
	first   []string // details of the first failures
	late    []string // and of the first slow ones
}

func (t *tally) ok(began time.Time, detail string) {
	took := time.Since(began)
	t.made.Add(1)
	if took > slow {
		t.slow.Add(1)
		t.note(&t.late, detail, "slow", began)
	}
	for {
		was := t.longest.Load()
		if int64(took) <= was || t.longest.CompareAndSwap(was, int64(took)) {
			return
		}
	}
}

func (t *tally) fail(reason, detail string, began time.Time) {
	t.failed.Add(1)
	t.mu.Lock()
	if t.reasons == nil {
		t.reasons = map[string]int{}
	}
	t.reasons[reason]++
	t.mu.Unlock()
	t.note(&t.first, detail, reason, began)
}

// note keeps the details of the first ones.
func (t *tally) note(in *[]string, detail, what string, began time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(*in) < 30 {
		*in = append(*in, fmt.Sprintf("%s, %s: %s (after %v)", began.Format("15:04:05.000"), detail, what, time.Since(began).Round(time.Millisecond)))
	}
}

func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d connections, %d failed, %d took a retransmission, the longest %v", t.made.Load()+t.failed.Load(), t.failed.Load(),
		t.slow.Load(), time.Duration(t.longest.Load()).Round(time.Millisecond))
	for _, r := range slices.Sorted(maps.Keys(t.reasons)) {
		fmt.Fprintf(&b, "\n  %d: %s", t.reasons[r], r)
	}
	return b.String()
}

// details returns the first failures, one a line.
func (t *tally) details() string { return t.lines(&t.first) }

// delays returns the first slow ones, one a line.
func (t *tally) delays() string { return t.lines(&t.late) }

func (t *tally) lines(of *[]string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(*of, "\n")
}
