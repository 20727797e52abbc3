package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/node"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// PipelineConfig returns the pipeline's configuration: from the settings first, then from the model's node,
// then from the switch (nil: there is none to ask) and the kernel. The warnings name facts that are unknown
// or odd.
func (s *Settings) PipelineConfig(m *k8s.Model, sw *ovsdb.Switch) (pipeline.Config, []string) {
	network, err := node.Read()
	cfg, warnings := s.pipelineConfig(m, sw, &kernel{network: network})
	if err != nil {
		warnings = append(warnings, fmt.Sprintf("cannot read the node's network from the kernel: %v", err))
	}
	return cfg, warnings
}

func (s *Settings) pipelineConfig(m *k8s.Model, sw *ovsdb.Switch, k *kernel) (pipeline.Config, []string) {
	cfg := pipeline.Config{
		Layout:        s.Layout,
		NodeIPs:       m.Node.IPs,
		LocalIPs:      m.Node.Local,
		HairpinIPs:    s.HairpinIPs,
		NodeMAC:       s.NodeMAC,
		GatewayMAC:    s.GatewayMAC,
		Detector:      m.Detector,
		ServiceCIDRs:  m.ServiceCIDRs,
		MasqueradeAll: s.MasqueradeAll,
		RejectRate:    s.RejectRate,
		AnswerPing:    s.AnswerPing,
		AffinityLimit: s.AffinityLimit,
		Counters:      s.Counters,
		Canary:        true,
		LocalDelivery: s.LocalDelivery != DeliverOff,
	}
	var warnings []string

	cfg.NoNullNAT = sw == nil || !sw.Has(ovsdb.NullNAT)
	cfg.Fragments = sw != nil && sw.DatapathType == "netdev"
	guards, without := s.guards(sw)
	cfg.NoGuards = !guards
	switch {
	case sw == nil && without != "":
		warnings = append(warnings, without)
	case guards && cfg.NoNullNAT:
		warnings = append(warnings, fmt.Sprintf("%s can crash because of port-reuse guards, "+
			"and any pod can trigger that: update Open vSwitch or leave out --port-reuse-guards "+
			"(https://github.com/nkp-proxy/nkp/blob/main/pipeline/README.md#known-limits)",
			release(sw)))
	}

	pods := map[netip.Addr]pipeline.Pod{}
	if sw != nil {
		warnings = append(warnings, s.switchFacts(&cfg, sw, k, pods)...)
	}
	for ip, p := range s.Ports {
		pods[ip] = pipeline.Pod{IP: ip, OFPort: p.OFPort, MAC: p.mac}
	}

	if sw != nil && !cfg.NodeMAC.IsZero() {
		warnings = append(warnings, k.routes(&cfg, sw)...)
		cfg.MasqueradeMin, cfg.MasqueradeMax = k.ports()
	}
	slices.Sort(cfg.VLANPorts)
	cfg.Pods = slices.SortedFunc(maps.Values(pods), func(a, b pipeline.Pod) int { return a.IP.Compare(b.IP) })

	uplink, err := s.uplink(sw)
	if err != nil {
		warnings = append(warnings, err.Error())
	}
	cfg.Uplink = uplink
	if sw != nil {
		up, ok := sw.PortByNumber(uplink)
		cfg.NodeVLAN = sw.LocalTag != 0 || ok && up.Tag != 0
	}
	if sw != nil {
		var notes portNotes
		notes.byDatabase(sw, uplink)
		warnings = append(warnings, notes.warnings()...)
		if p, ok := sw.PortByNumber(uplink); ok && p.IsPod() {
			warnings = append(warnings, fmt.Sprintf("--uplink-port %s is a pod's port (%s, iface-id %q, "+
				"addresses %v): pass the port that leads out of the node",
				s.Uplink, p.Name, p.IfaceID, p.IPs))
		}
		warnings = append(warnings, outsideRanges(&cfg, s.Bridge, m.Node.PodCIDRs)...)
	}

	warnings = append(warnings, s.detector(&cfg, sw)...)
	cfg.Senders = senders(&cfg, sw)
	return cfg, warnings
}

// switchFacts adds to cfg, and to pods, the facts that come from the switch's database.
func (s *Settings) switchFacts(
	cfg *pipeline.Config,
	sw *ovsdb.Switch,
	k *kernel,
	pods map[netip.Addr]pipeline.Pod,
) (warnings []string) {
	if s.LocalDelivery == DeliverAuto {
		if policy, why := sw.GatewayPolicy(); policy {
			cfg.LocalDelivery = false
			warnings = append(warnings, "Service packets go through the gateway, which enforces policy ("+
				why+"); --local-delivery=on delivers them directly")
		}
	}

	if cfg.NodeMAC.IsZero() {
		switch _, visible := k.network.Link(sw.Bridge); {
		case !visible:
			warnings = append(warnings, fmt.Sprintf(
				"cannot see interface %s from here (another network namespace?); "+
					"if the node's address is on it, pass --node-mac %s", sw.Bridge, sw.LocalMAC))
		case k.network.At(sw.Bridge, cfg.NodeIPs):
			cfg.NodeMAC = toMAC(sw.LocalMAC)
			cfg.NodeElsewhere = familiesOf(cfg.NodeIPs, func(ips []netip.Addr) bool {
				return k.network.Beside(sw.Bridge, ips)
			})
		default:
			cfg.NodeElsewhere = familiesOf(cfg.NodeIPs, func([]netip.Addr) bool { return true })
		}
	}

	for _, ip := range cfg.LocalIPs {
		p, ok := sw.PortByName(k.network.DeviceOf(ip))
		if ok && p.OFPort != 0 && !p.IsPod() && p.Name != sw.Bridge && cfg.Elsewhere(k8s.FamilyOf(ip)) {
			cfg.OtherPorts = append(cfg.OtherPorts, ip)
		}
	}

	if err := sw.Check(); errors.Is(err, ovsdb.ErrOVN) { // since nkp has started
		warnings = append(warnings, err.Error())
	}
	warnings = append(warnings, sw.Warnings...)

	for _, p := range sw.Ports {
		if p.OFPort != 0 && inVLAN(&p) {
			cfg.VLANPorts = append(cfg.VLANPorts, p.OFPort)
		}
		if !isDirect(&p) {
			continue
		}
		for _, ip := range p.IPs {
			pods[ip] = pipeline.Pod{IP: ip, OFPort: p.OFPort, MAC: toMAC(p.MAC)}
		}
	}
	return warnings
}

// familiesOf returns the families that there are among addresses, and whose addresses are so.
func familiesOf(ips []netip.Addr, so func([]netip.Addr) bool) (list []k8s.Family) {
	for _, f := range dataplane.Families {
		own := slices.DeleteFunc(slices.Clone(ips), func(ip netip.Addr) bool { return k8s.FamilyOf(ip) != f })
		if len(own) > 0 && so(own) {
			list = append(list, f)
		}
	}
	return list
}

// senders returns the ports of pods, sorted: those that the database, the interfaces' names or --ports call
// so.
func senders(cfg *pipeline.Config, sw *ovsdb.Switch) []uint32 {
	out := slices.Clone(cfg.PodPorts)
	for _, p := range cfg.Pods {
		out = append(out, p.OFPort)
	}
	if sw != nil {
		for _, p := range sw.Ports {
			if p.OFPort != 0 && p.IsPod() {
				out = append(out, p.OFPort)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// podOf returns the name of the pod's port that has a MAC; "": none has.
func podOf(sw *ovsdb.Switch, mac flow.MAC) string {
	for _, p := range sw.Ports {
		if p.IsPod() && toMAC(p.MAC) == mac && !mac.IsZero() {
			return p.Name
		}
	}
	return ""
}

// isDirect reports whether packets can be delivered straight to a port: it is there, and not behind VLAN
// tagging that this would bypass.
func isDirect(p *ovsdb.Port) bool {
	return p.OFPort != 0 && len(p.MAC) == 6 && !inVLAN(p)
}

// inVLAN reports whether the bridge puts packets of a port into a VLAN, or takes their tags.
func inVLAN(p *ovsdb.Port) bool { return p.Tag != 0 || len(p.Trunks) > 0 }

// guards reports whether direct connections are tracked on a switch, nil if there is none to ask. If they are
// not although --port-reuse-guards=false was not given, without states why and what follows.
func (s *Settings) guards(sw *ovsdb.Switch) (on bool, without string) {
	const stalls = ": a port used through a Service, then directly, may stall"
	switch {
	case s.Guards == GuardsOff:
		return false, ""
	case sw != nil && !sw.Has(ovsdb.NullSNAT):
		return false, ovsdb.NullSNAT.String() + stalls + ", or through two Services"
	case s.Guards == GuardsOn:
		return true, ""
	case sw == nil:
		return false, "port-reuse guards are left out, because the version of Open vSwitch is unknown " +
			"(--ovsdb; --port-reuse-guards adds them)" + stalls
	case !sw.Has(ovsdb.NullNAT):
		return false, "port-reuse guards, which can crash " + release(sw) + stalls
	}
	return true, ""
}

// release names the Open vSwitch release of a switch.
func release(sw *ovsdb.Switch) string {
	if sw == nil || sw.OVSVersion == "" {
		return "an unknown version of Open vSwitch"
	}
	return "Open vSwitch " + sw.OVSVersion
}

// detector fits the detection of pods to the bridge.
func (s *Settings) detector(cfg *pipeline.Config, sw *ovsdb.Switch) (warnings []string) {
	switch d := &cfg.Detector; {
	case d.Bridge != "" && d.Bridge != s.Bridge:
		warnings = append(warnings, fmt.Sprintf("--pod-bridge-interface %s is not bridge %s: "+
			"no client counts as a pod there", d.Bridge, s.Bridge))
		cfg.Detector = k8s.Detector{}
	case d.InterfacePrefix != "" && sw != nil:
		for _, p := range sw.Ports {
			if p.OFPort != 0 && p.OFPort != cfg.Uplink && strings.HasPrefix(p.Name, d.InterfacePrefix) {
				cfg.PodPorts = append(cfg.PodPorts, p.OFPort)
			}
		}
	}
	return warnings
}

// uplink returns the OpenFlow number of the uplink port. Without a switch, --uplink-port must be a number.
func (s *Settings) uplink(sw *ovsdb.Switch) (uint32, error) {
	if sw != nil {
		p, err := sw.Uplink(s.Uplink)
		return p.OFPort, err
	}
	n, err := strconv.ParseUint(cmp.Or(s.Uplink, "1"), 10, 32)
	if err != nil {
		return 0, fmt.Errorf(
			"--uplink-port %s is a name; without --ovsdb only an OpenFlow port number can be used", s.Uplink)
	}
	return uint32(n), nil
}

// toMAC returns the zero MAC for an address that is unknown or no Ethernet address.
func toMAC(hw net.HardwareAddr) (m flow.MAC) {
	if len(hw) == len(m) {
		m = flow.MAC(hw)
	}
	return m
}
