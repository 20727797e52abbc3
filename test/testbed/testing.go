//go:build linux

package testbed

import (
	"context"
	"flag"
	"os"
)

// TB is the part of testing.TB that this package needs; it keeps package
// testing out of programs that build a bed.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Failed() bool
}

// NeedRoot fails the test if the process is not root, because a suite that leaves tests out must not pass unnoticed. With -short,
// or if the environment variable NKP_MAY_SKIP is set, it skips the test instead.
func NeedRoot(t TB) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case short() || os.Getenv("NKP_MAY_SKIP") != "":
		t.Skipf("needs root")
	default:
		t.Fatalf("needs root; NKP_MAY_SKIP=1 skips the tests that do")
	}
}

// short reports whether the tests run with -short.
func short() bool {
	f := flag.Lookup("test.short")
	return f != nil && f.Value.String() == "true"
}

// Require fails the test if anything that a bed with the switch needs is missing. With -short it skips the test.
func Require(t TB) {
	t.Helper()
	OVS.Require(t)
}

// Require is the same for a bed of this plane.
func (p Plane) Require(t TB) {
	t.Helper()
	if short() {
		t.Skipf("needs a test bed: not with -short")
	}
	NeedRoot(t)
	if err := p.Available(); err != nil {
		t.Fatalf("%v", err)
	}
}

// Start builds a bed for a test and closes it when the test ends. If the test
// failed it logs the end of the switch's own log.
func Start(t TB, o Options) *Bed {
	t.Helper()
	o.Plane.Require(t)
	b, err := New(context.Background(), o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if t.Failed() && o.Plane == OVS {
			t.Logf("end of ovs-vswitchd's log:\n%s", b.vswitchd.logTail())
		}
		if err := b.Close(); err != nil {
			t.Logf("%v", err)
		}
	})
	return b
}
