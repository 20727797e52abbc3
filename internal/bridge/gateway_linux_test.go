package bridge

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// What the kernel takes for the router's MAC is used, unless it is a pod's, which may have answered in the router's place: then the
// router is unknown, with a warning. A MAC that is configured is used in any case.
func TestRouterIsNoPod(t *testing.T) {
	testbed.Isolate(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "br-x"}, PeerName: "router"}
	must(netlink.LinkAdd(link))
	addr, err := netlink.ParseAddr("172.16.0.2/24")
	must(err)
	must(netlink.AddrAdd(link, addr))
	must(netlink.LinkSetUp(link))
	router := net.IPv4(172, 16, 0, 1)
	must(netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Gw: router}))
	hears := func(mac flow.MAC) {
		t.Helper()
		must(netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Index, IP: router, HardwareAddr: mac[:], State: netlink.NUD_REACHABLE}))
	}
	routers, pods := flow.MAC{2, 0, 0, 0, 0, 1}, flow.MAC{2, 0, 0, 0, 0, 0x11}
	sw := &ovsdb.Switch{Bridge: "br-x", Exists: true, LocalMAC: []byte{2, 0, 0, 0, 0, 2}, Ports: []ovsdb.Port{
		{Name: "uplink", OFPort: 1, MAC: routers[:]},
		{Name: "pod-a", OFPort: 11, MAC: pods[:], IfaceID: "a", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.11")}},
	}}
	m := &k8s.Model{Node: k8s.Node{IPs: []netip.Addr{netip.MustParseAddr("172.16.0.2")}}}
	for _, tc := range []struct {
		hears, configured, want flow.MAC
		warns                   bool
	}{
		{hears: routers, want: routers},
		{hears: pods, warns: true},
		{hears: pods, configured: pods, want: pods},
		{hears: routers, want: routers},
	} {
		hears(tc.hears)
		s := Settings{Bridge: "br-x", GatewayMAC: tc.configured, Uplink: "1", LocalDelivery: DeliverOn}
		cfg, warnings := s.PipelineConfig(m, sw)
		warned := slices.ContainsFunc(warnings, func(w string) bool {
			return strings.Contains(w, "pod at port pod-a") && strings.Contains(w, "--gateway-mac")
		})
		if cfg.GatewayMAC != tc.want || warned != tc.warns {
			t.Errorf("the kernel has %s, configured is %s: the router's MAC is %s, want %s; warnings %q", tc.hears, tc.configured, cfg.GatewayMAC, tc.want, warnings)
		}
	}
}
