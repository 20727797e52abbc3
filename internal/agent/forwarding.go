package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/live"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/sysctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// watchForwarding looks, until the context ends, whether a chain of the node's drops what the kernel forwards
// for iptables or nftables, as by says. chosen reports whether nkp chose nftables itself: what drops in
// iptables' FORWARD is watchDrops' then.
func (a *Agent) watchForwarding(ctx context.Context, by mode.Mode, chosen bool) {
	for _, f := range dataplane.Families {
		var next time.Time // a look reads the names of all chains: seconds, with 100,000 of iptables'
		a.spawn(func(context.Context) error {
			look := func(ctx context.Context, before string) string {
				begun := time.Now()
				if begun.Before(next) {
					return before
				}
				at, err := a.whatDrops(ctx, f, by == mode.NFTables && !chosen)
				next = time.Now().Add(min(20*time.Since(begun), 5*time.Minute))
				known := by == mode.NFTables && chosen && strings.Contains(at, " filter, chain FORWARD")
				switch {
				case err != nil:
					return before
				case at == "" || known:
					return ""
				}
				return fmt.Sprintf("the node forwards no %s packets of Services: %s; an accept of nkp's "+
					"does not overrule that: let them pass there (ct status dnat); what is in iptables' "+
					"table filter does not keep --mode iptables from serving", f, at)
			}
			a.modes.Run(ctx, "NotForwarded", mode.BridgePeriod, look)
			return nil
		})
	}
}

// whatDrops returns which chain drops what the kernel forwards to endpoints of a family, whoever sends it;
// "": none, or that is not certain. legacy reports whether the rules of iptables (legacy) are others'.
func (a *Agent) whatDrops(ctx context.Context, f k8s.Family, legacy bool) (at string, err error) {
	m := k8s.Model{}
	var list []rules.Packet
	err = a.ask(ctx, func() { m.Node, list = a.model.Node, a.toForward(f) })
	if err != nil || len(list) == 0 {
		return "", err
	}

	set := tables(ctx, &m, f)
	for _, p := range list {
		p.IPTables.Mark = 1 << a.set.Fallback.MasqueradeBit
		at, err = set.NotForwarded(p, senders(f, m.Node.IPs, p.IPTables.Paths[0].Endpoint.Addr()))
		if at == "" || err != nil {
			break
		}
	}
	if legacy && at == "" && err == nil {
		at, err = iptables.LegacyDropsAll(ctx, f, "FORWARD")
	}
	return at, err
}

// toForward is forwarded of what the agent has now. It walks all Services, but not again where none was found
// and no change of the family has come. It runs on the loop.
func (a *Agent) toForward(f k8s.Family) []rules.Packet {
	if a.noneForwarded[f] {
		return nil
	}
	list := forwarded(a.model, f)
	a.noneForwarded[f] = len(list) == 0
	return list
}

// forwardsMore has the next look walk the Services of the families that changes are of.
func (a *Agent) forwardsMore(c *k8s.Changes) {
	if c.Node {
		clear(a.noneForwarded)
	}
	for n := range c.Ports {
		delete(a.noneForwarded, n.Family)
	}
}

// maxForwarded bounds the Service ports that stand for all.
const maxForwarded = 4

// forwarded returns packets of a family that the kernel forwards to endpoints of a few Service ports, without
// their client, and one to an endpoint that is not there: what drops it, too, is no policy for a pod or a
// port. Map order is random, so that it is not always the same ports.
func forwarded(m *k8s.Model, f k8s.Family) (list []rules.Packet) {
	if !f.First(m.Node.IPs).IsValid() {
		return nil
	}
	add := func(p k8s.Protocol, to, endpoint netip.AddrPort) {
		paths := []rules.Path{{Endpoint: endpoint}, {Endpoint: endpoint, Masquerade: true}}
		list = append(list, rules.Packet{
			Protocol: p,
			To:       to,
			Local:    m.Node.Local,
			IPTables: &rules.IPTables{Paths: paths},
		})
	}

	for name, sp := range m.Ports {
		if name.Family != f || len(sp.Frontends) == 0 {
			continue
		}
		i := slices.IndexFunc(sp.ClusterEndpoints, func(e k8s.Endpoint) bool {
			return !slices.Contains(m.Node.Local, e.Addr.Addr())
		})
		if i < 0 {
			continue
		}
		if len(list) == 0 {
			nowhere := netip.AddrPortFrom(outside[f].Next(), 9)
			add(name.Protocol, nowhere, nowhere)
		}
		to := netip.AddrPortFrom(sp.Frontends[0].Address, sp.Frontends[0].Port)
		if add(name.Protocol, to, sp.ClusterEndpoints[i].Addr); len(list) > maxForwarded {
			break
		}
	}
	return list
}

// outside are addresses that nobody has (RFC 5737, RFC 3849): no route but the default one leads there.
var outside = map[k8s.Family]netip.Addr{
	k8s.IPv4: netip.MustParseAddr("192.0.2.1"),
	k8s.IPv6: netip.MustParseAddr("2001:db8::1"),
}

// senders are addresses of clients that filters may distinguish: outside of all that is known, beside the
// node, and beside the endpoint.
func senders(f k8s.Family, nodeIPs []netip.Addr, endpoint netip.Addr) []netip.Addr {
	list := []netip.Addr{outside[f], endpoint.Next()}
	if ip := f.First(nodeIPs); ip.IsValid() {
		list = append(list, ip.Next())
	}
	return list
}

// notForwarding returns a warning for each kernel setting that keeps the kernel from forwarding what comes in
// from outside, although the Services there need that: those of iptables or nftables, with a scope.
func (a *Agent) notForwarding(s *fallback.Status, nodeIPs []netip.Addr) (warnings []string) {
	if s.Scope == serving.Own.String() {
		return nil
	}
	for _, f := range dataplane.Families {
		ip := f.First(nodeIPs)
		if !ip.IsValid() {
			continue
		}
		device := deviceOf(ip)
		if name := sysctl.ForwardingOff(f == k8s.IPv6, device); name != "" {
			warnings = append(warnings, fmt.Sprintf(
				"%s is 0: the kernel does not forward %s packets of Services that come from outside to "+
					"endpoints elsewhere; set it to 1 (sysctl -w %[1]s=1)", name, f))
		}
		if f != k8s.IPv4 || device == "" || !sysctl.StrictReversePath(device) {
			continue
		}
		by, err := live.RouteOf(ip, outside[f])
		if err == nil && by != device && sysctl.ReversePathDrops() > a.reversePathDrops {
			warnings = append(warnings, fmt.Sprintf(
				"net.ipv4.conf.%s.rp_filter, or that of all, is 1, and the kernel has dropped packets by "+
					"it since nkp started: clients that it reaches by %s (ip route get %s from %s) cannot "+
					"come in by %[1]s, which has the node's address; set it to 2, or route answers by %[1]s",
				device, by, outside[f], ip))
		}
	}
	return warnings
}
