package sysctl

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// ForwardingOff returns the kernel setting by which packets of a family that come in by a device are not
// forwarded; "": none. IPv6 has one for all devices, which a device's force_forwarding overrides since Linux
// 6.17; IPv4's counts for the devices that have no other value of their own.
func ForwardingOff(six bool, device string) (name string) {
	const all4, all6 = "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"
	own := all4
	if device != "" {
		own = "net/ipv4/conf/" + device + "/forwarding"
	}
	switch {
	case six && setting(all6) == "0" && setting("net/ipv6/conf/"+device+"/force_forwarding") != "1":
		name = all6
	case six || setting(own) != "0":
		return ""
	case setting(all4) == "0":
		name = all4
	default:
		name = own
	}
	if !strings.Contains(name, ".") { // as most people write it; a device's name may have dots
		name = strings.ReplaceAll(name, "/", ".")
	}
	return name
}

// StrictReversePath reports whether the kernel drops an IPv4 packet that comes in by a device if it would not
// send the answer by it: rp_filter is 1 (RFC 3704). The larger value of the device's and that of all counts.
func StrictReversePath(device string) bool {
	return max(setting("net/ipv4/conf/all/rp_filter"), setting("net/ipv4/conf/"+device+"/rp_filter")) == "1"
}

// ReversePathDrops returns how many packets the kernel has dropped by rp_filter in this network namespace; 0:
// it does not say.
func ReversePathDrops() int {
	text, _ := os.ReadFile("/proc/net/netstat")
	var names []string
	for line := range strings.Lines(string(text)) { // one of names, one of values
		fields := strings.Fields(line)
		if at := slices.Index(names, "IPReversePathFilter"); at >= 0 && at < len(fields) {
			n, _ := strconv.Atoi(fields[at])
			return n
		}
		names = fields
	}
	return 0
}

// setting returns a kernel setting, a path below /proc/sys; "": it cannot be read.
func setting(path string) string {
	text, _ := os.ReadFile("/proc/sys/" + path)
	return strings.TrimSpace(string(text))
}
