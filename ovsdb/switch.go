package ovsdb

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Switch is a snapshot of one bridge and of the database's facts about the switch
// it belongs to. It is immutable: readers must not change its slices and maps, and
// may share it between goroutines.
type Switch struct {
	// Bridge is the requested name; Exists reports whether there is such a bridge.
	// If not, only Bridges, OVSVersion and SystemIDs are set.
	Bridge string
	Exists bool
	// Bridges are the names of all bridges, sorted.
	Bridges []string

	// DatapathType is "system" (kernel) or "netdev" (userspace), usually.
	DatapathType string
	// Protocols are the configured OpenFlow versions, sorted; empty means the
	// switch's default. OpenFlow15 reports whether 1.5 is among those in force.
	Protocols  []string
	OpenFlow15 bool
	// OVSVersion as the start-up scripts of Open vSwitch state it, "" if they do
	// not.
	OVSVersion string
	// Offload reports other_config:hw-offload, which lets a NIC forward megaflows of the
	// kernel datapath. ovs-vswitchd reads it only when it starts.
	Offload bool
	// LocalMAC is the address of the bridge's own port, nil if not known yet.
	LocalMAC net.HardwareAddr
	// LocalTag is the access VLAN of the bridge's own port, or its native one; 0: none.
	LocalTag uint16
	// FailMode is "secure", "standalone" or "" (standalone).
	FailMode string
	// Controllers are the OpenFlow controllers that are configured for the bridge, by target. nkp is not
	// among them: it dials the bridge's management socket.
	Controllers []Controller
	// ExternalIDs are the bridge's, SystemIDs those of the Open_vSwitch row.
	ExternalIDs map[string]string
	SystemIDs   map[string]string

	// Ports are the bridge's interfaces except its own, by OpenFlow number, then by
	// name; those without a number come last.
	Ports []Port
	// Warnings list the values that were left out as invalid.
	Warnings []string

	ovn string // what shows that ovn-controller runs the bridge
}

// Controller is a row of the table Controller, as ovs-vswitchd last wrote it: it does so every five seconds.
type Controller struct {
	Target    string
	Connected bool
	LastError string // why there is no connection; "": not known
}

// Port is an interface of the bridge. A bond has several with the same PortName.
type Port struct {
	// Name of the Interface, PortName of the Port it belongs to.
	Name     string
	PortName string
	// OFPort is the OpenFlow port number, 0 as long as there is none.
	OFPort uint32
	// MAC is external_ids:attached-mac, which is the pod's, or else mac_in_use,
	// which is that of the device on the switch's side; nil if neither is known.
	MAC net.HardwareAddr
	// FarMAC reports that MAC is not that of what is behind the port, but of the switch's end of it.
	FarMAC bool
	// IfaceID is external_ids:iface-id; IPs are the addresses of
	// external_ids:ip_addresses, in their order. An address that several
	// interfaces claim stays with the one with the lowest OFPort.
	IfaceID string
	IPs     []netip.Addr
	// Netns is external_ids:contNetns of the Port: the network namespace that ovs-cni plugged in.
	Netns string
	// Tag is the access VLAN or the native one, 0 if there is none; Trunks and
	// VLANMode as in the database.
	Tag      uint16
	Trunks   []uint16
	VLANMode string
	// Type is "" for a device of the system, else internal, patch, vxlan, …
	Type string
	// Error is why ovs-vswitchd could not add the interface.
	Error string
	// LinkDown reports that a device of the system has no carrier: nothing is at the
	// other end. For interfaces of other types it is always false.
	LinkDown bool
	// Dead is why the switch passes nothing to the port or from it, Limited why it may keep some packets
	// back: each names a column and its value.
	Dead, Limited []string

	mtu string // Interface.mtu; "": not known
}

// IsPod reports whether the port is known to lead to a pod.
func (p Port) IsPod() bool { return p.IfaceID != "" || p.Netns != "" || len(p.IPs) > 0 }

// PortByIP finds the port behind which a pod address is.
func (s Switch) PortByIP(ip netip.Addr) (Port, bool) {
	return s.find(func(p Port) bool { return slices.Contains(p.IPs, ip) })
}

// PortByName finds an interface by its name.
func (s Switch) PortByName(name string) (Port, bool) {
	return s.find(func(p Port) bool { return p.Name == name })
}

// PortByNumber finds an interface by its OpenFlow port number.
func (s Switch) PortByNumber(n uint32) (Port, bool) {
	return s.find(func(p Port) bool { return n != 0 && p.OFPort == n })
}

func (s Switch) find(ok func(Port) bool) (Port, bool) {
	if i := slices.IndexFunc(s.Ports, ok); i >= 0 {
		return s.Ports[i], true
	}
	return Port{}, false
}

// DefaultUplink is the OpenFlow port number of the uplink by default.
const DefaultUplink = 1

// Uplink returns the port that leads out of the node. want is its name or OpenFlow
// port number; "" means DefaultUplink if that is not a pod's. A name takes
// precedence over a number. The error wraps ErrNoUplink.
func (s Switch) Uplink(want string) (Port, error) {
	if want == "" {
		p, ok := s.PortByNumber(DefaultUplink)
		if !ok || p.IsPod() {
			return Port{}, s.noUplink(fmt.Sprintf("has no uplink at OpenFlow port %d", DefaultUplink))
		}
		return p, nil
	}

	if p, ok := s.PortByName(want); ok {
		return s.usable(p)
	}
	if list := s.members(want); len(list) > 1 {
		return Port{}, s.noUplink(fmt.Sprintf(
			"has %s as a bond of %s, which are ports of their own to OpenFlow (a bond of the kernel's, as "+
				"one port of the bridge, can be the uplink)",
			plain(want), plainList(list)))
	} else if len(list) == 1 {
		p, _ := s.PortByName(list[0])
		return s.usable(p)
	}

	if n, err := strconv.ParseUint(want, 10, 32); err == nil {
		if p, ok := s.PortByNumber(uint32(n)); ok {
			return p, nil
		}
	}
	return Port{}, s.noUplink("has no port " + quote(want))
}

func (s Switch) usable(p Port) (Port, error) {
	if p.OFPort == 0 {
		reason := "has no OpenFlow port number yet"
		if p.Error != "" {
			reason = "does not work: " + firstLine(p.Error)
		}
		return Port{}, s.noUplink(fmt.Sprintf("has a port %s, but it %s", plain(p.Name), reason))
	}
	return p, nil
}

// firstLine is the printable beginning of a text that the switch wrote.
func firstLine(s string) string {
	i := strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
	if i < 0 {
		i = len(s)
	}
	return s[:min(i, 200)]
}

// members are the interfaces of a Port, sorted.
func (s Switch) members(port string) []string {
	var list []string
	for _, p := range s.Ports {
		if p.PortName == port {
			list = append(list, p.Name)
		}
	}
	slices.Sort(list)
	return list
}

// PortsHere begins the part of ErrNoUplink that changes with the bridge's ports.
const PortsHere = ", ports here: "

// noUplink returns an error that says what is wrong and which ports could be named instead.
func (s Switch) noUplink(what string) error {
	var others []string
	for _, p := range s.Ports {
		if p.OFPort != 0 && !p.IsPod() && len(others) < 8 {
			others = append(others, fmt.Sprintf("%s (%d)", plain(p.Name), p.OFPort))
		}
	}
	ports := "none that is not a pod's"
	if len(others) > 0 {
		ports = strings.Join(others, ", ")
	}
	return fmt.Errorf("%w: bridge %s %s: packets leave the node and arrive as the switch forwards them, "+
		"but nkp cannot tell by the port which ones come from outside; pass --uplink-port%s%s",
		ErrNoUplink, plain(s.Bridge), what, PortsHere, ports)
}

// GatewayPolicy reports whether the database shows that policy is enforced at the
// pods' gateway, so that packets between local pods must keep passing it, and why.
func (s Switch) GatewayPolicy() (bool, string) {
	for _, from := range []struct {
		name string
		ids  map[string]string
	}{{"bridge " + plain(s.Bridge), s.ExternalIDs}, {"the Open_vSwitch row", s.SystemIDs}} {
		isNSX := func(k string) bool { return strings.HasPrefix(strings.ToLower(k), "nsx") }
		if k := firstKey(from.ids, isNSX); k != "" {
			return true, fmt.Sprintf("external_ids of %s have %s: NSX enforces policy at the gateway",
				from.name, quote(k))
		}
	}
	return false, ""
}

// firstKey is the least key that fits, "" if none does.
func firstKey(m map[string]string, fits func(string) bool) string {
	keys := slices.Sorted(maps.Keys(m))
	if i := slices.IndexFunc(keys, fits); i >= 0 {
		return keys[i]
	}
	return ""
}
