package ovsdb

import (
	"fmt"
	"strings"
)

// Feature is something that nkp uses on switches that have it. Open vSwitch does not report its features, so
// most are known by the release; what can be tried is tried instead (CTFlush, by ofctrl.Conn.ProbeCTFlush).
type Feature struct {
	Name  string // as users read it
	Since string // the releases that have it, as users read it
	// first and fixed are the first minor release with it, and first patch releases of earlier ones.
	first release
	fixed []release
	// userspace is set if only the userspace datapath can lack it, because the kernel datapath uses the
	// kernel's conntrack.
	userspace bool
	// unknown is what is assumed of a release that is not known.
	unknown bool
}

// The features that not all supported releases have.
var (
	// OpenFlow15 is OpenFlow 1.5 on bridges whose protocols are not configured. An unknown release is assumed
	// to have it; if it does not, the handshake fails.
	OpenFlow15 = Feature{
		Name:    "OpenFlow 1.5 without configuration",
		Since:   "2.12",
		first:   release{2, 12, 0},
		unknown: true,
	}

	// NullSNAT is nat(src=0.0.0.0): a connection whose ports are in use gets another port. Other switches
	// take it literally and send packets from that address (NEWS of 2.16: "all-zero IP SNAT").
	NullSNAT = Feature{
		Name:      "port-reuse guards",
		Since:     "2.16",
		first:     release{2, 16, 0},
		userspace: true,
		unknown:   true,
	}

	// NullNAT is a translation that changes neither address nor port and does no harm. Other switches may
	// abort with "assertion conn->conn_type == CT_CONN_TYPE_DEFAULT failed" (lib/conntrack.c,
	// conn_update_state) when a packet matches an expired entry of such a translation that is not deleted yet
	// (up to 20 s): both halves of the entry have the same hash, and the half that never expires is found for
	// the other. One client that connects twice from one port is enough. Fixed by Open vSwitch's commit
	// 1116459b3.
	NullNAT = Feature{
		Name:      "translations without change",
		Since:     "2.17.8, 3.0.5, 3.1.3, 3.2.3 and 3.3",
		first:     release{3, 3, 0},
		fixed:     []release{{2, 17, 8}, {3, 0, 5}, {3, 1, 3}, {3, 2, 3}},
		userspace: true,
	}

	// CTFlush is the deletion of single conntrack entries over OpenFlow (NXT_CT_FLUSH).
	CTFlush = Feature{
		Name:    "deleting conntrack entries over OpenFlow",
		Since:   "3.1",
		first:   release{3, 1, 0},
		unknown: true,
	}
)

// Has reports whether the switch has a feature, judged by its release.
func (s *Switch) Has(f Feature) bool {
	if f.userspace && s.DatapathType != "netdev" {
		return true
	}
	r, ok := parseRelease(s.OVSVersion)
	if !ok {
		return f.unknown
	}
	for _, fixed := range f.fixed {
		if r.major == fixed.major && r.minor == fixed.minor {
			return r.patch >= fixed.patch
		}
	}
	return !r.before(f.first)
}

// String names the feature and the releases that have it.
func (f Feature) String() string { return f.Name + " (Open vSwitch " + f.Since + " and later)" }

// release is a release of Open vSwitch.
type release struct{ major, minor, patch int }

// parseRelease reads a version such as 3.1.0, 3.1 or 3.1.2-dev.
func parseRelease(version string) (r release, ok bool) {
	version, _, _ = strings.Cut(version, "-")
	n, _ := fmt.Sscanf(version, "%d.%d.%d", &r.major, &r.minor, &r.patch)
	return r, n >= 2
}

func (r release) before(o release) bool {
	return r.major < o.major || r.major == o.major && r.minor < o.minor
}
