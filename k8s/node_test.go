package k8s_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/manifest"
)

// A bind address takes the place of the Node object's addresses of its family, and of those alone; addresses that are given
// by name take the place of all.
func TestPrimaryIP(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.yaml")
	text := `{apiVersion: v1, kind: Node, metadata: {name: node}, status: {addresses: [{type: InternalIP, address: 10.0.0.1}, {type: InternalIP, address: "fd00::1"}]}}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ips := func(list ...string) []netip.Addr {
		var all []netip.Addr
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
		tr := k8s.NewTracker(k8s.Options{NodeName: "node", PrimaryIP: netip.MustParseAddr(tc.primary), NodeIPs: tc.nodeIPs})
		m := manifest.Load(path)
		if len(m.Problems.Errors) > 0 {
			t.Fatal(m.Problems.Errors)
		}
		tr.Apply(m.Objects)
		model, _ := tr.Flush()
		if !slices.Equal(model.Node.IPs, tc.want) {
			t.Errorf("bind address %s, node addresses %v: %v, want %v", tc.primary, tc.nodeIPs, model.Node.IPs, tc.want)
		}
	}
}
