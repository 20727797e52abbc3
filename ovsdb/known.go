package ovsdb

import (
	"fmt"
	"strconv"
	"strings"
)

// nullNATFixed are the first patch releases of each minor release without the fault of [Switch.DiesOfNullNAT]. All releases
// before 2.17 have it, none from 3.3 on.
var nullNATFixed = map[int]int{217: 8, 300: 5, 301: 3, 302: 3}

// DiesOfNullNAT reports whether this ovs-vswitchd may end with "assertion conn->conn_type == CT_CONN_TYPE_DEFAULT failed" in
// its own conntrack (lib/conntrack.c, conn_update_state), which the userspace datapath uses. It does so when a packet meets
// an expired entry that is not deleted yet (up to 20 s) and whose translation changes neither address nor port: both halves
// of such an entry have the same hash, and the half that never expires is found for the other. One client that connects
// twice from one port is enough. Fixed by Open vSwitch's commit 1116459b3. A version that is unknown or does not parse is
// taken for one with the fault. The kernel datapath uses the kernel's conntrack.
func (s *Switch) DiesOfNullNAT() bool {
	if s.DatapathType != "netdev" {
		return false
	}
	var major, minor, patch int
	if n, _ := fmt.Sscanf(s.OVSVersion, "%d.%d.%d", &major, &minor, &patch); n < 2 {
		return true
	}
	fixed, has := nullNATFixed[100*major+minor]
	if !has {
		return before(s.OVSVersion, 2, 17)
	}
	return patch < fixed
}

// LacksNullSNAT reports whether this switch takes nat(src=0.0.0.0) for what it says and sends packets from that address,
// instead of giving a connection whose ports are in use another port, which it does not do for any connection: the
// userspace datapath before Open vSwitch 2.16 (its NEWS: "all-zero IP SNAT"). The kernel's tracker has always had it. A
// version that does not parse is taken for a newer one.
func (s *Switch) LacksNullSNAT() bool {
	return s.DatapathType == "netdev" && before(s.OVSVersion, 2, 16)
}

// before reports whether a version is an earlier one than major.minor.
func before(version string, major, minor int) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	x, err1 := strconv.Atoi(first)
	y, err2 := strconv.Atoi(second)
	return err1 == nil && err2 == nil && (x < major || x == major && y < minor)
}
