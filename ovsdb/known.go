package ovsdb

import (
	"strconv"
	"strings"
)

// nullSNATMended are, for each minor release with the fault, the first patch release without it. From 3.3 on there is none.
var nullSNATMended = map[string]int{"2.17": 8, "3.0": 5, "3.1": 3, "3.2": 3}

// DiesOfNullSNAT reports whether this ovs-vswitchd can end with "assertion conn->conn_type == CT_CONN_TYPE_DEFAULT failed"
// in its own connection tracker, which the userspace datapath uses: when the ports of a connection that was committed with
// nat(src=0.0.0.0) come again, while the old connection has expired and is not swept away yet. It took 4,000 connections a
// second for some seconds to see it (3.1.0). Mended by Open vSwitch's commit 1116459b3; versions older than 2.17 are not
// known to have it. The kernel's tracker is another.
func (s *Switch) DiesOfNullSNAT() bool {
	if s.DatapathType != "netdev" {
		return false
	}
	parts := strings.SplitN(s.OVSVersion, ".", 3)
	if len(parts) < 3 {
		return false
	}
	mended, has := nullSNATMended[parts[0]+"."+parts[1]]
	digits := parts[2]
	if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = digits[:i]
	}
	patch, err := strconv.Atoi(digits)
	return has && err == nil && patch < mended
}

// LacksNullSNAT reports whether this switch takes nat(src=0.0.0.0) for what it says and sends packets from that address,
// instead of giving a connection whose ports are in use another port, which it does not do for any connection: the
// userspace datapath before Open vSwitch 2.16 (its NEWS: "all-zero IP SNAT"). The kernel's tracker has always had it. A
// version that does not parse is taken for a newer one.
func (s *Switch) LacksNullSNAT() bool {
	return s.DatapathType == "netdev" && before(s.OVSVersion, 2, 16)
}

// before tells whether a version is an earlier one than major.minor.
func before(version string, major, minor int) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	x, err1 := strconv.Atoi(first)
	y, err2 := strconv.Atoi(second)
	return err1 == nil && err2 == nil && (x < major || x == major && y < minor)
}
