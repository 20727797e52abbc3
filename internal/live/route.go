package live

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// Routes adds steps and doubts about the node's routes: of a packet of its own to the Service's address, and where the kernel delivers
// packets (bridge is ""), to the endpoints. local are the node's addresses. If the packet has to come to a bridge, Routes doubts that it
// does if the kernel sends it by another device.
func Routes(local []netip.Addr, bridge string, q trace.Question, r *trace.Result) {
	to := q.To.Addr()
	if r.Source == k8s.ThisNode && !to.IsLoopback() && !slices.Contains(local, to) {
		from := q.From.Addr()
		if from.IsLoopback() {
			from = netip.Addr{}
		}
		device, err := routeOf(from, to)
		switch {
		case err != nil:
			r.Doubt(fmt.Sprintf("the node has no route to %s (ip route get %s): %v", to, to, err))
		case bridge != "" && device != bridge:
			r.Doubt(fmt.Sprintf("the node sends packets to %s by %s, not by bridge %s (ip route get %s)", to, device, bridge, to))
		default:
			r.Live.Step("the node sends it by %s (ip route get)", device)
		}
	}
	if bridge != "" || r.Verdict != trace.Deliver {
		return
	}
	for _, text := range r.Endpoints[:min(len(r.Endpoints), maxWays)] {
		at, _ := netip.ParseAddrPort(text)
		if _, err := routeOf(netip.Addr{}, at.Addr()); err != nil {
			r.Doubt(fmt.Sprintf("the node has no route to endpoint %s (ip route get %s): %v", at, at.Addr(), err))
		}
	}
}
