package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
)

// The planes keep route_localnet set where NodePorts are served at 127.0.0.1, and nowhere else.
func TestLocalhostNodePorts(t *testing.T) {
	prefix := netip.MustParsePrefix
	for _, tc := range []struct {
		what    string
		asked   bool
		primary bool
		ranges  []netip.Prefix
		want    bool
	}{
		{"everywhere", true, false, nil, true},
		{"not asked for", false, false, nil, false},
		{"primary", true, true, nil, false},
		{"a range", true, false, []netip.Prefix{prefix("192.0.2.0/24")}, false},
		{"primary and localhost", true, true, []netip.Prefix{prefix("127.0.0.0/8")}, true},
		{"a range within 127.0.0.0/8 without 127.0.0.1", true, false, []netip.Prefix{prefix("127.1.0.0/16")}, false},
		{"all of IPv4", true, true, []netip.Prefix{prefix("0.0.0.0/0")}, true},
		{"a range of IPv6 alone", true, false, []netip.Prefix{prefix("fd00::/8")}, true},
		{"localhost, not asked for", false, false, []netip.Prefix{prefix("127.0.0.0/8")}, false},
	} {
		s := Settings{Options: k8s.Options{NodePortPrimary: tc.primary, NodePortAddresses: tc.ranges}, Fallback: fallback.DefaultOptions()}
		s.Fallback.LocalhostNodePorts = tc.asked
		if got := s.NFTablesOptions(serving.Everything).LocalhostNodePorts; got != tc.want || got != s.IPTablesOptions(serving.Own).LocalhostNodePorts {
			t.Errorf("%s: nftables %t, want %t in both planes", tc.what, got, tc.want)
		}
	}
}

// NodePorts are served at [::1] where a range names it, other than all of IPv6, and nkp serves what the node sends to itself.
func TestUserspaceLoopback6(t *testing.T) {
	for _, tc := range []struct {
		ranges string
		by     mode.Mode
		host   bridge.HostTraffic
		want   bool
	}{
		{"", mode.NFTables, "", false},
		{"::/0", mode.NFTables, "", false},
		{"127.0.0.0/8", mode.NFTables, "", false},
		{"fd00::/8", mode.NFTables, "", false},
		{"::1/128", mode.NFTables, "", true},
		{"::/1", mode.IPTables, "", true},
		{"::/0,::1/128", mode.OVS, bridge.HostAuto, true},
		{"::1/128", mode.OVS, bridge.HostIPTables, true},
		{"::1/128", mode.OVS, bridge.HostNFTables, true},
		{"::1/128", mode.OVS, bridge.HostOVS, false},
		{"::1/128", mode.OVS, bridge.HostOff, false},
		{"::1/128", mode.Windows, "", false},
	} {
		var s Settings
		s.HostTraffic = tc.host
		for text := range strings.SplitSeq(tc.ranges, ",") {
			if text != "" {
				s.NodePortAddresses = append(s.NodePortAddresses, netip.MustParsePrefix(text))
			}
		}
		if got := s.TrackerOptions(tc.by).UserspaceLoopback6; got != tc.want {
			t.Errorf("%q in mode %s, host traffic %q: %t, want %t", tc.ranges, tc.by, tc.host, got, tc.want)
		}
	}
}
