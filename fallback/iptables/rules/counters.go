package rules

import (
	"fmt"
	"strings"
)

// Table nat sees only the first packet of a connection, and a rule of a shared chain that jumps to a Service
// port's chains matches it once: the packet counters of these rules count connections. The rules stay in
// place when endpoints change, so that their counters are kept. A load balancer's rule matches all clients,
// allowed or not: there, the rules of the firewall chain count the allowed ones.

// Entry is a rule that leads to a Service port's chains, as iptables lists it with its counters.
type Entry struct {
	// Hash is the Service port's (serving.PortHash).
	Hash string
	// Firewall names the chain whose rules are to be counted instead, for a load balancer with source ranges;
	// "": none.
	Firewall string
	Packets  uint64
}

// EntryChains are the chains of table nat that lead to Services.
var EntryChains = []string{Services, NodePorts}

// ParseEntry parses a line of `iptables -v -S`; ok is false for a rule that does not jump to a Service port's
// chains.
func ParseEntry(line string) (e Entry, ok bool) {
	_, target, packets, ok := parseCounted(line)
	e.Packets = packets
	target, _, _ = strings.Cut(target, " ")
	switch {
	case strings.HasPrefix(target, prefixFirewall):
		e.Hash, e.Firewall = target[len(prefixFirewall):], target
	case rank(target) < rank(prefixEndpoint):
		e.Hash = target[strings.LastIndexByte(target, '-')+1:]
	default:
		return e, false
	}
	return e, ok
}

// parseCounted parses a line of `iptables -v -S`: the rule without its counters and target, the target with
// its options, "" if it has none, and the packets that the rule has matched.
func parseCounted(line string) (rule, target string, packets uint64, ok bool) {
	rule, target, _ = cutLast(line, " -j ")
	rule, counters, ok := cutLast(rule, " -c ")
	_, err := fmt.Sscanf(counters, "%d", &packets)
	return rule, target, packets, ok && err == nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
