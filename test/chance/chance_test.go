package chance

import (
	"math"
	"testing"
)

// The bounds are the tightest: the probability outside is at most Risk, one count further in it is more.
func TestBounds(t *testing.T) {
	for _, tc := range []struct {
		n int
		p float64
	}{{10, 0.5}, {100, 0.5}, {1000, 1.0 / 3}, {3000, 0.1}, {50, 0.01}, {5, 0}, {5, 1}} {
		lo, hi := Bounds(tc.n, tc.p)
		outside := func(lo, hi int) (below, above float64) {
			for k := range tc.n + 1 {
				if k < lo {
					below += mass(tc.n, k, tc.p)
				}
				if k > hi {
					above += mass(tc.n, k, tc.p)
				}
			}
			return below, above
		}
		if below, above := outside(lo, hi); below > Risk/2 || above > Risk/2 {
			t.Errorf("%d of %v: outside %d to %d: %g and %g", tc.n, tc.p, lo, hi, below, above)
		}
		if below, above := outside(lo+1, hi-1); below <= Risk/2 || above <= Risk/2 {
			t.Errorf("%d of %v: %d to %d could be tighter", tc.n, tc.p, lo, hi)
		}
	}
}

// Fewer trials than Trials are not enough.
func TestTrials(t *testing.T) {
	for _, p := range []float64{0.5, 0.1, 1.0 / 3} {
		if n := Trials(p); math.Pow(1-p, float64(n)) > Risk || math.Pow(1-p, float64(n-1)) <= Risk {
			t.Errorf("%v: %d trials", p, n)
		}
	}
}
