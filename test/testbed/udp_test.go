//go:build linux

package testbed

import (
	"net/netip"
	"testing"
)

// A server answers from the address that was asked, of a host with several: the
// client's socket would not take another's.
func TestUDPAnswersFromTheAddressAsked(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Plane: Linux})
	serve(t, b.External)
	for _, a := range []string{"192.168.0.77", "fd00:c0::77"} {
		ip := netip.MustParseAddr(a)
		if err := b.External.AddAddr("eth0", netip.PrefixFrom(ip, ip.BitLen())); err != nil {
			t.Fatal(err)
		}
		answer, err := b.Node.Ask(t.Context(), "udp", netip.AddrPortFrom(ip, 53).String())
		if err != nil || answer.Client.Addr() != b.Node.IP(ip) {
			t.Errorf("%v, %v", answer, err)
		}
	}
}
