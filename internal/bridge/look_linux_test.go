package bridge

import (
	"log/slog"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// A reading of the node's network tells whether it has changed: nothing is computed anew where it has not.
func TestLookTellsChanges(t *testing.T) {
	testbed.Linux.Require(t)
	runtime.LockOSThread() // and never unlocked: the thread, in a namespace of its own, ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	n := &facts{set: &Settings{Bridge: "lo"}, log: slog.New(slog.DiscardHandler)}
	for i, step := range []struct {
		do   []string
		want bool
	}{
		{nil, true},
		{nil, false},
		{[]string{"addr", "add", "172.16.0.2/24", "dev", "lo"}, true},
		{[]string{"link", "set", "lo", "up"}, true},
		{nil, false},
		{[]string{"route", "add", "10.0.1.0/24", "dev", "lo"}, true},
		{[]string{"neigh", "add", "172.16.0.9", "lladdr", "02:00:00:00:00:09", "dev", "lo"}, true},
		{nil, false},
	} {
		if step.do != nil {
			if out, err := exec.Command("ip", step.do...).CombinedOutput(); err != nil {
				t.Fatalf("ip %v: %v: %s", step.do, err, out)
			}
		}
		if got := n.look(); got != step.want {
			t.Errorf("step %d, ip %v: changed %t, want %t", i, step.do, got, step.want)
		}
	}
}
