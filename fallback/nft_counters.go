//go:build linux

package fallback

import (
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	nft "github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// nftCounts are the counters of a table.
type nftCounts struct {
	ports   map[k8s.PortName]k8s.Counters
	dropped map[dataplane.DropKey]uint64
}

// countNFT adds what the tables have counted: to all, for each Service port of the model, and to dropped. config is that of the tables.
func countNFT(m *k8s.Model, config nft.Config, families []k8s.Family, all map[k8s.PortName]k8s.Counters, dropped map[dataplane.DropKey]uint64) error {
	conn, err := netlink.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, f := range families {
		c := nft.NewCompiler(config, f, m)
		of := map[nft.Ref]k8s.PortName{}
		for n, sp := range m.Ports {
			if n.Family == f {
				all[n] = k8s.Counters{}
				if config.CountTraffic {
					all[n] = k8s.Counters{Packets: &k8s.Directions{}, Bytes: &k8s.Directions{}}
				}
				for _, e := range c.Entries(sp) {
					of[e] = n
				}
			}
		}
		counts := nftCounts{ports: all, dropped: dropped}
		if err := counts.read(conn, f, of); err != nil {
			return err
		}
	}
	return nil
}

// read reads the counters of a family. Elements that lead to a Service port count the first packet of each connection, those of refused
// frontends all packets, those of served ones packets and bytes by direction. of are the Service ports of the elements.
func (c *nftCounts) read(conn *netlink.Conn, f k8s.Family, of map[nft.Ref]k8s.PortName) error {
	t, err := conn.ReadChains(f)
	if err != nil || t == nil {
		return err
	}
	denied := map[k8s.PortName]uint64{} // counted as connections, too, because they are denied after that
	for _, set := range nft.Counting {
		counts, err := conn.Counters(f, set)
		if err != nil {
			return err
		}
		for r, count := range counts {
			n, ok := of[r]
			why, refused := nft.Reason(count.Value)
			switch {
			case !ok: // the Service has just gone
			case set == nft.TrafficIn || set == nft.NodePortTrafficIn:
				c.ports[n].Packets.In += count.Packets
				c.ports[n].Bytes.In += count.Bytes
			case set == nft.TrafficOut || set == nft.NodePortTrafficOut:
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
	for i, n := range t.Counted(nft.CountsUnserved) {
		why := k8s.DropUnallocated
		if i == 0 {
			why = k8s.DropUnservedPort
		}
		c.dropped[dataplane.DropKey{Reason: why}] += n
	}
	for _, n := range t.Counted(nft.CountsInvalid) {
		c.dropped[dataplane.DropKey{Reason: k8s.DropInvalid}] += n
	}
	return nil
}
