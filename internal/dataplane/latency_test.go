package dataplane

import (
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	var r Recent
	if p50, p99 := r.Quantiles(); p50 != 0 || p99 != 0 || r.Count() != 0 {
		t.Errorf("of nothing: %v %v", p50, p99)
	}
	for i := 1; i <= 100; i++ {
		r.Add(time.Duration(i) * time.Millisecond)
	}
	if got, want := r.Programming(), (Programming{100, 50, 99}); got != want {
		t.Errorf("of 1 to 100 ms: %+v, want %+v", got, want)
	}
	for i := range 3 * Kept { // only the last count
		r.Add(time.Duration(i) * time.Millisecond)
	}
	if got, want := r.Programming(), (Programming{100 + 3*Kept, 2499, 2989}); got != want || len(r.last) != Kept {
		t.Errorf("of 2000 to 2999: %+v, want %+v (%d kept)", got, want, len(r.last))
	}
}
