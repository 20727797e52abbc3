package sysctl

import (
	"os"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// IPv6 is forwarded if all devices forward, or the one that packets come in by (Linux 6.17).
func TestForceForwarding(t *testing.T) {
	testbed.Isolate(t)
	const own = "/proc/sys/net/ipv6/conf/lo/force_forwarding"
	if _, err := os.Stat(own); err != nil {
		t.Skipf("Linux before 6.17: %v", err)
	}
	set := func(path, value string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const all = "net.ipv6.conf.all.forwarding"
	for _, step := range []struct{ all, own, device, want string }{
		{"0", "0", "lo", all}, {"0", "1", "lo", ""}, {"0", "1", "", all}, {"1", "0", "lo", ""}, {"1", "1", "lo", ""},
	} {
		set("/proc/sys/net/ipv6/conf/all/forwarding", step.all)
		set(own, step.own)
		if got := ForwardingOff(true, step.device); got != step.want {
			t.Errorf("all %s, device %s, by %q: %q, want %q", step.all, step.own, step.device, got, step.want)
		}
	}
}
