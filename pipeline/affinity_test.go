package pipeline

import (
	"net/netip"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
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
