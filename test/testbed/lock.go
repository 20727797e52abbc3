//go:build linux

package testbed

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// HoldLock takes the lock of a file, as iptables does, until release is called or the test ends.
func HoldLock(t TB, file string) (release func()) {
	t.Helper()
	f, err := os.Create(file)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	release = func() { _ = f.Close() }
	t.Cleanup(release)
	return release
}

// WaitsForLock reports whether a process waits for the lock of a file.
func WaitsForLock(t TB, file string) bool {
	t.Helper()
	var s unix.Stat_t
	err := unix.Stat(file, &s)
	locks, errLocks := os.ReadFile("/proc/locks")
	if err := errors.Join(err, errLocks); err != nil {
		t.Fatalf("%v", err)
	}
	for l := range strings.Lines(string(locks)) {
		if strings.Contains(l, "->") && strings.Contains(l, fmt.Sprintf(":%d ", s.Ino)) {
			return true
		}
	}
	return false
}
