// Package nightly tells the tests of the gate, which run for every change, from those of `make nightly`, which run for long, repeat
// one thing many times, or draw random cases.
package nightly

import (
	"math/rand/v2"
	"os"
	"strconv"
)

// Env is set by `make nightly`, and not by the gate.
const Env = "NKP_NIGHTLY"

// TB is the part of testing.TB that this package needs.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Is reports whether the night's tests run.
func Is() bool { return os.Getenv(Env) != "" }

// Only skips the test in the gate. why says what the gate has instead, or what the test takes.
func Only(t TB, why string) {
	t.Helper()
	if !Is() {
		t.Skipf("make nightly runs it: %s", why)
	}
}

// Count returns the number of cases of a random test: few in the gate, many at night.
func Count(few, many int) int {
	if Is() {
		return many
	}
	return few
}

// Seed returns the seed of a random test, and logs it. It is fixed in the gate, so that only a change of the code turns a result;
// at night it is drawn, or taken from the environment variable NKP_SEED.
func Seed(t TB) uint64 {
	t.Helper()
	seed := uint64(1)
	if text := os.Getenv("NKP_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("NKP_SEED: %v", err)
		}
		seed = n
	} else if Is() {
		seed = rand.Uint64()
	}
	t.Logf("NKP_SEED=%d", seed)
	return seed
}
