package rules

import (
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// DropChains are the chains of table filter whose rules drop or refuse packets.
var DropChains = []string{Services, ExternalServices, Firewall, ClusterIPs, Forward}

// Drop is a rule that drops or refuses packets, as iptables lists it with its counters.
type Drop struct {
	// Port is the Service port as PortName.String returns it, Proto its protocol as serving.Protocol does; ""
	// where the rule is of no single Service port.
	Port, Proto string
	Reason      k8s.DropReason
	Packets     uint64
}

// ParseDrop parses a line of `iptables -v -S`; ok is false for a rule that neither drops nor refuses.
func ParseDrop(line string) (d Drop, ok bool) {
	rule, target, packets, ok := parseCounted(line)
	if !ok || target != "DROP" && !strings.HasPrefix(target, "REJECT") {
		return d, false
	}

	d.Packets = packets
	_, rest, _ := strings.Cut(rule, ` --comment "`)
	comment, _, _ := strings.Cut(rest, `"`)
	for _, c := range []struct {
		text   string
		reason k8s.DropReason
		port   bool
	}{
		{" has no endpoints", k8s.DropNoEndpoint, true},
		{" has no local endpoints", k8s.DropNoLocalEndpoint, true},
		{" " + resetComment, k8s.DropRemovedEndpoint, true},
		{" traffic not accepted by ", k8s.DropSourceRange, true},
		{" serves no such port", k8s.DropUnservedPort, false},
		{"no service has this cluster IP", k8s.DropUnallocated, false},
	} {
		if name, _, found := strings.Cut(comment, c.text); found {
			if d.Reason = c.reason; c.port {
				_, rest, _ = strings.Cut(rule, " -p ")
				d.Port = name
				d.Proto, _, _ = strings.Cut(rest, " ")
			}
			return d, true
		}
	}

	d.Reason = k8s.DropInvalid
	return d, strings.Contains(rule, "--ctstate INVALID")
}
