package bridge

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/test/bound"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Status names the pods' ports and the uplink that the database says something against, each once, and at most 5.
func TestPortNotes(t *testing.T) {
	list := func(uplink uint32, ports ...ovsdb.Port) []string {
		var notes portNotes
		notes.byDatabase(&ovsdb.Switch{Bridge: "lo", Ports: ports}, uplink) // a device that there is
		return notes.warnings()
	}
	got := list(1,
		ovsdb.Port{Name: "eth0", OFPort: 1, Dead: []string{"Port.status:stp_state is blocking"}, Limited: []string{"shaped, as uplinks are"}},
		ovsdb.Port{Name: "spare", OFPort: 2, LinkDown: true},
		ovsdb.Port{Name: "pod-a", OFPort: 3, IfaceID: "a", Type: "dpdkvhostuserclient", LinkDown: true, Dead: []string{"Interface.admin_state is down"}},
		ovsdb.Port{Name: "lo", OFPort: 4, IfaceID: "b", LinkDown: true, Limited: []string{"Port.qos is q"}},
		ovsdb.Port{Name: "pod-c", IfaceID: "c", LinkDown: true},
		ovsdb.Port{Name: "pod-d", OFPort: 5, IfaceID: "d", Dead: []string{"Interface.admin_state is down"}})
	want := []string{
		"port eth0: Port.status:stp_state is blocking: nothing passes",
		"port pod-a: Interface.admin_state is down: nothing passes",
		"port lo: Interface.link_state is down: nothing passes",
		"port lo: Port.qos is q",
		"port pod-d: Interface.admin_state is down for ovs-vswitchd, but the node has no device of that name any more: " +
			"if it was renamed, it is used until ovs-vswitchd restarts, which will not find it then",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
	bound.Check(t, "ports", 5, func(n int) []string {
		ports := make([]ovsdb.Port, n)
		for i := range ports {
			ports[i] = ovsdb.Port{Name: fmt.Sprint("pod-", i), OFPort: 10, IfaceID: "x", Limited: []string{"Port.qos is q"}}
		}
		return list(1, ports...)
	})
}

// Swapped addresses of two pods are found by the kernel's neighbours, a MAC at the wrong port by what the bridge has learned.
func TestSwappedAddresses(t *testing.T) {
	testbed.Isolate(t)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "br-x"}, PeerName: "peer"}
	must(t, netlink.LinkAdd(link))
	a, b := []byte{2, 0, 0, 0, 0, 0x11}, []byte{2, 0, 0, 0, 0, 0x12}
	for ip, mac := range map[string][]byte{"10.0.0.11": a, "10.0.0.12": b, "10.0.0.13": {2, 0, 0, 0, 0, 1}} { // the last by a router's proxy ARP
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Index, IP: netip.MustParseAddr(ip).AsSlice(), HardwareAddr: mac, State: netlink.NUD_REACHABLE}))
	}
	sw := &ovsdb.Switch{Bridge: "br-x", Exists: true, Ports: []ovsdb.Port{
		{Name: "pod-a", OFPort: 11, MAC: a, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.12")}},
		{Name: "pod-b", OFPort: 12, MAC: b, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.13")}},
	}}
	table := ""
	set := Settings{Bridge: "br-x", OVSDB: controlled(t, func(string) string { return " port  VLAN  MAC                Age\n" + table })}
	check := func(what string, want ...string) {
		t.Helper()
		var notes portNotes
		set.contradictions(t.Context(), sw, &notes)
		if got := notes.warnings(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q", what, got)
		}
	}
	check("addresses swapped",
		"port pod-a: external_ids:ip_addresses has 10.0.0.12, but the kernel has found it at 02:00:00:00:00:12, the MAC of port pod-b: packets of Services to it may get lost; correct ip_addresses",
		"port pod-b: external_ids:ip_addresses has 10.0.0.11, but the kernel has found it at 02:00:00:00:00:11, the MAC of port pod-a: packets of Services to it may get lost; correct ip_addresses")
	sw.Ports[0].IPs, sw.Ports[1].IPs = sw.Ports[1].IPs[:1], sw.Ports[0].IPs
	check("right")
	table = "   12     0  02:00:00:00:00:11    1\n   12     0  02:00:00:00:00:12    1\n"
	check("learned elsewhere",
		"port pod-a: its MAC in the database (external_ids:attached-mac, else mac_in_use) is 02:00:00:00:00:11, but the bridge has learned that at port pod-b: packets of Services to [10.0.0.11] may get lost; correct attached-mac or ip_addresses")
}

// A device that was renamed is down in the database alone: its pod is not said to be out of reach, but what to do is.
func TestUnseenPort(t *testing.T) {
	ip := netip.MustParseAddr("10.0.0.11")
	var s Settings
	for _, tc := range []struct {
		port ovsdb.Port
		dead bool
	}{
		{ovsdb.Port{Name: "renamed", OFPort: 4, Dead: []string{"Interface.admin_state is down"}, LinkDown: true}, false},
		{ovsdb.Port{Name: "renamed", OFPort: 4, LinkDown: true}, false},
		{ovsdb.Port{Name: "lo", OFPort: 4, LinkDown: true}, true}, // a device that there is
		{ovsdb.Port{Name: "renamed", OFPort: 4, Dead: []string{"Port.status:stp_state is blocking"}, LinkDown: true}, true},
		{ovsdb.Port{Name: "renamed", OFPort: 4, Type: "dpdk", Dead: []string{"Interface.admin_state is down"}}, true},
		{ovsdb.Port{Name: "renamed", LinkDown: true, Error: "no such device"}, true},
	} {
		tc.port.IPs = []netip.Addr{ip}
		sw := &ovsdb.Switch{Bridge: "lo", Exists: true, Ports: []ovsdb.Port{tc.port}}
		why, _ := s.DeadPort(sw, &k8s.Node{}, ip)
		if limited := s.LimitedPort(sw, ip); (why != "") != tc.dead || (len(limited) == 0) != tc.dead {
			t.Errorf("%+v: dead %q, limited %q", tc.port, why, limited)
		}
	}
}
