package bridge

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// DeadPort returns why packets cannot reach the address of a pod of this node, according to the switch's
// database; "": it shows no reason. unknown is set if no port has the address, although the database has
// those of all pods. Without a bridge it returns neither, because status reports that by itself.
func (s *Settings) DeadPort(sw *ovsdb.Switch, node *k8s.Node, ip netip.Addr) (why string, unknown bool) {
	if _, set := s.Ports[ip]; set || !sw.Exists || slices.Contains(node.Local, ip) {
		return "", false
	}
	p, ok := sw.PortByIP(ip)
	switch {
	case ok && p.OFPort == 0:
		return fmt.Sprintf("its port %s is not on bridge %s: %s",
			p.Name, sw.Bridge, cmp.Or(p.Error, "ovs-vswitchd has not added it")), false
	case ok && Unseen(&p, sw.Bridge) != "":
		return "", false
	case ok && len(p.Dead) > 0:
		return fmt.Sprintf("its port %s (OpenFlow port %d): %s", p.Name, p.OFPort, p.Dead[0]), false
	case ok && p.LinkDown:
		return fmt.Sprintf("the link of its port %s (OpenFlow port %d) is down", p.Name, p.OFPort), false
	}
	return "", !ok && namesAddresses(sw, k8s.FamilyOf(ip))
}

// namesAddresses reports whether the pod network writes the addresses of all its pods into the database. If
// it does, an address that is not in the database has no port.
func namesAddresses(sw *ovsdb.Switch, f k8s.Family) bool {
	some := false
	for _, p := range sw.Ports {
		if p.IsPod() && len(p.IPs) == 0 {
			return false
		}
		some = some || slices.ContainsFunc(p.IPs, func(ip netip.Addr) bool { return k8s.FamilyOf(ip) == f })
	}
	return some
}
