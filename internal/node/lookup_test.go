package node

import (
	"net/netip"
	"testing"
)

// The value is that of the longest prefix, of the address's own family, and the last one that was put.
func TestLongest(t *testing.T) {
	var l Longest[string]
	if v, ok := l.At(netip.MustParseAddr("10.0.0.1")); ok {
		t.Errorf("nothing gives %q", v)
	}
	for _, p := range []string{"::/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "fd00::/64"} {
		l.Put(netip.MustParsePrefix(p), "old")
		l.Put(netip.MustParsePrefix(p), p)
	}
	for ip, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "10.1.2.4": "10.1.0.0/16", "10.2.0.1": "10.0.0.0/8", "11.0.0.1": "", "fd00::1": "fd00::/64", "fd00:1::1": "::/0",
	} {
		if v, ok := l.At(netip.MustParseAddr(ip)); v != want || ok != (want != "") {
			t.Errorf("%s: %q, %t; want %q", ip, v, ok, want)
		}
	}
}
