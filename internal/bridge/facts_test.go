package bridge

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

func testSwitch() *ovsdb.Switch {
	ip := netip.MustParseAddr
	return &ovsdb.Switch{
		Bridge: "br-none", Exists: true,
		Ports: []ovsdb.Port{
			{Name: "eth1", OFPort: 1},
			{Name: "pod-a", OFPort: 11, MAC: []byte{2, 0, 0, 0, 0, 1}, IfaceID: "a", IPs: []netip.Addr{ip("10.0.0.11"), ip("fd00::11")}},
			{Name: "tagged", OFPort: 12, MAC: []byte{2, 0, 0, 0, 0, 2}, IPs: []netip.Addr{ip("10.0.0.12")}, Tag: 7},
			{Name: "not-there-yet", MAC: []byte{2, 0, 0, 0, 0, 3}, IPs: []netip.Addr{ip("10.0.0.13")}},
			{Name: "no-mac", OFPort: 14, IPs: []netip.Addr{ip("10.0.0.14")}},
			{Name: "infiniband", OFPort: 15, MAC: make([]byte, 20), IPs: []netip.Addr{ip("10.0.0.15")}},
			{Name: "trunk", OFPort: 16, MAC: []byte{2, 0, 0, 0, 0, 6}, IPs: []netip.Addr{ip("10.0.0.16")}, Trunks: []uint16{7}},
		},
	}
}

func podIPs(c pipeline.Config) string {
	var s []string
	for _, p := range c.Pods {
		s = append(s, p.IP.String())
	}
	return strings.Join(s, " ")
}

// PipelineConfig copies every setting and every fact of the model, unless the switch contradicts it.
func TestPipelineConfig(t *testing.T) {
	ip, prefix := netip.MustParseAddr, netip.MustParsePrefix
	layout := pipeline.DefaultLayout()
	layout.MeterID = 7
	s := Settings{
		Layout: layout, HairpinIPs: []netip.Addr{ip("169.254.1.1")}, NodeMAC: flow.MAC{2, 0, 0, 0, 0, 7}, GatewayMAC: flow.MAC{2, 0, 0, 0, 0, 8},
		MasqueradeAll: true, RejectRate: 9, AffinityLimit: 10, Counters: true, LocalDelivery: DeliverOn, Uplink: "3", Guards: GuardsOn,
		Ports: map[netip.Addr]PortOverride{ip("10.0.0.9"): {OFPort: 9, mac: flow.MAC{2, 0, 0, 0, 0, 9}}},
	}
	m := &k8s.Model{
		Node:         k8s.Node{IPs: []netip.Addr{ip("172.16.0.2")}, Local: []netip.Addr{ip("172.16.0.2"), ip("10.9.0.1")}},
		Detector:     k8s.Detector{CIDRs: []netip.Prefix{prefix("10.0.0.0/16")}},
		ServiceCIDRs: []netip.Prefix{prefix("40.0.0.0/16")},
	}
	got, _ := s.PipelineConfig(m, nil)
	want := pipeline.Config{
		Layout: layout, NodeIPs: m.Node.IPs, LocalIPs: m.Node.Local, HairpinIPs: s.HairpinIPs, NodeMAC: s.NodeMAC, GatewayMAC: s.GatewayMAC,
		Detector: m.Detector, ServiceCIDRs: m.ServiceCIDRs, MasqueradeAll: true, RejectRate: 9, AffinityLimit: 10, Counters: true, Canary: true, LocalDelivery: true,
		Uplink: 3, NoNullNAT: true, Pods: []pipeline.Pod{{IP: ip("10.0.0.9"), OFPort: 9, MAC: flow.MAC{2, 0, 0, 0, 0, 9}}}, Senders: []uint32{9},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	s = Settings{Layout: layout, Uplink: "eth1"}
	if got, warnings := s.PipelineConfig(&k8s.Model{}, nil); got.Uplink != 0 || !strings.Contains(strings.Join(warnings, "\n"), "--uplink-port eth1 is a name") {
		t.Errorf("the name of an uplink without a switch: %d, %q", got.Uplink, warnings)
	}
	s.Uplink = ""
	if got, _ := s.PipelineConfig(&k8s.Model{}, nil); got.Uplink != 1 {
		t.Errorf("no uplink named, without a switch: %d", got.Uplink)
	}
	s.Uplink = "eth1"
	if got, warnings := s.PipelineConfig(&k8s.Model{}, testSwitch()); got.Uplink != 1 || strings.Contains(strings.Join(warnings, "\n"), "eth1") {
		t.Errorf("the name of an uplink: %d, %q", got.Uplink, warnings)
	}
	sw := testSwitch()
	sw.Warnings = []string{"odd"}
	s.Uplink = "eth9"
	if _, warnings := s.PipelineConfig(&k8s.Model{}, sw); !strings.Contains(strings.Join(warnings, "\n"), "eth9") || !slices.Contains(warnings, "odd") {
		t.Errorf("an uplink that is not a port, and the database's warnings: %q", warnings)
	}
}

// The node is on the bridge if the interface of the bridge's name has one of the node's addresses. Its MAC is then that of the
// bridge's LOCAL port. It is elsewhere if that interface has none of them. If the interface is not visible, a warning asks for
// --node-mac. With --node-mac there is neither detection nor warning.
func TestWhereTheNodeIs(t *testing.T) {
	loopback, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	local, given := flow.MAC{2, 0, 0, 0, 0, 1}, flow.MAC{2, 0, 0, 0, 0, 2}
	for _, tc := range []struct {
		bridge    string
		nodeIPs   []netip.Addr
		given     flow.MAC
		mac       flow.MAC
		elsewhere bool
		warning   bool
	}{
		{"lo", []netip.Addr{other, loopback}, flow.MAC{}, local, false, false},
		{"lo", []netip.Addr{other}, flow.MAC{}, flow.MAC{}, true, false},
		{"lo", nil, flow.MAC{}, flow.MAC{}, false, false},
		{"br-none", []netip.Addr{loopback}, flow.MAC{}, flow.MAC{}, false, true},
		{"lo", []netip.Addr{loopback}, given, given, false, false},
		{"br-none", []netip.Addr{other}, given, given, false, false},
	} {
		s := Settings{Bridge: tc.bridge, NodeMAC: tc.given, Layout: pipeline.DefaultLayout()}
		sw := testSwitch()
		sw.Bridge, sw.LocalMAC = tc.bridge, local[:]
		cfg, warnings := s.PipelineConfig(&k8s.Model{Node: k8s.Node{IPs: tc.nodeIPs}}, sw)
		if cfg.NodeMAC != tc.mac || len(cfg.NodeElsewhere) > 0 != tc.elsewhere {
			t.Errorf("%+v: MAC %v, elsewhere %v", tc, cfg.NodeMAC, cfg.NodeElsewhere)
		}
		if warned := strings.Contains(strings.Join(warnings, "\n"), "pass --node-mac 02:00:00:00:00:01"); warned != tc.warning {
			t.Errorf("%+v: warnings %q", tc, warnings)
		}
	}
}

// With detection by interface, pods are the ports of this bridge, or those with the name prefix; never the uplink.
func TestDetectByInterfaces(t *testing.T) {
	s := Settings{Bridge: "br-int", Layout: pipeline.DefaultLayout()}
	config := func(d k8s.Detector, sw *ovsdb.Switch) (pipeline.Config, bool) {
		cfg, warnings := s.PipelineConfig(&k8s.Model{Detector: d}, sw)
		return cfg, strings.Contains(strings.Join(warnings, "\n"), "is not bridge br-int")
	}
	if cfg, warned := config(k8s.Detector{Bridge: "br-int"}, testSwitch()); cfg.Detector.Bridge != "br-int" || warned {
		t.Errorf("by this bridge: %+v, warned %t", cfg.Detector, warned)
	}
	if cfg, warned := config(k8s.Detector{Bridge: "docker0"}, testSwitch()); !reflect.DeepEqual(cfg.Detector, k8s.Detector{}) || !warned {
		t.Errorf("by another bridge: %+v, warned %t", cfg.Detector, warned)
	}
	sw := testSwitch()
	sw.Ports = append(sw.Ports, ovsdb.Port{Name: "pod-b", OFPort: 21}, ovsdb.Port{Name: "pod-c"})
	if cfg, _ := config(k8s.Detector{InterfacePrefix: "pod-"}, sw); !slices.Equal(cfg.PodPorts, []uint32{11, 21}) {
		t.Errorf("by the prefix pod-: ports %v", cfg.PodPorts)
	}
	if cfg, _ := config(k8s.Detector{InterfacePrefix: "eth"}, sw); len(cfg.PodPorts) > 0 {
		t.Errorf("by the prefix eth: ports %v, one of which is the uplink", cfg.PodPorts)
	}
	if cfg, _ := config(k8s.Detector{}, sw); len(cfg.PodPorts) > 0 {
		t.Errorf("not by interfaces: ports %v", cfg.PodPorts)
	}
	if cfg, _ := config(k8s.Detector{InterfacePrefix: "pod-"}, nil); len(cfg.PodPorts) > 0 {
		t.Errorf("without a switch: ports %v", cfg.PodPorts)
	}
}

// For each of the node's address families there is a route to the hairpin address, and routes through it to the Service CIDRs of
// that family.
func TestWantedRoutes(t *testing.T) {
	ip, prefix := netip.MustParseAddr, netip.MustParsePrefix
	ranges := []netip.Prefix{prefix("40.0.0.0/16"), prefix("fd00:40::/112"), prefix("41.0.0.0/16")}
	four := []route{
		{Dst: prefix("169.254.110.107/32"), Src: ip("172.16.0.2")},
		{Dst: ranges[0], Via: DefaultHairpinIPs[0], Src: ip("172.16.0.2")}, {Dst: ranges[2], Via: DefaultHairpinIPs[0], Src: ip("172.16.0.2")},
	}
	six := []route{{Dst: prefix("fd6e:6b70:6e6b::1/128"), Src: ip("fd00:ac::2")}, {Dst: ranges[1], Via: DefaultHairpinIPs[1], Src: ip("fd00:ac::2")}}
	for _, tc := range []struct {
		nodeIPs []netip.Addr
		want    []route
	}{
		{[]netip.Addr{ip("172.16.0.2"), ip("fd00:ac::2"), ip("172.16.0.9")}, slices.Concat(four, six)},
		{[]netip.Addr{ip("172.16.0.2")}, four}, {[]netip.Addr{ip("fd00:ac::2")}, six}, {nil, nil},
	} {
		if got := wantedRoutes(ranges, DefaultHairpinIPs, tc.nodeIPs, nil); !slices.Equal(got, tc.want) {
			t.Errorf("node addresses %v: %v, want %v", tc.nodeIPs, got, tc.want)
		}
	}
}

// Pods come from the switch, but not those behind a VLAN tag or trunk, without a port number or without an Ethernet address; the
// file of --ports overrides it.
func TestPodsOfTheSwitch(t *testing.T) {
	s := Settings{LocalDelivery: DeliverAuto, Layout: pipeline.DefaultLayout()}
	cfg, _ := s.PipelineConfig(&k8s.Model{}, testSwitch())
	if got := podIPs(cfg); got != "10.0.0.11 fd00::11" {
		t.Errorf("pods are %s", got)
	}
	if want := (pipeline.Pod{IP: netip.MustParseAddr("10.0.0.11"), OFPort: 11, MAC: flow.MAC{2, 0, 0, 0, 0, 1}}); cfg.Pods[0] != want {
		t.Errorf("the first pod is %+v, want %+v", cfg.Pods[0], want)
	}
	if !slices.Equal(cfg.VLANPorts, []uint32{12, 16}) {
		t.Errorf("ports with VLANs are %v", cfg.VLANPorts)
	}
	if cfg.Uplink != 1 || !cfg.LocalDelivery {
		t.Errorf("uplink %d, local delivery %v", cfg.Uplink, cfg.LocalDelivery)
	}
	file := filepath.Join(t.TempDir(), "ports.json")
	os.WriteFile(file, []byte(`{"10.0.0.11": {"ofport": 99, "mac": "02:00:00:00:00:99"}, "10.0.0.50": {"ofport": 50, "mac": "02:00:00:00:00:50"}}`), 0o600)
	ports, err := LoadPorts(file)
	must(t, err)
	s.Ports = ports
	cfg, _ = s.PipelineConfig(&k8s.Model{}, testSwitch())
	if got := podIPs(cfg); got != "10.0.0.11 10.0.0.50 fd00::11" || cfg.Pods[0].OFPort != 99 {
		t.Errorf("with --ports: %s, %+v", got, cfg.Pods[0])
	}
}

// If the gateway enforces policy, local delivery "auto" does not bypass it. "on" does, because the operator asked for it.
func TestLocalDelivery(t *testing.T) {
	for _, tc := range []struct {
		delivery Delivery
		nsx      bool
		want     bool
	}{{DeliverAuto, false, true}, {DeliverAuto, true, false}, {DeliverOn, true, true}, {DeliverOff, false, false}} {
		sw := testSwitch()
		if tc.nsx {
			sw.SystemIDs = map[string]string{"nsx-transport-node-id": "x"}
		}
		s := Settings{LocalDelivery: tc.delivery, Layout: pipeline.DefaultLayout()}
		cfg, warnings := s.PipelineConfig(&k8s.Model{}, sw)
		if cfg.LocalDelivery != tc.want {
			t.Errorf("%+v: LocalDelivery %v", tc, cfg.LocalDelivery)
		}
		if said := strings.Contains(strings.Join(warnings, "\n"), "through the gateway"); said != (tc.delivery == DeliverAuto && tc.nsx) {
			t.Errorf("%+v: warnings %q", tc, warnings)
		}
	}
}

func TestBadPortsFiles(t *testing.T) {
	for content, want := range map[string]string{
		`[]`: "cannot unmarshal",
		`{"x": {"ofport": 1, "mac": "02:00:00:00:00:01"}}`:              `"x" is not an address`,
		`{"10.0.0.1": {"ofport": 0, "mac": "02:00:00:00:00:01"}}`:       "10.0.0.1: ofport: 0",
		`{"10.0.0.1": {"ofport": 65534, "mac": "02:00:00:00:00:01"}}`:   "10.0.0.1: ofport: 65534",
		`{"10.0.0.1": {"ofport": 65280, "mac": "02:00:00:00:00:01"}}`:   "10.0.0.1: ofport: 65280",
		`{"10.0.0.1": {"ofport": 1, "mac": "here"}}`:                    "10.0.0.1: mac",
		`{"10.0.0.1": {"ofport": 1, "mac": "02:00:00:00:00:00:00:01"}}`: "10.0.0.1: mac",
	} {
		file := filepath.Join(t.TempDir(), "ports.json")
		os.WriteFile(file, []byte(content), 0o600)
		if _, err := LoadPorts(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", content, err, want)
		}
	}
	if _, err := LoadPorts(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// "auto" omits port-reuse guards if they can crash the switch, if null NAT would send packets from 0.0.0.0, or if the version is
// unknown, and reports what is missing. "on" installs them, with a warning if the switch can crash. The zero value is "auto".
func TestGuards(t *testing.T) {
	netdev := func(version string) *ovsdb.Switch {
		sw := testSwitch()
		sw.DatapathType, sw.OVSVersion = "netdev", version
		return sw
	}
	kernel := testSwitch()
	kernel.DatapathType, kernel.OVSVersion = "system", "3.1.0"
	for _, tc := range []struct {
		name     string
		sw       *ovsdb.Switch
		setting  Guards
		guards   bool
		nullNAT  bool
		lacks    string // among what the switch lacks
		warnings string // among the warnings
	}{
		{"fixed", netdev("3.1.3"), "", true, true, "", ""},
		{"kernel datapath", kernel, GuardsAuto, true, true, "", ""},
		{"can crash", netdev("3.1.0"), "", false, false, "which can crash Open vSwitch 3.1.0", ""},
		{"can crash, by name", netdev("3.1.0"), GuardsOn, true, false, "", "Open vSwitch 3.1.0 can crash because of port-reuse guards"},
		{"can crash, off", netdev("3.1.0"), GuardsOff, false, false, "", ""},
		{"version unknown", netdev(""), "", false, false, "which can crash an unknown version of Open vSwitch", ""},
		{"cannot have them", netdev("2.13.11"), GuardsOn, false, false, "port-reuse guards (Open vSwitch 2.16 and later)", ""},
		{"no switch to ask", nil, "", false, false, "version of Open vSwitch is unknown", "version of Open vSwitch is unknown"},
		{"no switch to ask, by name", nil, GuardsOn, true, false, "", "an unknown version of Open vSwitch can crash"},
	} {
		s := Settings{LocalDelivery: DeliverAuto, Layout: pipeline.DefaultLayout(), Guards: tc.setting}
		cfg, warnings := s.PipelineConfig(&k8s.Model{}, tc.sw)
		if cfg.NoGuards == tc.guards || cfg.NoNullNAT == tc.nullNAT {
			t.Errorf("%s: NoGuards %t, NoNullNAT %t", tc.name, cfg.NoGuards, cfg.NoNullNAT)
		}
		_, without := s.guards(tc.sw)
		if !strings.Contains(without, tc.lacks) || tc.lacks == "" && without != "" {
			t.Errorf("%s: lacks %q", tc.name, without)
		}
		told := strings.Join(warnings, "\n")
		if !strings.Contains(told, tc.warnings) || tc.warnings == "" && strings.Contains(told, "guards") {
			t.Errorf("%s: warnings %q", tc.name, told)
		}
	}
}

// outsideRanges warns if --cluster-cidr contains no known pod. Without known pods it checks the Node's podCIDRs.
func TestOutsideRanges(t *testing.T) {
	prefix := netip.MustParsePrefix
	for _, x := range []struct {
		name      string
		ranges    []netip.Prefix
		pods, own []string
		want      string // "": no warning
	}{
		{"inside", []netip.Prefix{prefix("10.0.0.0/16")}, []string{"10.0.0.11"}, []string{"10.0.0.0/24"}, ""},
		{"one inside", []netip.Prefix{prefix("10.0.0.0/16")}, []string{"10.0.0.11", "10.1.0.11"}, []string{"10.1.0.0/24"}, ""},
		{"no detection", nil, []string{"10.0.0.11"}, []string{"10.1.0.0/24"}, ""},
		{"no range of this family", []netip.Prefix{prefix("10.0.0.0/16")}, []string{"10.0.0.11", "fd00::11"}, []string{"fd00::/64"}, ""},
		{"all outside", []netip.Prefix{prefix("10.9.0.0/16")}, []string{"10.0.0.11", "10.0.0.12", "fd00::11"}, []string{"10.0.0.0/24"},
			"2 of 2 IPv4 pod addresses on bridge br-none, such as 10.0.0.11 (the Node's spec.podCIDRs: 10.0.0.0/24), lie outside --cluster-cidr 10.9.0.0/16: pods count as"},
		{"IPv6", []netip.Prefix{prefix("fd09::/48"), prefix("10.0.0.0/16")}, []string{"10.0.0.11", "fd00::11"}, nil,
			"1 of 1 IPv6 pod addresses on bridge br-none, such as fd00::11, lie outside --cluster-cidr fd09::/48"},
		{"no pods known", []netip.Prefix{prefix("10.9.0.0/16")}, nil, []string{"10.0.0.0/24"}, "the Node's spec.podCIDRs 10.0.0.0/24 lie outside --cluster-cidr 10.9.0.0/16"},
		{"no pods known, inside", []netip.Prefix{prefix("10.0.0.0/16")}, nil, []string{"10.0.0.0/24"}, ""},
		{"a single one outside, may be no pod", []netip.Prefix{prefix("10.0.0.0/16")}, []string{"10.1.0.11"}, []string{"10.0.0.0/24"}, ""},
		{"other addresses than podCIDRs", []netip.Prefix{prefix("10.0.0.0/24")}, []string{"10.1.0.11", "10.1.0.12"}, []string{"10.0.0.0/24"},
			"lie outside the Node's spec.podCIDRs (--detect-local-mode NodeCIDR) 10.0.0.0/24"},
	} {
		cfg := pipeline.Config{Detector: k8s.Detector{CIDRs: x.ranges}}
		for _, ip := range x.pods {
			cfg.Pods = append(cfg.Pods, pipeline.Pod{IP: netip.MustParseAddr(ip)})
		}
		var own []netip.Prefix
		for _, p := range x.own {
			own = append(own, prefix(p))
		}
		got := outsideRanges(&cfg, "br-none", own)
		if len(got) > 1 || x.want == "" && len(got) > 0 || x.want != "" && (len(got) == 0 || !strings.Contains(got[0], x.want)) {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}

// DeadPort reports a local endpoint only on evidence in the database. A network that does not write addresses there raises no
// problem.
func TestDeadPort(t *testing.T) {
	ip := netip.MustParseAddr
	s := Settings{Ports: map[netip.Addr]PortOverride{ip("10.0.0.99"): {OFPort: 9}}}
	node := &k8s.Node{Local: []netip.Addr{ip("172.16.0.2")}}
	for _, x := range []struct {
		name, ip string
		change   func(*ovsdb.Switch)
		want     string
	}{
		{"there", "10.0.0.11", func(*ovsdb.Switch) {}, ""},
		{"gone", "10.0.0.77", func(*ovsdb.Switch) {}, "unknown"},
		{"gone, IPv6", "fd00::77", func(*ovsdb.Switch) {}, "unknown"},
		{"not added yet", "10.0.0.13", func(*ovsdb.Switch) {}, "its port not-there-yet is not on bridge br-none: ovs-vswitchd has not added it"},
		{"link down", "10.0.0.11", func(sw *ovsdb.Switch) { sw.Ports[1].LinkDown = true }, "the link of its port pod-a (OpenFlow port 11) is down"},
		{"blocked", "10.0.0.11", func(sw *ovsdb.Switch) {
			sw.Ports[1].LinkDown, sw.Ports[1].Dead = true, []string{"Interface.admin_state is down"}
		}, "its port pod-a (OpenFlow port 11): Interface.admin_state is down"},
		{"on the node", "172.16.0.2", func(*ovsdb.Switch) {}, ""},
		{"by --ports", "10.0.0.99", func(*ovsdb.Switch) {}, ""},
		{"a pod port without addresses", "10.0.0.77", func(sw *ovsdb.Switch) { sw.Ports[0].IfaceID = "x" }, ""},
		{"no address at all", "10.0.0.77", func(sw *ovsdb.Switch) { sw.Ports = sw.Ports[:1] }, ""},
		{"none of the family", "fd00::77", func(sw *ovsdb.Switch) { sw.Ports = sw.Ports[2:] }, ""},
		{"no bridge", "10.0.0.77", func(sw *ovsdb.Switch) { sw.Exists = false }, ""},
	} {
		sw := testSwitch()
		x.change(sw)
		got, unknown := s.DeadPort(sw, node, ip(x.ip))
		if unknown {
			got += "unknown"
		}
		if got != x.want {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
