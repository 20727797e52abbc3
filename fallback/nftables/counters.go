//go:build linux

package nftables

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// counts are the counters of a table.
type counts struct {
	ports   map[k8s.PortName]k8s.Counters
	dropped map[dataplane.DropKey]uint64
}

// Count is part of fallback.Kernel.
func (k kernel) Count(
	_ context.Context, m *k8s.Model, o fallback.Options, _ string,
	all map[k8s.PortName]k8s.Counters, dropped map[dataplane.DropKey]uint64,
) error {
	config := rules.Config{Config: o.Config, Settings: k.asked.Settings}
	conn, err := netlink.Open()
	if err != nil {
		return err
	}
	defer conn.Close()

	for _, f := range o.Families {
		compiler := rules.NewCompiler(config, f, m)
		of := map[string]*k8s.ServicePort{}
		for n, sp := range m.Ports {
			if n.Family == f {
				all[n] = k8s.Counters{}
				if config.CountTraffic {
					all[n] = k8s.Counters{Packets: &k8s.Directions{}, Bytes: &k8s.Directions{}}
				}
				compiler.Keys(sp, func(key string) { of[key] = sp })
			}
		}

		c := counts{ports: all, dropped: dropped}
		if err := c.read(conn, f, of); err != nil {
			return err
		}
	}
	return nil
}

// read reads the counters of a family. Elements that lead to a Service port count the first packet of each
// connection, those of refused frontends all packets, those of served ones packets and bytes by direction. of
// are the Service ports of the elements, by key.
func (c *counts) read(conn *netlink.Conn, f k8s.Family, of map[string]*k8s.ServicePort) error {
	t, err := conn.ReadChains(f)
	if err != nil || t == nil {
		return err
	}

	denied := map[k8s.PortName]uint64{} // counted as connections, too, because they are denied after that
	for _, set := range rules.Counting {
		counts, err := conn.Counters(f, set)
		if err != nil {
			return err
		}
		for r, count := range counts {
			sp := of[r.Key]
			if sp == nil {
				continue // the Service has just gone
			}
			n := sp.Name
			why, refused := rules.Reason(count.Value)
			switch {
			case set == rules.TrafficIn || set == rules.NodePortTrafficIn:
				c.ports[n].Packets.In += count.Packets
				c.ports[n].Bytes.In += count.Bytes
			case set == rules.TrafficOut || set == rules.NodePortTrafficOut:
				c.ports[n].Packets.Out += count.Packets
				c.ports[n].Bytes.Out += count.Bytes
			case refused:
				c.dropped[dataplane.DropKey{Port: n, Reason: why}] += count.Packets
				if why == k8s.DropSourceRange {
					denied[n] += count.Packets
				}
			default:
				now := c.ports[n]
				now.Connections += count.Packets
				c.ports[n] = now
			}
		}
	}

	for n, packets := range denied {
		now := c.ports[n]
		now.Connections -= min(packets, now.Connections)
		c.ports[n] = now
	}

	for i, n := range t.Counted(rules.CountsUnserved) {
		why := k8s.DropUnallocated
		if i == 0 {
			why = k8s.DropUnservedPort
		}
		c.dropped[dataplane.DropKey{Reason: why}] += n
	}
	for _, n := range t.Counted(rules.CountsInvalid) {
		c.dropped[dataplane.DropKey{Reason: k8s.DropInvalid}] += n
	}
	return nil
}

// CountNode is part of fallback.Kernel: only pings are counted for the node as a whole.
func (kernel) CountNode(
	_ context.Context, o fallback.Options, _ string,
) (n fallback.NodeCounters, err error) {
	if !o.AnswerPing {
		return n, nil
	}
	conn, err := netlink.Open()
	if err != nil {
		return n, err
	}
	defer conn.Close()

	for _, f := range o.Families {
		t, err := conn.ReadChains(f)
		if err != nil {
			return n, err
		}
		if t != nil {
			for i, packets := range t.Counted(rules.CountsPings) {
				n.AddPings(packets, i == 0)
			}
		}
	}
	return n, nil
}
