package agent

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// notForwarding returns a warning for each family of the node of which the kernel does not forward what comes
// in from outside, although the Services there need that: those of iptables or nftables, with a scope. The
// bridge forwards by itself.
func notForwarding(s *fallback.Status, nodeIPs []netip.Addr) (warnings []string) {
	if s.Scope == serving.Own.String() {
		return nil
	}
	for _, f := range dataplane.Families {
		ip := f.First(nodeIPs)
		if !ip.IsValid() {
			continue
		}
		if name := forwardingOff(f, deviceOf(ip)); name != "" {
			if !strings.Contains(name, ".") { // as most people write it; a device's name may have dots
				name = strings.ReplaceAll(name, "/", ".")
			}
			warnings = append(warnings, fmt.Sprintf(
				"%s is 0: the kernel does not forward %s packets of Services that come from outside to "+
					"endpoints elsewhere; set it to 1 (sysctl -w %[1]s=1)", name, f))
		}
	}
	return warnings
}

// forwardingOff returns the kernel setting by which packets of a family that come in by a device are not
// forwarded; "": none. IPv6 has one for all devices; IPv4's counts for the devices that have no other value
// of their own.
func forwardingOff(f k8s.Family, device string) string {
	const all4, all6 = "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"
	own := all4
	if device != "" {
		own = "net/ipv4/conf/" + device + "/forwarding"
	}
	switch {
	case f == k8s.IPv6 && isZero(all6):
		return all6
	case f == k8s.IPv6 || !isZero(own):
		return ""
	case isZero(all4):
		return all4
	}
	return own
}

// isZero reports whether a kernel setting, a path below /proc/sys, is 0. One that cannot be read is not.
func isZero(path string) bool {
	text, err := os.ReadFile("/proc/sys/" + path)
	return err == nil && strings.TrimSpace(string(text)) == "0"
}
