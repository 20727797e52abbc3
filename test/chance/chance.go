package chance

import "math"

// Risk is the probability with which a count of a correct program lies outside Bounds.
const Risk = 1e-9

// Bounds returns the least and the greatest count of successes in n independent trials of probability p that a test must accept. The
// exact binomial probability of a count below lo, and that of one above hi, are at most Risk/2 each.
func Bounds(n int, p float64) (lo, hi int) {
	below := 0.0
	for lo = 0; lo < n; lo++ {
		if below += mass(n, lo, p); below > Risk/2 {
			break
		}
	}
	above := 0.0
	for hi = n; hi > 0; hi-- {
		if above += mass(n, hi, p); above > Risk/2 {
			break
		}
	}
	return lo, hi
}

// Trials returns how many trials of probability p are needed until not a single success among them is as improbable as Risk.
func Trials(p float64) int {
	if p >= 1 {
		return 1
	}
	return int(math.Ceil(math.Log(Risk) / math.Log1p(-p)))
}

// mass returns the binomial probability of exactly k successes.
func mass(n, k int, p float64) float64 {
	switch {
	case p <= 0:
		return float64(b2i(k == 0))
	case p >= 1:
		return float64(b2i(k == n))
	}
	return math.Exp(lgamma(n+1) - lgamma(k+1) - lgamma(n-k+1) + float64(k)*math.Log(p) + float64(n-k)*math.Log1p(-p))
}

func lgamma(x int) float64 {
	v, _ := math.Lgamma(float64(x))
	return v
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
