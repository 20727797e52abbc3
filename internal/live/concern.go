package live

import (
	"context"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Differences are a bridge's flows and groups that are not as nkp wants them.
type Differences struct {
	Own     *flow.Delta  // what would bring nkp's own to the desired state
	Foreign []*flow.Flow // of other owners, also in table 0, which is shared
	More    int          // foreign flows in nkp's own tables that are not in Foreign
	// FailOpen is why ovs-vswitchd forwards packets past all of these; "": it does not.
	FailOpen string
}

// concern describes a connection, to decide whether its packets or their answers can match a flow.
type concern struct {
	ports  map[uint32]bool // cached answers of isPort, by id
	isPort func(id uint32) bool
	family uint16 // Ethernet type
	proto  uint8
	dst    []uint16     // destination ports of the client's packets
	addrs  []netip.Addr // of both ends, before and after translation
}

// concern returns the description of the packet's connection, with every endpoint that may be chosen.
func (v *view) concern(ctx context.Context, q trace.Question) *concern {
	c := &concern{
		family: flow.EthIPv4,
		proto:  k8s.ProtocolNumbers[q.Protocol],
		ports:  map[uint32]bool{0: true},
		isPort: func(id uint32) bool {
			n, ok := v.Owner(ctx, id)
			return ok && n == v.r.Port
		},
		dst:   []uint16{q.To.Port(), q.From.Port()},
		addrs: []netip.Addr{q.From.Addr(), q.To.Addr()},
	}

	if k8s.FamilyOf(q.To.Addr()) == k8s.IPv6 {
		c.family = flow.EthIPv6
	}

	endpoint := func(at netip.AddrPort) {
		c.addrs, c.dst = append(c.addrs, at.Addr()), append(c.dst, at.Port())
	}
	for _, text := range v.r.Endpoints {
		if at, err := netip.ParseAddrPort(text); err == nil {
			endpoint(at)
		}
	}
	for _, w := range v.walks {
		if m := pipeline.ReadMark(w.reg1); m.Service {
			c.ports[m.Port] = true
		}
		endpoint(w.endpoint)
	}

	if v.r.Masquerade == trace.Always {
		c.addrs = append(c.addrs, v.Config.NodeIPs...)
	}
	if v.r.Masquerade == trace.Hairpin {
		c.addrs = append(append(c.addrs, v.Config.NodeIPs...), v.Config.HairpinIPs...)
	}
	return c
}

// port reports whether an id is that of the connection's Service port, or 0, which stands for what all
// Services share.
func (c *concern) port(id uint32) bool {
	is, known := c.ports[id]
	if !known {
		is = c.isPort(id)
		c.ports[id] = is
	}
	return is
}

// flow reports whether a packet of the connection can match a flow. id is that of the Service port in its
// cookie; 0: of none.
func (c *concern) flow(f *flow.Flow, id uint32) bool {
	m := &f.Match
	within := func(p netip.Prefix) bool { return !p.IsValid() || slices.ContainsFunc(c.addrs, p.Contains) }
	return (m.EthType == 0 || m.EthType == c.family) && (m.IPProto == 0 || m.IPProto == c.proto) &&
		(m.DstPort == 0 || slices.Contains(c.dst, m.DstPort)) && within(m.Src) && within(m.Dst) && c.port(id)
}
