//go:build linux

package agent

import (
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/internal/observe/metrics"
)

// A kernel that does not forward is a warning of status, and one more of nkp_warnings.
func TestNotForwarding(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for a network namespace")
	}
	runtime.LockOSThread() // and the thread ends with the test, with its network namespace
	must(t, unix.Unshare(unix.CLONE_NEWNET))
	a := idle(t)
	a.planes = a.main
	a.model.Node.IPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	ended := make(chan struct{})
	defer close(ended)
	go func() { // as the agent's loop does
		for {
			select {
			case f := <-a.asks:
				f()
			case <-ended:
				return
			}
		}
	}()

	var counted [2]float64
	for i, forwards := range []string{"1", "0"} {
		must(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(forwards), 0o644))
		a.collect(func(d *metrics.Definition, v float64, _ ...string) {
			if d == metrics.Warnings {
				counted[i] = v
			}
		})
		s, err := a.status(t.Context())
		must(t, err)
		named := slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.HasPrefix(w, "net.ipv4.ip_forward is 0") })
		if named != (forwards == "0") {
			t.Errorf("ip_forward %s: %q", forwards, s.Warnings)
		}
	}
	if counted[1] != counted[0]+1 {
		t.Errorf("nkp_warnings is %v where the kernel forwards, and %v where it does not", counted[0], counted[1])
	}
}
