package bridge

import (
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// A bridge that is down is an error only while routes are wanted there.
func TestRoutesOfABridgeThatIsDown(t *testing.T) {
	testbed.Linux.Require(t)
	runtime.LockOSThread() // and never unlocked: the thread, in a namespace of its own, ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	const bridge = "lo" // down in a new namespace
	if err := setRoutes(bridge, nil); err != nil {
		t.Errorf("no routes: %v", err)
	}
	if err := setRoutes(bridge, []route{{Dst: netip.MustParsePrefix("40.0.0.0/16")}}); err == nil {
		t.Error("a route on an interface that is down is no error")
	}
}
