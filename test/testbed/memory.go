//go:build linux

package testbed

import (
	"fmt"
	"os"
	"strings"
)

// Memory returns a line of a process's status in KiB: VmRSS for what it holds now, or VmHWM for what it held at
// most (proc(5)).
func Memory(t TB, pid int, line string) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("%v", err)
	}
	_, after, _ := strings.Cut(string(text), "\n"+line+":")
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatalf("%s of process %d: %v", line, pid, err)
	}
	return kib
}
