package node

import (
	"net/netip"
	"testing"
)

// The ports for masquerading are those that the kernel gives to no connection by itself.
func TestFreePorts(t *testing.T) {
	for _, tc := range []struct {
		local, reserved string
		from, to        int
	}{
		{"32768\t60999\n", "\n", 1024, 29999},
		{"1024\t65535\n", "\n", 1024, 1023},
		{"1024\t65535\n", "8080,20000-25000\n", 20000, 25000},
		{"1024\t65535\n", "1024-32767\n", 1024, 29999},
		{"10000 65535", "9148", 1024, 9999},
		{"1024 20000", "", 20001, 29999},
	} {
		p, err := ParsePorts(tc.local, tc.reserved)
		if err != nil {
			t.Fatal(err)
		}
		if from, to := p.Free(1024, 29999); from != tc.from || to != tc.to {
			t.Errorf("range %q, reserved %q: %d to %d, want %d to %d", tc.local, tc.reserved, from, to, tc.from, tc.to)
		}
	}
	if _, err := ParsePorts("x", ""); err == nil {
		t.Error("a range that is none is read")
	}
	if _, err := ParsePorts("1 2", "5-x"); err == nil {
		t.Error("a port that is none is read")
	}
}

// Packets to an address arrive by the interface that has it. For one of a loopback interface it is the one
// that has the default route.
func TestAt(t *testing.T) {
	ip, prefix := netip.MustParseAddr, netip.MustParsePrefix
	n := &Network{
		Links: []Link{
			{Index: 1, Name: "lo", Loopback: true, Addrs: []netip.Addr{ip("127.0.0.1"), ip("192.0.2.2"), ip("2001:db8::2")}},
			{Index: 2, Name: "br-int", Addrs: []netip.Addr{ip("172.16.0.2")}},
			{Index: 3, Name: "eth1", Addrs: []netip.Addr{ip("fd00::2")}},
		},
		Routes: []Route{{Dst: prefix("0.0.0.0/0"), Via: ip("172.16.0.1"), Link: 2}, {Dst: prefix("::/0"), Via: ip("fd00::1"), Link: 3}},
	}
	for _, tc := range []struct {
		addr string
		want bool
	}{{"172.16.0.2", true}, {"192.0.2.2", true}, {"2001:db8::2", false}, {"fd00::2", false}, {"127.0.0.1", false}, {"172.16.0.9", false}} {
		if got := n.At("br-int", []netip.Addr{ip(tc.addr)}); got != tc.want {
			t.Errorf("%s: %t", tc.addr, got)
		}
	}
	var none *Network
	if none.At("br-int", nil) || none.Has(nil) || none.DefaultRouteOn("br-int") {
		t.Error("a network that is not known knows something")
	}
}
