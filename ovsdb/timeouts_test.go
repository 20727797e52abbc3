//go:build linux

package ovsdb_test

import (
	"reflect"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// The timeouts of a zone are those of its policy; other zones have none.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	b := testbed.Start(t, testbed.Options{})
	c := connect(t, b, b.Bridge)
	check := func(zone uint16, want map[string]int) {
		t.Helper()
		if got, err := c.Timeouts(t.Context(), "netdev", zone); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("zone %d: %v, %v; want %v", zone, got, err, want)
		}
	}
	check(1001, map[string]int{})
	vsctl(t, b, "--", "--id=@d", "create", "Datapath", "datapath_version=0", "--", "set", "Open_vSwitch", ".", "datapaths:netdev=@d",
		"--", "add-zone-tp", "netdev", "zone=1001", "tcp_established=1", "udp_first=3")
	check(1001, map[string]int{"tcp_established": 1, "udp_first": 3})
	check(1002, map[string]int{})
}
