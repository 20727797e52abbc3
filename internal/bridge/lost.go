package bridge

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nkp-proxy/nkp/internal/node"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// Counted is what the switch had counted before a probe: packets of its ports, and those that conntrack
// refused because of their checksum (userspace datapath only). What could not be read is absent.
type Counted struct {
	ports     map[uint32]ofctrl.PortPackets
	checksums map[string]uint64
}

const badChecksum = "conntrack_l4csum_err" // a counter of lib/conntrack.c

// Counted returns what the switch has counted until now.
func (p *Plane) Counted(ctx context.Context) (c Counted) {
	if conn := p.conn(); conn != nil {
		c.ports, _ = conn.PortPackets(ctx)
	}
	c.checksums, _ = p.daemon().Counters(ctx, badChecksum)
	return c
}

// resolveWait is how long the kernel may take to find out who has an address.
const resolveWait = 500 * time.Millisecond

// WhyLost returns why the endpoint, a pod of this node, has not answered a client's packet that left by the
// pod's port, as far as the switch and the kernel can know; "": they know nothing. before is from when the
// packet was sent. answers reports whether an endpoint that got the packet has to answer.
func (p *Plane) WhyLost(
	ctx context.Context,
	before Counted,
	endpoint, client netip.Addr,
	answers bool,
) string {
	after, sw := p.Counted(ctx), p.db.Switch()
	if was, known := before.checksums[badChecksum]; known {
		if n := after.checksums[badChecksum]; n > was {
			return fmt.Sprintf("packets that conntrack refused meanwhile because of a wrong checksum: "+
				"%d (coverage/read-counter %s): "+
				"if the answer is among them, "+
				"switch off checksum offload in the pod (ethtool -K eth0 tx off)", n-was, badChecksum)
		}
	}
	port, ok := sw.PortByIP(endpoint)
	if !ok {
		return ""
	}
	if text := p.set.resolve(&sw, &port, endpoint); text != "" {
		return fmt.Sprintf("of port %s: %s", port.Name, text)
	}

	was, known := before.ports[port.OFPort]
	is, still := after.ports[port.OFPort]
	switch {
	case !known || !still || !answers:
		return ""
	case is.Sent == was.Sent:
		return fmt.Sprintf("port %s has sent no packet: its state or its QoS keeps it back, "+
			"or a flow of others sends it elsewhere (nkp trace --live)", port.Name)
	}
	return fmt.Sprintf("port %s sent it to the pod, and conntrack took none of the packets that came back "+
		"by the port (%d) for an answer: the pod has no route to %s, "+
		"or drops the packet (rp_filter, a filter of its own), or its server's accept queue is full",
		port.Name, is.Received-was.Received, client)
}

// resolve has the kernel find out who has the address of a pod, and returns what contradicts the database;
// "": nothing, or the node is not on the bridge.
func (s *Settings) resolve(sw *ovsdb.Switch, p *ovsdb.Port, ip netip.Addr) string {
	network, _ := node.Read()
	bridge, ok := network.Link(s.Bridge)
	if !ok {
		return ""
	}
	node.Ask(node.Station{Link: bridge.Index, Addr: ip})
	end := time.Now().Add(resolveWait)
	for network.Neighbour(bridge, ip).State != node.Fresh && time.Now().Before(end) {
		time.Sleep(resolveWait / 20)
		network, _ = node.Read()
	}
	return foundElsewhere(network.Neighbour(bridge, ip), sw, p, ip)
}
