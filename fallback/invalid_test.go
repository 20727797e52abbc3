//go:build linux

package fallback_test

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Packets in conntrack state INVALID are dropped, as kube-proxy does, unless the kernel takes TCP packets outside their window as valid.
func TestInvalidPackets(t *testing.T) {
	testbed.Linux.Require(t)
	for setting, dropped := range map[string]bool{"0": true, "1": false} {
		b, _ := bed(t, testbed.Options{})
		run(t, b.Node, "sh", "-c", "echo "+setting+" > /proc/sys/"+fallback.TCPBeLiberal)
		start(t, b, defaults(restore.NFT), nodeObject)
		if out := inIPTables(t, b, restore.NFT, "iptables-save"); strings.Contains(out, "--ctstate INVALID -j DROP") != dropped {
			t.Errorf("%s is %s:\n%s", fallback.TCPBeLiberal, setting, out)
		}
	}
}
