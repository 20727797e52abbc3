//go:build linux

package testbed

import (
	"context"
	"errors"
	"flag"
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

// Require skips the test if the process is not root and fails it if anything
// else that a bed with the switch needs is missing: where root runs the tests, a
// bed is expected to work.
func Require(t TB) {
	t.Helper()
	OVS.Require(t)
}

// Require is the same for a bed of this plane.
func (p Plane) Require(t TB) {
	t.Helper()
	if f := flag.Lookup("test.short"); f != nil && f.Value.String() == "true" {
		t.Skipf("needs a test bed: not with -short")
	}
	switch err := p.Available(); {
	case err == nil:
	case errors.Is(err, ErrNotRoot):
		t.Skipf("%v", err)
	default:
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
