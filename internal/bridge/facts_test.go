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

// A switch that would send packets from 0.0.0.0 gets no guards, and the warning says what that means; whoever has switched
// them off is not warned.
func TestNoGuardsWithoutNullSNAT(t *testing.T) {
	for version, want := range map[string]bool{"2.13.11": true, "2.15.8": true, "2.16.0": false, "3.7.1": false} {
		sw := testSwitch()
		sw.DatapathType, sw.OVSVersion = "netdev", version
		s := Settings{LocalDelivery: DeliverAuto, Layout: pipeline.DefaultLayout(), Guards: true}
		cfg, warnings := s.PipelineConfig(&k8s.Model{}, sw)
		if warned := strings.Contains(strings.Join(warnings, " "), "userspace datapath of Open vSwitch "+version); cfg.NoGuards != want || warned != want {
			t.Errorf("%s: guards left out: %t, want %t; warnings %q", version, cfg.NoGuards, want, warnings)
		}
		s.Guards = false
		if _, warnings := s.PipelineConfig(&k8s.Model{}, sw); strings.Contains(strings.Join(warnings, " "), "userspace datapath") {
			t.Errorf("%s, without guards: warns %q", version, warnings)
		}
	}
}
