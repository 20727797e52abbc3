package ovsdb

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/bound"
	"github.com/nkp-proxy/nkp/test/nightly"
)

func ptr[T any](v T) *T { return &v }

// sample is a bridge with its own port, an uplink, a pod, a pod without a number,
// a bond and a failed port.
func sample() rows {
	return rows{
		roots: []rootRow{{UUID: "r", ExternalIDs: map[string]string{"system-id": "node-1"}, OVSVersion: ptr("3.1.0")}},
		bridges: []bridgeRow{
			{UUID: "b2", Name: "br-ex"},
			{UUID: "b1", Name: "br-int", DatapathType: "netdev", FailMode: ptr("secure"),
				Controller: []string{"c2", "c1"}, Ports: []string{"p1", "p2", "p3", "p4", "p5", "p6", "gone"}},
		},
		controllers: []controllerRow{
			{UUID: "c3", Target: "tcp:192.0.2.3:6653"}, // another bridge's
			{UUID: "c2", Target: "unix:/c", IsConnected: true, Status: map[string]string{"state": "ACTIVE", "sec_since_connect": "7"}},
			{UUID: "c1", Target: "tcp:192.0.2.1:6653", Status: map[string]string{"last_error": "Connection refused", "state": "BACKOFF"}},
		},
		ports: []portRow{
			{UUID: "p1", Name: "br-int", Interfaces: []string{"i1"}},
			{UUID: "p2", Name: "eth0", Interfaces: []string{"i2"}, Trunks: []int{30, 20}, VLANMode: ptr("trunk")},
			{UUID: "p3", Name: "pod-a", Interfaces: []string{"i3"}, Tag: ptr(7)},
			{UUID: "p4", Name: "pod-b", Interfaces: []string{"i4"}},
			{UUID: "p5", Name: "bond", Interfaces: []string{"i5", "i6", "gone"}},
			{UUID: "p6", Name: "bad", Interfaces: []string{"i7"}},
		},
		interfaces: []interfaceRow{
			{UUID: "i1", Name: "br-int", Type: "internal", OFPort: ptr(65534), MACInUse: ptr("02:00:00:00:00:02")},
			{UUID: "i2", Name: "eth0", OFPort: ptr(1), MACInUse: ptr("02:00:00:00:00:03")},
			{UUID: "i3", Name: "pod-a", OFPort: ptr(11), MACInUse: ptr("fe:00:00:00:00:0a"), ExternalIDs: map[string]string{
				"iface-id": "a", "attached-mac": "02:00:00:00:00:0A", "ip_addresses": "10.0.0.10, fd00:a::10,10.0.0.10"}},
			{UUID: "i4", Name: "pod-b", ExternalIDs: map[string]string{
				"iface-id": "b", "attached-mac": "nonsense", "ip_addresses": "10.0.0.11,10.0.0.10,10.0.0.300"}},
			{UUID: "i5", Name: "eth1", OFPort: ptr(5), LinkState: ptr("down")},
			{UUID: "i6", Name: "eth2", OFPort: ptr(6)},
			{UUID: "i7", Name: "bad", OFPort: ptr(-1)},
		},
	}
}

func TestBuildSwitch(t *testing.T) {
	s := buildSwitch("br-int", sample())
	if !s.Exists || s.DatapathType != "netdev" || s.OVSVersion != "3.1.0" ||
		s.LocalMAC.String() != "02:00:00:00:00:02" || s.FailMode != "secure" || !reflect.DeepEqual(s.Controllers, []Controller{{"tcp:192.0.2.1:6653", false, "Connection refused"}, {"unix:/c", true, ""}}) || !s.OpenFlow15 ||
		!slices.Equal(s.Bridges, []string{"br-ex", "br-int"}) {
		t.Errorf("%+v", s)
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	if s.Offload {
		t.Error("offload, though the database does not ask for it")
	}
	offload := sample()
	offload.roots[0].OtherConfig = map[string]string{"hw-offload": "True"}
	if !buildSwitch("br-int", offload).Offload {
		t.Error("hw-offload=True is not seen")
	}
	var names []string
	for _, p := range s.Ports {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"eth0", "eth1", "eth2", "pod-a", "bad", "pod-b"}) {
		t.Error(names)
	}
	a, ok := s.PortByIP(netip.MustParseAddr("10.0.0.10"))
	if !ok || a.Name != "pod-a" || a.OFPort != 11 || a.MAC.String() != "02:00:00:00:00:0a" || a.FarMAC || a.Tag != 7 || len(a.IPs) != 2 || !a.IsPod() {
		t.Errorf("%+v", a)
	}
	b, _ := s.PortByName("pod-b")
	if b.OFPort != 0 || b.MAC != nil || !slices.Equal(b.IPs, []netip.Addr{netip.MustParseAddr("10.0.0.11")}) {
		t.Errorf("%+v", b)
	}
	if p, _ := s.PortByName("bad"); p.Error == "" || p.OFPort != 0 {
		t.Errorf("%+v", p)
	}
	if p, _ := s.PortByNumber(1); !p.FarMAC || p.VLANMode != "trunk" || !slices.Equal(p.Trunks, []uint16{20, 30}) {
		t.Errorf("%+v", p)
	}
	want := []string{
		`interface pod-b: attached-mac: left out "nonsense"`,
		`interface pod-b: ip_addresses: left out "10.0.0.300"`,
	}
	if !slices.Equal(s.Warnings, want) {
		t.Errorf("%q", s.Warnings)
	}
}

func TestBuildSwitchIgnoresOrder(t *testing.T) {
	want := buildSwitch("br-int", sample())
	random := rand.New(rand.NewPCG(nightly.Seed(t), 0))
	for range 100 {
		r := sample()
		shuffle(random, r.bridges)
		shuffle(random, r.ports)
		shuffle(random, r.interfaces)
		shuffle(random, r.controllers)
		for i := range r.bridges {
			shuffle(random, r.bridges[i].Ports)
			shuffle(random, r.bridges[i].Controller)
		}
		if got := buildSwitch("br-int", r); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v\n%+v", got, want)
		}
	}
}

func shuffle[T any](r *rand.Rand, s []T) {
	r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*rows)
		want   error
		text   string
	}{
		{"fine", func(*rows) {}, nil, ""},
		{"empty database", func(r *rows) { *r = rows{} }, ErrNoBridge, "bridges here: none"},
		{"no bridge", func(r *rows) { r.bridges[1].Name = "br0" }, ErrNoBridge,
			"bridge br-int does not exist; create it or name another with --bridge; bridges here: br-ex, br0"},
		{"configured without 1.5", func(r *rows) { r.bridges[1].Protocols = []string{"OpenFlow13", "OpenFlow10"} }, ErrNoOpenFlow15,
			"ovs-vsctl set Bridge br-int protocols=OpenFlow10,OpenFlow13,OpenFlow15"},
		{"configured with 1.5", func(r *rows) { r.bridges[1].Protocols = []string{"OpenFlow15"} }, nil, ""},
		{"old default", func(r *rows) { r.roots[0].OVSVersion = ptr("2.11.4") }, ErrNoOpenFlow15,
			"protocols=OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13,OpenFlow14,OpenFlow15"},
		{"first default with 1.5", func(r *rows) { r.roots[0].OVSVersion = ptr("2.12.0") }, nil, ""},
		{"unknown version", func(r *rows) { r.roots[0].OVSVersion = nil }, nil, ""},
		{"OVN", ids("ovn-remote", "tcp:10.0.0.1:6642"), ErrOVN, "ovn-remote"},
		{"OVN before OpenFlow 1.5", func(r *rows) {
			ids("ovn-remote", "x")(r)
			r.bridges[1].Protocols = []string{"OpenFlow10"}
		}, ErrOVN, "--bridge"},
		{"OVN elsewhere", ids("ovn-remote", "tcp:10.0.0.1:6642", "ovn-bridge", "br-ovn"), nil, ""},
		{"OVN here by name", ids("ovn-remote", "tcp:10.0.0.1:6642", "ovn-bridge", "br-int"), ErrOVN, "ovn-remote"},
		{"OVN of this chassis", ids("ovn-remote-node-1", "tcp:10.0.0.1:6642", "ovn-bridge-node-1", "br-int"), ErrOVN, "ovn-remote"},
		{"OVN of another chassis", ids("ovn-remote-node-2", "tcp:10.0.0.1:6642"), nil, ""},
		{"OVN prepared but not configured", ids("ovn-encap-ip", "10.0.0.1"), nil, ""},
		{"OVN zones", func(r *rows) { r.bridges[1].ExternalIDs = map[string]string{"ct-zone-x_dnat": "1"} }, ErrOVN, "ct-zone-x_dnat"},
		{"OVN state", func(r *rows) { r.bridges[1].ExternalIDs = map[string]string{"ovn-nb-cfg": "1"} }, ErrOVN, "ovn-nb-cfg"},
		{"OVN zones of another bridge", func(r *rows) { r.bridges[0].ExternalIDs = map[string]string{"ct-zone-x_dnat": "1"} }, nil, ""},
		{"OVN tunnel", func(r *rows) { r.ports[1].ExternalIDs = map[string]string{"ovn-chassis-id": "c"} }, ErrOVN, "port eth0"},
		{"OVN interface", func(r *rows) { r.interfaces[2].ExternalIDs["ovn-installed"] = "true" }, ErrOVN, "interface pod-a"},
		{"OVN's neighbour", func(r *rows) { r.ports[1].ExternalIDs = map[string]string{"ovn-localnet-port": "c"} }, nil, ""},
	} {
		r := sample()
		c.change(&r)
		err := buildSwitch("br-int", r).Check()
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// ids sets external_ids of the Open_vSwitch row.
func ids(kv ...string) func(*rows) {
	return func(r *rows) {
		for i := 0; i < len(kv); i += 2 {
			r.roots[0].ExternalIDs[kv[i]] = kv[i+1]
		}
	}
}

func TestUplink(t *testing.T) {
	for _, c := range []struct {
		want, name string
		change     func(*rows)
		text       string
	}{
		{want: "", name: "eth0"},
		{want: "1", name: "eth0"},
		{want: "eth1", name: "eth1"},
		{want: "6", name: "eth2"},
		{want: "11", name: "pod-a"},
		{want: "1", name: "1", change: func(r *rows) { r.interfaces[4].Name = "1" }},
		{want: "", change: func(r *rows) { r.interfaces[1].ExternalIDs = map[string]string{"iface-id": "x"} }, text: "ports here: eth1 (5), eth2 (6)"},
		{want: "", change: func(r *rows) { r.ports[1].ExternalIDs = map[string]string{"contNetns": "/run/netns/x"} }, text: "ports here: eth1 (5), eth2 (6)"},
		{want: "", change: func(r *rows) { r.interfaces[1].OFPort = nil }, text: "has no uplink at OpenFlow port 1"},
		{want: "eth0", change: func(r *rows) { r.interfaces[1].OFPort = nil }, text: "no OpenFlow port number yet"},
		{want: "bad", text: "does not work: ovs-vswitchd could not add it"},
		{want: "bond", text: "a bond of eth1, eth2"},
		{want: "0", text: "no port \"0\""},
		{want: "-1", text: "no port \"-1\""},
		{want: "nosuch", text: "--uplink-port"},
	} {
		r := sample()
		if c.change != nil {
			c.change(&r)
		}
		p, err := buildSwitch("br-int", r).Uplink(c.want)
		if p.Name != c.name || (err != nil) != (c.text != "") || err != nil && (!errors.Is(err, ErrNoUplink) || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%q: %s, %v", c.want, p.Name, err)
		}
	}
}

func TestGatewayPolicy(t *testing.T) {
	r := sample()
	if yes, why := buildSwitch("br-int", r).GatewayPolicy(); yes || why != "" {
		t.Error(yes, why)
	}
	r.roots[0].ExternalIDs["NSX-node"] = "1"
	if yes, why := buildSwitch("br-int", r).GatewayPolicy(); !yes || !strings.Contains(why, "NSX-node") {
		t.Error(yes, why)
	}
	r = sample()
	r.bridges[1].ExternalIDs = map[string]string{"nsxt.cfg": ""}
	if yes, why := buildSwitch("br-int", r).GatewayPolicy(); !yes || !strings.Contains(why, "bridge br-int") {
		t.Error(yes, why)
	}
}

func TestParseIPs(t *testing.T) {
	for _, c := range []struct {
		in   string
		ips  string
		bads int
	}{
		{"", "", 0},
		{",, ,", "", 0},
		{"10.0.0.1", "10.0.0.1", 0},
		{" 10.0.0.1 ,\tfd00::1", "10.0.0.1 fd00::1", 0},
		{"::ffff:10.0.0.1,10.0.0.1", "10.0.0.1", 0},
		{"10.0.0.1/24,fe80::1%eth0,0.0.0.0,::,224.0.0.1,ff02::1,127.0.0.1,x", "", 8},
		{strings.Repeat("10.0.0.1,", 9), "10.0.0.1", 0},
	} {
		ips, bad := parseIPs(c.in)
		var got []string
		for _, a := range ips {
			got = append(got, a.String())
		}
		if strings.Join(got, " ") != c.ips || len(bad) != c.bads {
			t.Errorf("%q: %v, %q", c.in, got, bad)
		}
	}
	if _, bad := parseIPs(strings.Repeat("x,", 1000)); len(bad) != 65 { // 64, and that there are more
		t.Error(len(bad))
	}
}

func TestWarningsAreBounded(t *testing.T) {
	bound.Check(t, "warnings", 100, func(n int) []string {
		p, r := portRow{UUID: "p", Name: "p"}, rows{bridges: []bridgeRow{{UUID: "b", Name: "br-int", Ports: []string{"p"}}}}
		for i := range n {
			p.Interfaces = append(p.Interfaces, fmt.Sprint(i))
			r.interfaces = append(r.interfaces, interfaceRow{UUID: fmt.Sprint(i), Name: fmt.Sprint("if", i), OFPort: ptr(1 << 20)})
		}
		r.ports = []portRow{p}
		return buildSwitch("br-int", r).Warnings
	})
}

func TestEndpoints(t *testing.T) {
	for _, good := range []string{"unix:/run/x/db.sock", "unix:/run/50%/a?b#c", "tcp:127.0.0.1:6640", "ssl:[fd00::1]:6640", "tcp:db.example:6640"} {
		if _, err := parseEndpoint(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "unix", "unix:", "unix:db.sock", "tcp:", "tcp:6640", "tcp:127.0.0.1:", "ssl:?:1", "punix:/x", "/run/db.sock"} {
		if got, err := parseEndpoint(bad); err == nil {
			t.Errorf("%q passed as %+v", bad, got)
		}
	}
	if s, err := ManagementSocket("unix:/run/ovs/db.sock", "br-int"); s != "/run/ovs/br-int.mgmt" || err != nil {
		t.Error(s, err)
	}
	for _, c := range [][2]string{{"tcp:127.0.0.1:6640", "br-int"}, {"unix:/run/db.sock", "../x"}, {"unix:/run/db.sock", ""}, {"unix:/run/db.sock", ".."}} {
		if s, err := ManagementSocket(c[0], c[1]); err == nil {
			t.Error(s)
		}
	}
}

func FuzzParseIPs(f *testing.F) {
	f.Add("10.0.0.1,fd00::1,x")
	f.Fuzz(func(t *testing.T, s string) {
		ips, bad := parseIPs(s)
		if len(ips)+len(bad) > maxIPs+1 {
			t.Error(len(ips), len(bad))
		}
		for _, a := range ips {
			if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() {
				t.Error(a)
			}
		}
		for _, b := range bad {
			if strings.ContainsAny(b, "\n\r\x1b") {
				t.Errorf("%q goes to a log", b)
			}
		}
	})
}

// FuzzBuildSwitch puts anything into the cells that others write.
func FuzzBuildSwitch(f *testing.F) {
	f.Add("ip_addresses", "10.0.0.1", "02:00:00:00:00:01", "br-int", 11, 5)
	f.Add("attached-mac", "::", "", "", -1, -1)
	f.Add("iface-id", "\x00\xff", "00:00:00:00:00:00:00:00", "br-ex", 1<<40, 4096)
	f.Fuzz(func(t *testing.T, key, val, mac, name string, ofport, vlan int) {
		r := sample()
		for i := range r.interfaces {
			r.interfaces[i].OFPort, r.interfaces[i].MACInUse = &ofport, &mac
			r.interfaces[i].Error, r.interfaces[i].Type = &val, val
			r.interfaces[i].ExternalIDs = map[string]string{key: val, "attached-mac": mac, "ip_addresses": val}
		}
		r.interfaces[2].Name = name
		for i := range r.ports {
			r.ports[i].Tag, r.ports[i].Trunks = &vlan, []int{vlan, ofport}
			r.ports[i].ExternalIDs = map[string]string{key: val}
		}
		r.bridges[1].ExternalIDs, r.roots[0].ExternalIDs = map[string]string{key: val}, map[string]string{key: val}
		r.bridges[1].Protocols, r.roots[0].OVSVersion = []string{val}, &name
		s := buildSwitch("br-int", r)
		for _, p := range s.Ports {
			if p.OFPort > 0xff00 || p.Tag > 4095 || p.MAC != nil && len(p.MAC) != 6 {
				t.Errorf("%+v", p)
			}
		}
		if len(s.Warnings) > maxWarnings+1 {
			t.Error(len(s.Warnings))
		}
		lines := s.Warnings
		for _, want := range []string{"", val, name} {
			if _, err := s.Uplink(want); err != nil {
				lines = append(lines, err.Error())
			}
		}
		if err := s.Check(); err != nil {
			lines = append(lines, err.Error())
		}
		_, why := s.GatewayPolicy()
		for _, line := range append(lines, why) {
			if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' }) {
				t.Errorf("%q is no line", line)
			}
		}
	})
}

// An address that two ports claim belongs to the one that packets can pass, in whatever order they are.
func TestTheLivingPortHasTheAddress(t *testing.T) {
	ip := netip.MustParseAddr("10.0.0.99")
	for _, c := range []struct {
		name   string
		change func(*portRow, *interfaceRow)
		want   string
	}{
		{"both live", func(*portRow, *interfaceRow) {}, "pod-b"},
		{"no link", func(_ *portRow, i *interfaceRow) { i.LinkState = ptr("down") }, "bad"},
		{"set down", func(_ *portRow, i *interfaceRow) { i.AdminState = ptr("down") }, "bad"},
		{"blocked", func(p *portRow, _ *interfaceRow) { p.Status = map[string]string{"stp_state": "blocking"} }, "bad"},
		{"not added", func(_ *portRow, i *interfaceRow) { i.OFPort = ptr(-1) }, "bad"},
	} {
		r := sample()
		r.interfaces[3].OFPort, r.interfaces[6].OFPort = ptr(4), ptr(41) // pod-b and bad
		for _, i := range []int{3, 6} {
			r.interfaces[i].ExternalIDs = map[string]string{"ip_addresses": ip.String()}
		}
		c.change(&r.ports[3], &r.interfaces[3])
		s := buildSwitch("br-int", r)
		if p, _ := s.PortByIP(ip); p.Name != c.want {
			t.Errorf("%s: it belongs to %q, want %q", c.name, p.Name, c.want)
		}
	}
}

// What the rows say against a port is noted at the port, each with its column. Values that forward raise nothing.
func TestPortsThatKeepPacketsBack(t *testing.T) {
	for _, c := range []struct {
		name          string
		change        func(port *portRow, i *interfaceRow, r *rows)
		dead, limited string
		warning       string
	}{
		{"fine", func(port *portRow, i *interfaceRow, _ *rows) {
			i.AdminState, port.Status = ptr("up"), map[string]string{"stp_state": "forwarding"}
			port.RSTPStatus = map[string]string{"rstp_port_state": "Disabled"}
		}, "", "", ""},
		{"admin down", func(_ *portRow, i *interfaceRow, _ *rows) { i.AdminState = ptr("down") }, "Interface.admin_state is down", "", ""},
		{"STP", func(port *portRow, _ *interfaceRow, _ *rows) {
			port.Status = map[string]string{"stp_state": "blocking"}
		},
			"Port.status:stp_state is blocking", "", ""},
		{"RSTP", func(port *portRow, _ *interfaceRow, _ *rows) {
			port.RSTPStatus = map[string]string{"rstp_port_state": "Discarding"}
		}, "Port.rstp_status:rstp_port_state is Discarding", "", ""},
		{"policing", func(_ *portRow, i *interfaceRow, _ *rows) { i.Policing = 1000 },
			"", "Interface.ingress_policing_rate is 1000 kbit/s: what the port sends beyond is dropped", ""},
		{"QoS", func(port *portRow, _ *interfaceRow, _ *rows) { port.QoS = ptr("q") },
			"", "Port.qos is q (ovs-vsctl list QoS): what is sent to the port beyond its rate waits, or is dropped", ""},
		{"output of a mirror of everything", func(port *portRow, _ *interfaceRow, r *rows) {
			r.bridges[1].Mirrors = []string{"m"}
			r.mirrors = []mirrorRow{{UUID: "other", Name: "other", OutputPort: ptr("p4")}, {UUID: "m", Name: "m0", SelectAll: true, OutputPort: ptr("p4")}}
		}, "", "Mirror.output_port of m0 is this port: NORMAL forwarding neither reaches it nor takes what it sends",
			"mirror m0: Mirror.select_all is true: each packet of the bridge is also sent to port pod-b"},
		{"one address twice", func(_ *portRow, _ *interfaceRow, r *rows) {
			r.interfaces[6].ExternalIDs = map[string]string{"ip_addresses": "10.0.0.11"}
		}, "", "Interface.external_ids:ip_addresses of bad has 10.0.0.11, too: nkp sends its packets to pod-b", ""},
		{"two pods, each in a VLAN of its own", func(port *portRow, i *interfaceRow, _ *rows) {
			port.Tag, i.OFPort = ptr(8), ptr(40) // pod-a comes first
		}, "", "", ""},
		{"a VLAN of its own", func(port *portRow, _ *interfaceRow, r *rows) {
			port.Tag = ptr(8)
			r.interfaces[4].ExternalIDs = map[string]string{"ip_addresses": "10.0.0.50"}
			r.interfaces[5].ExternalIDs = map[string]string{"ip_addresses": "10.0.0.51"}
		}, "", "Port has tag 8 and trunks [], most pods' ports tag 0 and trunks []: NORMAL forwarding may keep it apart from them", ""},
	} {
		r := sample()
		r.ports[2].Tag = nil            // pod-a
		r.interfaces[3].OFPort = ptr(4) // pod-b comes first
		r.interfaces[3].ExternalIDs = map[string]string{"ip_addresses": "10.0.0.11"}
		c.change(&r.ports[3], &r.interfaces[3], &r)
		s := buildSwitch("br-int", r)
		p, _ := s.PortByName("pod-b")
		if strings.Join(p.Dead, "; ") != c.dead || strings.Join(p.Limited, "; ") != c.limited || strings.Join(s.Warnings, "; ") != c.warning {
			t.Errorf("%s: dead %q, limited %q, warnings %q", c.name, p.Dead, p.Limited, s.Warnings)
		}
	}
}
