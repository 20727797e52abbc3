package live

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// Routes adds steps and doubts about the node's routes: of a packet of its own to the Service's address, and
// where the kernel delivers packets (bridge is ""), to the endpoints. local are the node's addresses. If the
// packet has to come to a bridge, Routes doubts that it does if the kernel sends it by another device. chains
// returns which chains of a device see a device's packets.
func Routes(
	local []netip.Addr,
	bridge string,
	chains func(device string) ([]string, error),
	q trace.Question,
	r *trace.Result,
) {
	to := q.To.Addr()
	var devices []string
	defer func() { filters(devices, chains, r) }()

	if r.Source == k8s.ThisNode && !to.IsLoopback() && !slices.Contains(local, to) {
		from := q.From.Addr()
		if from.IsLoopback() {
			from = netip.Addr{}
		}
		device, err := RouteOf(from, to)
		switch {
		case err != nil:
			r.Doubt(fmt.Sprintf("the node has no route to %s (ip route get %s): %v", to, to, err))
		case bridge != "" && device != bridge:
			r.Doubt(fmt.Sprintf("the node sends packets to %s by %s, not by bridge %s (ip route get %s)",
				to, device, bridge, to))
		default:
			r.Live.Step("the node sends it by %s (ip route get)", device)
			devices = append(devices, device)
		}
	}

	if bridge != "" || r.Verdict != trace.Deliver {
		return
	}

	for _, text := range r.Endpoints[:min(len(r.Endpoints), maxPaths)] {
		at, _ := netip.ParseAddrPort(text)
		device, err := RouteOf(netip.Addr{}, at.Addr())
		if err != nil {
			r.Doubt(fmt.Sprintf("the node has no route to endpoint %s (ip route get %s): %v",
				at, at.Addr(), err))
			continue
		}
		devices = append(devices, device)

		client := q.From.Addr()
		if r.Source != k8s.ThisNode && !slices.Contains(local, at.Addr()) && !client.IsLoopback() {
			for i, way := range [][2]netip.Addr{{client, at.Addr()}, {at.Addr(), client}} {
				in := q.In
				if i > 0 {
					in = ""
				}
				if by, err := forwards(way[0], way[1], in); err != nil {
					r.Doubt(fmt.Sprintf("the node does not forward packets of %s to %s "+
						"(ip route get %s from %s iif %s): %v", way[0], way[1], way[1], way[0], by, err))
				}
			}
		}
	}
}

// Closed adds a doubt for each endpoint, of maxPaths, to which the kernel, and so the bridge, sends nothing.
// isPod reports whether the bridge delivers to an address by itself.
func Closed(isPod func(netip.Addr) bool, r *trace.Result) {
	for _, text := range r.Endpoints[:min(len(r.Endpoints), maxPaths)] {
		at, _ := netip.ParseAddrPort(text)
		if err := closed(at.Addr()); err != nil && !isPod(at.Addr()) {
			r.Doubt(fmt.Sprintf("the node sends nothing to endpoint %s (ip route get %s): %v",
				at, at.Addr(), err))
		}
	}
}

// filters adds a doubt for each chain that sees packets of the devices and is not evaluated.
func filters(devices []string, chains func(string) ([]string, error), r *trace.Result) {
	slices.Sort(devices)
	for _, d := range slices.Compact(devices) {
		list, _ := chains(d) // without nftables there are none
		for _, c := range list {
			r.Doubt(fmt.Sprintf(
				"%s sees the packets of device %s, and nkp does not evaluate the chains of a device", c, d))
		}
	}
}
