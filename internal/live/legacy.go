package live

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/trace"
)

// header has the addresses of a packet of a connection as chains may meet it. An address that is not valid,
// or a port 0, is not known.
type header struct {
	protocol string
	src, dst netip.AddrPort
	answer   bool // not looked up in table nat, which sees the first packet of a connection only
}

// headers returns the packets of a connection, before and after translation, and their answers.
func headers(q trace.Question, paths []rules.Path) (list []header) {
	protocol := strings.ToLower(string(q.Protocol))
	both := func(a, b netip.AddrPort) {
		list = append(list, header{protocol, a, b, false}, header{protocol, b, a, true})
	}
	both(q.From, q.To)
	for _, w := range paths {
		if !w.Endpoint.IsValid() {
			continue
		}
		both(q.From, w.Endpoint)
		if w.Masquerade {
			both(netip.AddrPort{}, w.Endpoint)
		}
	}
	return list
}

// interfering returns the rules of iptables that may take one of the packets away, or lead it elsewhere, in
// chains that the base chains lead to. tables are as Rules.Tables. A condition that nkp does not evaluate may
// hold.
func interfering(tables map[string]map[string][]string, bases []string, packets []header) (list []string) {
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		seen := map[string]bool{}
		var follow func(chain string)
		follow = func(chain string) {
			if seen[chain] {
				return
			}
			seen[chain] = true

			for _, text := range tables[table][chain] {
				r := newRule(text)
				mayMatch := func(v header) bool { return (table != "nat" || !v.answer) && r.mayHold(v) }
				if !slices.ContainsFunc(packets, mayMatch) {
					continue
				}
				if _, is := tables[table][r.target]; is {
					follow(r.target)
				} else if !harmless[r.target] {
					list = append(list, fmt.Sprintf("table %s: -A %s %s", table, chain, text))
				}
			}
		}

		for _, b := range bases {
			follow(b)
		}
	}
	return list
}

// harmless are the targets of iptables after which a packet still gets where it would have got
// (iptables-extensions(8)).
var harmless = map[string]bool{
	"": true, "ACCEPT": true, "RETURN": true, "MASQUERADE": true, "SNAT": true,
	"MARK": true, "CONNMARK": true, "LOG": true, "NFLOG": true, "AUDIT": true, "TRACE": true,
	"CLASSIFY": true, "TCPMSS": true, "DSCP": true, "TOS": true, "CHECKSUM": true, "SET": true, "TEE": true,
}

// mayHold reports whether a rule may match a packet.
func (r *rule) mayHold(v header) bool {
	return !slices.ContainsFunc(r.matches, func(m match) bool { return !m.mayHold(v) })
}

func (m *match) mayHold(v header) bool {
	known, is := false, false
	switch m.option {
	case "-s":
		known, is = inNetwork(m.value, v.src.Addr())
	case "-d":
		known, is = inNetwork(m.value, v.dst.Addr())
	case "-p":
		_, err := strconv.Atoi(m.value)
		known, is = err != nil && m.value != "all", m.value == v.protocol
	case "--sport":
		known, is = inPorts(m.value, v.src.Port())
	case "--dport":
		known, is = inPorts(m.value, v.dst.Port())
	case "--ctstate", "--state":
		odd := func(state string) bool { return state == "INVALID" || state == "UNTRACKED" }
		known = !slices.ContainsFunc(strings.Split(m.value, ","), func(s string) bool { return !odd(s) })
	}
	return !known || is != m.not
}

// inNetwork reports whether an address is in a network, and whether that is known.
func inNetwork(text string, ip netip.Addr) (known, is bool) {
	p, ok := network(text)
	return ok && ip.IsValid(), p.Contains(ip)
}

// inPorts reports whether a port is in a range such as 80:90, and whether that is known.
func inPorts(text string, port uint16) (known, is bool) {
	first, last, ranged := strings.Cut(text, ":")
	if !ranged {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	return errA == nil && errB == nil && port != 0, uint64(port) >= a && uint64(port) <= b
}
