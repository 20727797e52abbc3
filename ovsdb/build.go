package ovsdb

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Limits, because the contents of rows are untrusted.
const (
	maxIPs      = 64  // addresses of one interface
	maxWarnings = 100 // of one snapshot
)

// buildSwitch returns a snapshot of the bridge. It is a pure function of the rows,
// in any order.
func buildSwitch(bridge string, r rows) Switch {
	b := builder{Switch: Switch{Bridge: bridge}}
	b.root(r.roots)
	for _, row := range r.bridges {
		b.Bridges = append(b.Bridges, row.Name)
	}
	slices.Sort(b.Bridges)
	if i := slices.IndexFunc(r.bridges, func(row bridgeRow) bool { return row.Name == bridge }); i >= 0 {
		b.bridge(r.bridges[i], r)
	}
	return b.Switch
}

type builder struct{ Switch }

// warn adds a warning about an interface.
func (b *builder) warn(name, format string, args ...any) {
	b.Warnings = append(b.Warnings, "interface "+plain(name)+": "+fmt.Sprintf(format, args...))
}

// root reads the one row of Open_vSwitch. If there are several, it uses the one with
// the lowest UUID.
func (b *builder) root(roots []rootRow) {
	if len(roots) == 0 {
		return
	}
	r := slices.MinFunc(roots, func(x, y rootRow) int { return cmp.Compare(x.UUID, y.UUID) })
	b.SystemIDs = maps.Clone(r.ExternalIDs)
	b.OVSVersion = value(r.OVSVersion)
	// Compared as by smap_get_bool of Open vSwitch's lib/smap.c.
	b.Offload = strings.EqualFold(r.OtherConfig["hw-offload"], "true")
}

func (b *builder) bridge(row bridgeRow, r rows) {
	b.Exists = true
	b.DatapathType = cmp.Or(row.DatapathType, "system")
	b.Protocols = slices.Sorted(slices.Values(row.Protocols))
	b.OpenFlow15 = slices.Contains(row.Protocols, openFlow15) || len(row.Protocols) == 0 && b.Has(OpenFlow15)
	b.FailMode = value(row.FailMode)
	b.ExternalIDs = maps.Clone(row.ExternalIDs)

	for _, c := range r.controllers {
		if slices.Contains(row.Controller, c.UUID) {
			b.Controllers = append(b.Controllers, Controller{
				plain(c.Target),
				c.IsConnected,
				firstLine(c.Status["last_error"]),
			})
		}
	}
	slices.SortFunc(b.Controllers, func(x, y Controller) int { return cmp.Compare(x.Target, y.Target) })

	ports := index(r.ports, func(p portRow) string { return p.UUID })
	interfaces := index(r.interfaces, func(i interfaceRow) string { return i.UUID })
	for _, id := range row.Ports {
		port, ok := ports[id]
		if !ok {
			continue // the monitor has not sent its row yet
		}
		for _, id := range port.Interfaces {
			if i, ok := interfaces[id]; ok {
				b.port(port, i)
			}
		}

	}
	slices.SortFunc(b.Ports, comparePorts)
	slices.SortFunc(r.mirrors, func(x, y mirrorRow) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.UUID, y.UUID))
	})
	for _, m := range r.mirrors {
		if slices.Contains(row.Mirrors, m.UUID) && m.OutputPort != nil {
			b.mirror(m, ports[*m.OutputPort].Name)
		}
	}
	b.removeDuplicateIPs()
	b.reportOutliers(func(p *Port) string { return fmt.Sprintf("tag %d and trunks %v", p.Tag, p.Trunks) },
		"Port has %s, most pods' ports %s: NORMAL forwarding may keep it apart from them")
	b.reportOutliers(func(p *Port) string { return p.mtu },
		"Interface.mtu is %s, most pods' ports %s: larger packets to it or from it get lost")
	b.ovn = ovnEvidence(b.Switch, row, ports, interfaces)
	slices.Sort(b.Warnings)
	if more := len(b.Warnings) - maxWarnings; more > 0 {
		b.Warnings = append(b.Warnings[:maxWarnings:maxWarnings], fmt.Sprintf("%d more", more))
	}
}

func index[T any](list []T, key func(T) string) map[string]T {
	m := make(map[string]T, len(list))
	for _, e := range list {
		m[key(e)] = e
	}
	return m
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// comparePorts orders ports by OpenFlow port number; ports without one come last.
func comparePorts(x, y Port) int {
	return cmp.Or(cmp.Compare(x.OFPort-1, y.OFPort-1), // 0 becomes the greatest
		cmp.Compare(x.Name, y.Name), cmp.Compare(x.PortName, y.PortName))
}

// port adds an interface to b.Ports. Of the bridge's own interface (LOCAL) it records
// only the MAC address and the VLAN.
func (b *builder) port(port portRow, i interfaceRow) {
	if i.Name == b.Bridge {
		b.LocalMAC, _ = b.mac(i.Name, "mac_in_use", value(i.MACInUse))
		if port.Tag != nil {
			b.LocalTag, _ = b.vlan(i.Name, *port.Tag)
		}
		return
	}

	p := Port{
		Name:     i.Name,
		PortName: port.Name,
		IfaceID:  i.ExternalIDs["iface-id"],
		Netns:    port.ExternalIDs["contNetns"],
		VLANMode: value(port.VLANMode),
		Dead:     blockedReasons(port, i),
		Type:     i.Type,
		Error:    value(i.Error),
		LinkDown: i.Type == "" && value(i.LinkState) == "down",
	}

	if i.MTU != nil {
		p.mtu = strconv.Itoa(*i.MTU)
	}
	if i.OFPort != nil {
		p.OFPort = b.number(&p, *i.OFPort)
	}

	if mac, ok := b.mac(i.Name, "attached-mac", i.ExternalIDs["attached-mac"]); ok {
		p.MAC = mac
	} else {
		p.MAC, _ = b.mac(i.Name, "mac_in_use", value(i.MACInUse))
		p.FarMAC = i.Type != "internal"
	}

	var bad []string
	if p.IPs, bad = parseIPs(i.ExternalIDs["ip_addresses"]); len(bad) > 0 {
		b.warn(i.Name, "ip_addresses: left out %s", strings.Join(bad, ", "))
	}

	if port.Tag != nil {
		p.Tag, _ = b.vlan(i.Name, *port.Tag)
	}
	for _, t := range port.Trunks {
		if v, ok := b.vlan(i.Name, t); ok {
			p.Trunks = append(p.Trunks, v)
		}
	}
	slices.Sort(p.Trunks)

	if i.Policing > 0 {
		p.Limited = append(p.Limited,
			fmt.Sprintf("Interface.ingress_policing_rate is %d kbit/s: what the port sends beyond is dropped",
				i.Policing))
	}
	if port.QoS != nil {
		p.Limited = append(p.Limited,
			fmt.Sprintf("Port.qos is %s (ovs-vsctl list QoS): what is sent to the port "+
				"beyond its rate waits, or is dropped", plain(*port.QoS)))
	}

	b.Ports = append(b.Ports, p)
}

// blockedReasons returns why ovs-vswitchd or the kernel passes nothing through a port. A port on which STP or
// RSTP is disabled forwards.
func blockedReasons(port portRow, i interfaceRow) (dead []string) {
	if value(i.AdminState) == "down" {
		dead = append(dead, "Interface.admin_state is down")
	}
	for _, c := range []struct{ column, state string }{
		{"Port.status:stp_state", port.Status["stp_state"]},
		{"Port.rstp_status:rstp_port_state", port.RSTPStatus["rstp_port_state"]},
	} {
		switch strings.ToLower(c.state) {
		case "blocking", "listening", "learning", "discarding":
			dead = append(dead, c.column+" is "+c.state)
		}
	}
	return dead
}

// mirror records what a Mirror with an output port means.
func (b *builder) mirror(m mirrorRow, output string) {
	if m.SelectAll {
		b.Warnings = append(b.Warnings,
			fmt.Sprintf("mirror %s: Mirror.select_all is true: "+
				"each packet of the bridge is also sent to port %s",
				plain(m.Name), plain(output)))
	}
	for i := range b.Ports {
		if p := &b.Ports[i]; p.PortName == output {
			p.Limited = append(p.Limited,
				fmt.Sprintf("Mirror.output_port of %s is this port: "+
					"NORMAL forwarding neither reaches it nor takes what it sends",
					plain(m.Name)))
		}
	}
}

// reportOutliers notes the ports with addresses of which something is not what it is for more than half of
// them. Where pods are in several VLANs on purpose, there is often no such VLAN. "" is not known.
func (b *builder) reportOutliers(of func(*Port) string, note string) {
	count, all, most := map[string]int{}, 0, ""
	for i := range b.Ports {
		if p := &b.Ports[i]; len(p.IPs) > 0 && of(p) != "" {
			all++
			if count[of(p)]++; count[of(p)] > count[most] {
				most = of(p)
			}
		}
	}
	if 2*count[most] <= all {
		return
	}
	for i := range b.Ports {
		if p := &b.Ports[i]; len(p.IPs) > 0 && of(p) != "" && of(p) != most {
			p.Limited = append(p.Limited, fmt.Sprintf(note, of(p), most))
		}
	}
}

// number checks an OpenFlow port number. -1 means that ovs-vswitchd could not add
// the interface. Valid numbers go up to 0xff00 (OFPP_MAX of OpenFlow 1.0, which the
// database uses).
func (b *builder) number(p *Port, n int) uint32 {
	switch {
	case n == -1:
		p.Error = cmp.Or(p.Error, "ovs-vswitchd could not add it")
	case n > 0 && n <= 0xff00:
		return uint32(n)
	default:
		b.warn(p.Name, "ofport %d is not a valid port number", n)
	}
	return 0
}

func (b *builder) vlan(name string, n int) (uint16, bool) {
	if n < 0 || n > 4095 {
		b.warn(name, "VLAN %d is out of range 0-4095", n)
		return 0, false
	}
	return uint16(n), true
}

// mac parses a MAC address, which must be unicast: six bytes, not all zero, not
// multicast.
func (b *builder) mac(name, what, s string) (net.HardwareAddr, bool) {
	if s == "" {
		return nil, false
	}
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
		b.warn(name, "%s: left out %s", what, quote(s))
		return nil, false
	}
	return mac, true
}

// parseIPs parses a comma-separated list of addresses. bad are the invalid entries,
// quoted. IPv4-mapped IPv6 addresses are returned as IPv4.
func parseIPs(s string) (ips []netip.Addr, bad []string) {
	for field := range strings.SplitSeq(s, ",") {
		field = strings.TrimSpace(field)
		if field == "" {
			continue
		}
		a, err := netip.ParseAddr(field)
		a = a.Unmap()
		switch {
		case len(ips)+len(bad) >= maxIPs:
			return ips, append(bad, fmt.Sprintf("all beyond %d", maxIPs))
		case err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback():
			bad = append(bad, quote(field))
		case !slices.Contains(ips, a):
			ips = append(ips, a)
		}
	}
	return ips, bad
}

// plain returns name, quoted if it is empty, long, or has characters other than
// printable ASCII.
func plain(name string) string {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }
	if name == "" || len(name) > 40 || strings.ContainsFunc(name, odd) {
		return quote(name)
	}
	return name
}

// quote returns untrusted text quoted for a log line, cut to 40 bytes.
func quote(s string) string {
	if len(s) > 40 {
		return strconv.Quote(s[:40]) + "…"
	}
	return strconv.Quote(s)
}

// removeDuplicateIPs removes duplicate addresses: the first port that claims one keeps it, a port through
// which nothing passes only if no other claims it. b.Ports must be sorted by comparePorts.
func (b *builder) removeDuplicateIPs() {
	owner := map[netip.Addr]int{}
	for _, passes := range []bool{true, false} {
		for i := range b.Ports {
			if p := &b.Ports[i]; p.passes() == passes {
				b.claimIPs(i, owner)
			}
		}
	}
}

// passes reports whether the database says nothing against packets to the port.
func (p *Port) passes() bool { return p.OFPort != 0 && !p.LinkDown && len(p.Dead) == 0 }

// claimIPs gives port number i the addresses that it claims, but those that have an owner.
func (b *builder) claimIPs(i int, owner map[netip.Addr]int) {
	p := &b.Ports[i]
	p.IPs = slices.DeleteFunc(p.IPs, func(a netip.Addr) bool {
		first, taken := owner[a]
		if taken {
			f := &b.Ports[first]
			f.Limited = append(f.Limited,
				fmt.Sprintf("Interface.external_ids:ip_addresses of %s has %s, too: "+
					"nkp sends its packets to %s",
					plain(p.Name), a, plain(f.Name)))
		} else {
			owner[a] = i
		}
		return taken
	})
}
