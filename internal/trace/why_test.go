package trace

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// The ports of endpoints are named once each with an EndpointSlice that has them, and not without end.
func TestSlicePorts(t *testing.T) {
	var states []k8s.EndpointState
	for i, port := range []uint16{8080, 8080, 9090, 1, 2, 3} {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), port)
		states = append(states, k8s.EndpointState{Addr: at, Slice: fmt.Sprintf("web-%d", i)})
	}
	for n, want := range map[int]string{
		2: "port 8080 of EndpointSlice default/web-0",
		3: "port 8080 of EndpointSlice default/web-0, port 9090 of EndpointSlice default/web-2",
		6: "port 8080 of EndpointSlice default/web-0, port 9090 of EndpointSlice default/web-2, port 1 of EndpointSlice default/web-3, 2 more ports",
	} {
		if got := slicePorts("default", states[:n]); got != want {
			t.Errorf("%d endpoints: %q, want %q", n, got, want)
		}
	}
}
