package iptables

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// bytesNote explains why Counters returns no packets and bytes.
const bytesNote = "packets and bytes: n/a: the rules see only the first packet of a connection, " +
	"and rules that see all would slow down every packet of the node " +
	"(for live connections: conntrack -L, with net.netfilter.nf_conntrack_acct=1)"

// lister lists the rules of a chain with counters; nothing if there is no such chain.
type lister func(table rules.Table, chain string) ([]string, error)

// Uncounted is part of fallback.Kernel.
func (kernel) Uncounted() string { return bytesNote }

// Count adds the number of connections of every Service port since its rules were installed, from the
// counters of these rules.
func (kernel) Count(
	ctx context.Context, m *k8s.Model, o fallback.Options, backend string,
	all map[k8s.PortName]k8s.Counters, dropped map[dataplane.DropKey]uint64,
) error {
	for _, f := range o.Families {
		list, err := listRules(ctx, backend, f)
		if err != nil {
			return err
		}
		opened, err := connections(list)
		if err != nil {
			return err
		}
		names := map[[2]string]k8s.PortName{}
		for n := range m.Ports {
			if n.Family == f {
				all[n] = k8s.Counters{Connections: opened[serving.PortHash(n)]}
				names[[2]string{n.String(), serving.Protocol(n)}] = n
			}
		}
		if err := drops(list, names, dropped); err != nil {
			return err
		}
	}
	return nil
}

// drops adds the packets that the rules of a family drop or refuse to sum. names are the Service ports by
// name and protocol.
func drops(list lister, names map[[2]string]k8s.PortName, sum map[dataplane.DropKey]uint64) error {
	for _, chain := range rules.DropChains {
		lines, err := list(rules.Filter, chain)
		if err != nil {
			return err
		}
		for _, l := range lines {
			d, ok := rules.ParseDrop(l)
			name, known := names[[2]string{d.Port, d.Proto}]
			if ok && (known || d.Port == "") { // else the Service has just gone
				sum[dataplane.DropKey{Port: name, Reason: d.Reason}] += d.Packets
			}
		}
	}
	return nil
}

// CountNode lists a chain of each family for packets in state INVALID, with AnswerPing another one for pings,
// and of IPv4 one for NodePorts at loopback addresses.
func (kernel) CountNode(
	ctx context.Context, o fallback.Options, backend string,
) (n fallback.NodeCounters, err error) {
	add := func(to **uint64, packets uint64) {
		if *to == nil {
			*to = new(uint64)
		}
		**to += packets
	}

	for _, f := range o.Families {
		list, err := listRules(ctx, backend, f)
		if err != nil {
			return n, err
		}

		lines, err := list(rules.Filter, rules.Forward)
		if err != nil {
			return n, err
		}
		for _, l := range lines {
			if d, ok := rules.ParseDrop(l); ok && d.Reason == k8s.DropInvalid {
				add(&n.Invalid, d.Packets)
			}
		}

		if o.AnswerPing {
			if lines, err = list(rules.Filter, rules.NodePorts); err != nil {
				return n, err
			}
			for _, l := range lines {
				if packets, limited, ok := rules.ParsePings(l); ok {
					n.AddPings(packets, limited)
				}
			}
		}

		if f != k8s.IPv4 || !o.LocalhostNodePorts {
			continue
		}
		if lines, err = list(rules.NAT, rules.Postrouting); err != nil {
			return n, err
		}
		for _, l := range lines {
			if packets, ok := rules.ParseLocalhost(l); ok {
				add(&n.Localhost, packets)
			}
		}
	}
	return n, nil
}

// connections adds up the connections of a family by the hash of the Service port.
func connections(list lister) (map[string]uint64, error) {
	opened := map[string]uint64{}
	firewalls := map[string]bool{}
	add := func(chain string) error {
		lines, err := list(rules.NAT, chain)
		for _, l := range lines {
			switch e, ok := rules.ParseEntry(l); {
			case !ok:
			case e.Firewall != "":
				firewalls[e.Firewall] = true
			default:
				opened[e.Hash] += e.Packets
			}
		}
		return err
	}

	for _, chain := range rules.EntryChains {
		if err := add(chain); err != nil {
			return nil, err
		}
	}
	for chain := range firewalls {
		if err := add(chain); err != nil {
			return nil, err
		}
	}
	return opened, nil
}
