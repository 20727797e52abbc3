package k8s_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// A bind address takes the place of the Node object's addresses of its family, and of those alone; addresses that are given
// by name take the place of all.
func TestPrimaryIP(t *testing.T) {
	const node = `{apiVersion: v1, kind: Node, metadata: {name: node}, status: {addresses: [
		{type: InternalIP, address: 10.0.0.1}, {type: InternalIP, address: "fd00::1"}]}}`
	ips := func(list ...string) (all []netip.Addr) {
		for _, s := range list {
			all = append(all, netip.MustParseAddr(s))
		}
		return all
	}
	for _, tc := range []struct {
		primary string
		nodeIPs []netip.Addr
		want    []netip.Addr
	}{
		{"0.0.0.0", nil, ips("10.0.0.1", "fd00::1")},
		{"::", nil, ips("10.0.0.1", "fd00::1")},
		{"10.9.9.9", nil, ips("10.9.9.9", "fd00::1")},
		{"fd00::9", nil, ips("fd00::9", "10.0.0.1")},
		{"10.9.9.9", ips("10.7.7.7"), ips("10.7.7.7")},
	} {
		opts := k8s.Options{NodeName: "node", PrimaryIP: netip.MustParseAddr(tc.primary), NodeIPs: tc.nodeIPs}
		if got := explained(t, opts, node).Node().IPs; !slices.Equal(got, tc.want) {
			t.Errorf("bind address %s, node addresses %v: %v, want %v", tc.primary, tc.nodeIPs, got, tc.want)
		}
	}
}
