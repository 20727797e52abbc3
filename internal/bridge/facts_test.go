package bridge

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
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

// Pods come from the switch, but not those behind a VLAN tag, without a port number or without a MAC; the file of
// --ports overrides it.
func TestPodsOfTheSwitch(t *testing.T) {
	s := Settings{LocalDelivery: DeliverAuto, Layout: pipeline.DefaultLayout()}
	cfg, _ := s.PipelineConfig(&k8s.Model{}, testSwitch())
	if got := podIPs(cfg); got != "10.0.0.11 fd00::11" {
		t.Errorf("pods are %s", got)
	}
	if cfg.Uplink != 1 || !cfg.LocalDelivery {
		t.Errorf("uplink %d, local delivery %v", cfg.Uplink, cfg.LocalDelivery)
	}
	file := filepath.Join(t.TempDir(), "ports.json")
	os.WriteFile(file, []byte(`{"10.0.0.11": {"ofport": 99, "mac": "02:00:00:00:00:99"}, "10.0.0.50": {"ofport": 50, "mac": "02:00:00:00:00:50"}}`), 0o600)
	ports, err := LoadPorts(file)
	if err != nil {
		t.Fatal(err)
	}
	s.Ports = ports
	cfg, _ = s.PipelineConfig(&k8s.Model{}, testSwitch())
	if got := podIPs(cfg); got != "10.0.0.11 10.0.0.50 fd00::11" || cfg.Pods[0].OFPort != 99 {
		t.Errorf("with --ports: %s, %+v", got, cfg.Pods[0])
	}
}

// Where policy sits in the gateway, auto does not bypass it; on does, because the operator says so.
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
			t.Errorf("%+v: straight %v", tc, cfg.LocalDelivery)
		}
		if said := strings.Contains(strings.Join(warnings, "\n"), "through the gateway"); said != (tc.delivery == DeliverAuto && tc.nsx) {
			t.Errorf("%+v: warnings %q", tc, warnings)
		}
	}
}

func TestBadPortsFiles(t *testing.T) {
	for content, want := range map[string]string{
		`[]`: "cannot unmarshal",
		`{"x": {"ofport": 1, "mac": "02:00:00:00:00:01"}}`:            `"x" is not an address`,
		`{"10.0.0.1": {"ofport": 0, "mac": "02:00:00:00:00:01"}}`:     "10.0.0.1: ofport: 0",
		`{"10.0.0.1": {"ofport": 65534, "mac": "02:00:00:00:00:01"}}`: "10.0.0.1: ofport: 65534",
		`{"10.0.0.1": {"ofport": 1, "mac": "here"}}`:                  "10.0.0.1: mac",
	} {
		file := filepath.Join(t.TempDir(), "ports.json")
		os.WriteFile(file, []byte(content), 0o600)
		if _, err := LoadPorts(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", content, err, want)
		}
	}
}

// Guards are left out where the switch can crash by them, would send packets from 0.0.0.0, or is unknown, and what follows is
// said; asked for by name they are there, with a warning where the switch can crash. The zero value of the setting is auto.
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
		{"can crash, by name", netdev("3.1.0"), GuardsOn, true, false, "", "Open vSwitch 3.1.0 can crash by port-reuse guards"},
		{"can crash, off", netdev("3.1.0"), GuardsOff, false, false, "", ""},
		{"version unknown", netdev(""), "", false, false, "which can crash an unknown version of Open vSwitch", ""},
		{"cannot have them", netdev("2.13.11"), GuardsOn, false, false, "Open vSwitch has since 2.16", ""},
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
