package dataplane

import (
	"slices"
	"time"
)

// Kept is how many durations a Recent remembers.
const Kept = 1000

// Recent holds the latest durations. The zero Recent is empty and ready; it is not safe for concurrent use.
type Recent struct {
	count int
	last  []time.Duration // a ring
}

// Add records a duration.
func (r *Recent) Add(d time.Duration) {
	if len(r.last) < Kept {
		r.last = append(r.last, d)
	} else {
		r.last[r.count%Kept] = d
	}
	r.count++
}

// Count returns how many there have been in all.
func (r *Recent) Count() int { return r.count }

// Quantiles returns the median and the 99th percentile of those remembered, in milliseconds; 0 if there are
// none.
func (r *Recent) Quantiles() (p50, p99 float64) {
	n := len(r.last)
	if n == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(r.last))
	return Milliseconds(sorted[(n-1)/2]), Milliseconds(sorted[(n-1)*99/100])
}

// Milliseconds returns a duration in milliseconds, to the microsecond.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Programming summarizes how long changes took from their arrival at a data plane until they were in force.
type Programming struct {
	Changes  int     `json:"changes"` // since the start; the quantiles are of the last 1,000
	P50Milli float64 `json:"p50Milliseconds"`
	P99Milli float64 `json:"p99Milliseconds"`
}

// Programming returns what a Recent that holds such durations says.
func (r *Recent) Programming() Programming {
	p := Programming{Changes: r.count}
	p.P50Milli, p.P99Milli = r.Quantiles()
	return p
}
