package live

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// station is an end of a link: where a packet of its own enters the bridge.
type station struct {
	port uint32
	mac  flow.MAC
	ip   netip.Addr
}

// neighbours adds a doubt for each end of the connection on this bridge that flows of others cut off from its
// next hop: they take away the ARP (RFC 826) or the neighbour discovery (RFC 4861) between the two. Flows of
// any priority count, because nkp's take neither. The next hop is taken to be behind the uplink.
func (v *view) neighbours(ctx context.Context, q trace.Question) {
	arrives := v.Verdict == trace.Deliver || v.Verdict == trace.Mixed
	if v.r.Verdict != trace.Deliver || !arrives || v.Config.Uplink == 0 {
		return
	}

	router := station{v.Config.Uplink, v.Config.GatewayMAC, netip.IPv4Unspecified()}
	if router.mac.IsZero() {
		router.mac = anyMAC
	}
	if q.To.Addr().Is6() {
		router.ip = netip.MustParseAddr("fe80::1") // nkp does not know which one it has
	}

	for _, end := range v.ends(q) {
		if err := v.neighbour(ctx, end, router); err != nil {
			v.Unknown = append(v.Unknown, fmt.Sprintf("whether %s finds its next hop: %v", end.ip, err))
		}
	}
}

// ends returns the pods at the connection's ends, at most maxPaths of its endpoints, and the node where
// packets come to it from outside, or answers of masqueraded ones.
func (v *view) ends(q trace.Question) (list []station) {
	ips := []netip.Addr{q.From.Addr()}
	for _, w := range v.walks {
		if at := w.endpoint.Addr(); at.IsValid() && !slices.Contains(ips, at) && len(ips) <= maxPaths {
			ips = append(ips, at)
		}
	}
	for _, ip := range ips {
		if pod, here := v.pod(ip); here && pod.OFPort != v.Config.Uplink {
			list = append(list, station{pod.OFPort, pod.MAC, ip})
		}
	}

	_, isPod := v.pod(q.From.Addr())
	ip := v.nodeIP(q.From.Addr())
	onBridge := ip.IsValid() && !v.Config.NodeMAC.IsZero() && !v.Config.Elsewhere(k8s.FamilyOf(ip))
	if onBridge && (!isPod || v.r.Masquerade == trace.Always) {
		list = append(list, station{flow.PortLocal, v.Config.NodeMAC, ip})
	}
	return list
}

// neighbour has the switch trace what a station and its router send to find each other, and adds a doubt at
// the first packet that a flow of others takes away.
func (v *view) neighbour(ctx context.Context, end, router station) error {
	protocol := "ARP"
	if end.ip.Is6() {
		protocol = "neighbour discovery"
	}

	for _, p := range []struct {
		name     string
		from, to station
		answers  bool
	}{
		{"its request", end, router, false},
		{"the answer to it", router, end, true},
		{"a request for it", router, end, false},
		{"its answer", end, router, true},
	} {
		text, err := v.Daemon.Trace(ctx, v.Bridge, p.from.solicits(p.to, p.answers))
		if err != nil {
			return err
		}
		w, err := parseWalk(text, v.Config.Layout.ChoosesByHash)
		if err != nil {
			return err
		}

		last, ports := w.final(v.Config.Layout.CounterTable()), w.ports()
		if w.refused() || slices.Contains(last.actions, "IN_PORT") { // others answer it
			return nil
		}
		_, ours := v.Config.Layout.PortOfCookie(last.cookie)
		missed := p.to == end && v.missed(last, ports, pipeline.Pod{OFPort: end.port})
		if !ours && !last.none && !last.normal() && (len(ports) == 0 || missed) {
			v.r.Doubt(fmt.Sprintf("%s between %s and its next hop behind the uplink fails, "+
				"because %s is taken %s", protocol, end.ip, p.name, v.foreignFlowText(last)))
			return nil
		}
	}
	return nil
}

// solicits returns, in ovs-ofctl's syntax, the packet by which a station asks for the MAC of another, or
// answers such a one.
func (s station) solicits(to station, answers bool) string {
	dst, op := flow.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 1
	if answers {
		dst, op = to.mac, 2
	}
	if s.ip.Is4() {
		return fmt.Sprintf("arp,in_port=%d,dl_src=%s,dl_dst=%s,arp_op=%d,arp_spa=%s,arp_tpa=%s,arp_sha=%[2]s",
			s.port, s.mac, dst, op, s.ip, to.ip)
	}

	group, kind, of, option := to.ip, 136, s.ip, "nd_tll"
	if !answers {
		at := netip.MustParseAddr("ff02::1:ff00:0").As16() // solicited-node (RFC 4291, 2.7.1)
		asked := to.ip.As16()
		copy(at[13:], asked[13:])
		group, kind, of, option = netip.AddrFrom16(at), 135, to.ip, "nd_sll"
		dst = flow.MAC{0x33, 0x33, at[12], at[13], at[14], at[15]} // RFC 2464, 7
	}
	return fmt.Sprintf("icmp6,in_port=%d,dl_src=%s,dl_dst=%s,ipv6_src=%s,ipv6_dst=%s,nw_ttl=255,"+
		"icmpv6_type=%d,icmpv6_code=0,nd_target=%s,%s=%[2]s",
		s.port, s.mac, dst, s.ip, group, kind, of, option)
}
