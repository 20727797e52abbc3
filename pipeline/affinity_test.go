package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Each endpoint's number has endpointIDBit, by which flows recognize one, also where hashes are equal and the last number is taken.
func TestEndpointIDsStayInRange(t *testing.T) {
	var list []k8s.Endpoint
	for _, a := range []string{"10.0.72.148:36731", "10.0.201.127:10633", "10.1.16.18:63533"} { // their hashes end in 30 ones
		list = append(list, k8s.Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	ids := endpointIDs(list)
	taken := map[uint32]bool{}
	for _, e := range list {
		id := ids[e.Addr]
		if id>>30 != 1 || taken[id] {
			t.Errorf("%s has %#x, of %x", e.Addr, id, ids)
		}
		taken[id] = true
	}
}

// Pins, the seed and NoPins are volatile, whatever their Service port; nothing that nkp installs itself is, and nothing of others.
func TestVolatileCookies(t *testing.T) {
	l := DefaultLayout()
	for cookie, want := range map[uint64]bool{
		l.Pins(1).Cookie: true, l.Pins(1<<idBits - 1).Cookie: true, l.Seed(5).Cookie: true, l.NoPins().Cookie: true, l.cookie(cookieProbe, 7): true,
		l.cookie(cookieStatic, 0): false, l.cookie(cookieStatic, 7|cookieDrops): false, 0: false, l.Pins(1).Cookie ^ 1<<63: false,
	} {
		got := slices.ContainsFunc(l.VolatileCookies(), func(c flow.Cookies) bool { return cookie&c.Mask == c.Cookie })
		if got != want {
			t.Errorf("cookie %#x: %v", cookie, got)
		}
	}
}
