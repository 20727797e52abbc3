//go:build linux

package testbed

import (
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"
)

// Isolate puts the rest of a test, and programs that it starts, into a network namespace of its own. The test's
// thread is never unlocked: it ends with the test's goroutine, and the namespace with it.
func Isolate(t TB) {
	t.Helper()
	NeedRoot(t)
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("a network namespace: %v", err)
	}
}

// Alone returns a host without a bed, which has loopback with these addresses too. It ends with the test.
func Alone(t TB, addrs ...string) *Host {
	t.Helper()
	NeedRoot(t)
	ns, err := newNamespace()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(ns.close)
	h := &Host{Name: "alone", ns: ns}
	err = ns.basics(false)
	for _, a := range addrs {
		if err == nil {
			err = h.AddAddr("lo", netip.MustParsePrefix(a))
		}
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	return h
}
