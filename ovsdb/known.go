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
