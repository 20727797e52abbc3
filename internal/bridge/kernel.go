package bridge

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/node"
	"github.com/nkp-proxy/nkp/internal/sysctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// maxRoutes bounds the routes and neighbours in table 30, besides those that endpoints need.
const maxRoutes = 256

// minPorts are as few ports as nkp masquerades with where the kernel leaves it a choice.
const minPorts = 4096

// kernel copies next hops from the node's kernel into the pipeline's configuration.
type kernel struct {
	network *node.Network // nil: not known
	// hops are the MACs of next hops as last seen: a router that does not answer for a while may be forgotten
	// by the kernel.
	hops map[netip.Addr]flow.MAC
	// endpoints calls f for the address of each endpoint; nil: none is known.
	endpoints func(f func(netip.Addr))
	// ask are the stations that the configuration needs and the kernel has not resolved, or not confirmed for
	// a while.
	ask []node.Station
	// onLink returns the station of an address that the node reaches over the bridge without a router.
	onLink func(netip.Addr) (node.Station, bool)
	// least is mtus as of the last look at the network: a change of Services does not visit all endpoints.
	least map[k8s.Family]int
}

// routes sets the routers and routes of a node on the bridge: a next hop per prefix and family, with its MAC.
func (k *kernel) routes(cfg *pipeline.Config, sw *ovsdb.Switch) (warnings []string) {
	k.ask = nil
	link, ok := k.network.Link(sw.Bridge)
	if !ok {
		return nil
	}

	k.least = k.mtus(sw.Bridge)
	configured := !cfg.GatewayMAC.IsZero()
	cfg.NoRouter = !configured && !k.network.DefaultRouteOn(sw.Bridge)

	list := k.closed(link.Index)
	if slices.ContainsFunc(list, func(r pipeline.Route) bool { return r.Closed }) {
		if n, example := k.count(cfg, sw, func(by int) bool { return by == 0 }); n > 0 {
			warnings = append(warnings, fmt.Sprintf("the kernel sends nothing to %d endpoints, such as %s: "+
				"their route is a blackhole, unreachable or prohibit one (ip route get %[2]s); "+
				"the bridge sends them nothing from the node, or from outside, either", n, example))
		}
	}

	seen := map[netip.Prefix]bool{} // the first route to a prefix counts
	for _, r := range list {
		seen[r.Dst] = true
	}
	for _, r := range k.network.Routes {
		isDefault := r.Dst.Bits() == 0
		if r.Link != link.Index || r.Protocol == routeProtocol || isDefault && configured || seen[r.Dst] {
			continue
		}
		if !r.Via.IsValid() {
			seen[r.Dst] = true
			list = append(list, pipeline.Route{Dst: r.Dst}) // its stations have routes of their own
			continue
		}
		mac := k.station(link.Index, r.Via)
		if mac.IsZero() {
			continue // another next hop may be known
		}
		if who := podOf(sw, mac); who != "" {
			warnings = append(warnings, fmt.Sprintf("the kernel has %s for the MAC of the router %s, "+
				"which is that of the pod at port %s: it is not used, "+
				"because the pod may have answered in the router's place; if the router is a pod, "+
				"pass --gateway-mac %s", mac, r.Via, who, mac))
			continue
		}
		seen[r.Dst] = true
		list = append(list, pipeline.Route{Dst: r.Dst, MAC: mac})
	}

	for _, r := range list { // the default route of IPv4 comes first
		if r.Dst.Bits() == 0 && cfg.GatewayMAC.IsZero() {
			cfg.GatewayMAC = r.MAC
		}
	}

	list = append(list, k.stations(cfg, sw, link.Index)...)
	byOther := 0
	if cfg.NoRouter {
		byOther, _ = k.count(cfg, sw, func(by int) bool { return by != 0 && by != link.Index })
	}
	if byOther > 0 {
		warnings = append(warnings, fmt.Sprintf("the kernel reaches %d endpoints "+
			"by other interfaces than bridge %s, which has no router of its own: "+
			"packets of Services to them are lost, but for those of pods whose router is this node; "+
			"add routes to them over the bridge, or pass --gateway-mac",
			byOther, sw.Bridge))
		for _, f := range dataplane.Families {
			off := sysctl.ForwardingOff(f == k8s.IPv6, sw.Bridge)
			if off != "" && f.First(cfg.NodeIPs).IsValid() {
				warnings = append(warnings, fmt.Sprintf("%s is 0: the kernel does not forward %s packets of "+
					"Services that the bridge leaves to it; set it to 1 (sysctl -w %[1]s=1)", off, f))
			}
		}
	}

	if more := len(list) - maxRoutes; more > 0 {
		list, more = k.neededRoutes(list)
		if more > 0 {
			warnings = append(warnings, fmt.Sprintf("the kernel has %d more routes and neighbours on "+
				"bridge %s than nkp copies for clients (%d): "+
				"answers of Services go by the default route there", more, sw.Bridge, maxRoutes))
		}
	}

	if k.network.More {
		warnings = append(warnings, fmt.Sprintf(
			"the kernel has more than %d routes or neighbours: nkp does not read the others", node.MaxRoutes))
	}
	if k.network.Rules {
		warnings = append(warnings, "the kernel has routing rules (ip rule): "+
			"packets of Services that the bridge sends out of the node follow the main table alone")
	}

	cfg.Routes = distinctRoutes(list, cfg.GatewayMAC)
	return warnings
}

// closed returns the routes by which the kernel sends nothing, and those of other links within them, which
// the bridge serves by its router.
func (k *kernel) closed(link int) (list []pipeline.Route) {
	first := map[netip.Prefix]bool{}
	var within node.Longest[bool]
	var others []netip.Prefix
	for _, r := range k.network.Routes { // longer prefixes first
		if r.Dst.Bits() == 0 || r.Protocol == routeProtocol || first[r.Dst] {
			continue
		}
		first[r.Dst] = true
		if r.Link == 0 {
			list = append(list, pipeline.Route{Dst: r.Dst, Closed: true})
			within.Put(r.Dst, true)
		} else if r.Link != link {
			others = append(others, r.Dst)
		}
	}

	for _, p := range others {
		if is, _ := within.At(p.Addr()); is {
			list = append(list, pipeline.Route{Dst: p})
		}
	}
	return list
}

// mtus returns, by family, the smallest MTU of the routes over the bridge that lead to endpoints, or to what
// no other route covers; none for a family whose routes have none.
func (k *kernel) mtus(bridge string) map[k8s.Family]int {
	least := map[k8s.Family]int{}
	link, _ := k.network.Link(bridge)
	var routes node.Longest[int]
	limited := false
	if k.network != nil {
		for _, r := range slices.Backward(k.network.Routes) {
			if r.Link == link.Index && r.Protocol != routeProtocol {
				routes.Put(r.Dst, r.MTU)
				limited = limited || r.MTU > 0
			}
		}
	}
	if !limited {
		return nil
	}

	note := func(ip netip.Addr) {
		f := k8s.FamilyOf(ip)
		if mtu, _ := routes.At(ip); mtu > 0 && (least[f] == 0 || mtu < least[f]) {
			least[f] = mtu
		}
	}
	for _, f := range dataplane.Families {
		note(f.Unspecified())
	}
	k.eachEndpoint(note)
	return least
}

// ports returns the ports to masquerade with: those that the kernel gives to no connection of the node. Zero:
// there are too few.
func (k *kernel) ports() (lo, hi uint16) {
	if k.network == nil {
		return pipeline.MasqueradePortMin, pipeline.MasqueradePortMax
	}
	from, to := k.network.Ports.Free(pipeline.MasqueradePortMin, pipeline.MasqueradePortMax)
	if to-from+1 < minPorts {
		return 0, 0
	}
	return uint16(from), uint16(to)
}

// station returns the MAC of a station on the bridge, as last seen, and notes it if it has to be asked for.
func (k *kernel) station(link int, ip netip.Addr) flow.MAC {
	at := node.Station{Link: link, Addr: ip}
	n := k.network.Neighbours[at]
	if n.State == node.Unknown || n.State == node.Stale {
		k.ask = append(k.ask, at)
	}
	mac := flow.MAC(n.MAC)
	if k.hops == nil {
		return mac
	}
	if mac.IsZero() {
		return k.hops[ip]
	}
	k.hops[ip] = mac
	return mac
}

// stations returns routes to the stations that the node reaches over the bridge without a router.
func (k *kernel) stations(cfg *pipeline.Config, sw *ovsdb.Switch, link int) (list []pipeline.Route) {
	var routes node.Longest[node.Route]
	for _, r := range slices.Backward(k.network.Routes) { // of several to a prefix the kernel takes the first
		if r.Protocol != routeProtocol {
			routes.Put(r.Dst, r)
		}
	}

	k.onLink = func(ip netip.Addr) (at node.Station, ok bool) {
		r, _ := routes.At(ip)
		return node.Station{Link: link, Addr: ip}, r.Link == link && !r.Via.IsValid() &&
			!slices.Contains(cfg.HairpinIPs, ip)
	}

	for at, n := range k.network.Neighbours {
		mac, ip := flow.MAC(n.MAC), at.Addr
		if own, ok := k.onLink(ip); !ok || own != at || mac.IsZero() {
			continue
		}
		if who := podOf(sw, mac); who != "" {
			if p, _ := sw.PortByIP(ip); p.Name != who {
				continue // a pod that answers for another
			}
		}
		list = append(list, pipeline.Route{Dst: netip.PrefixFrom(ip, ip.BitLen()), MAC: mac})
		if n.State == node.Stale {
			k.ask = append(k.ask, at)
		}
	}

	slices.SortFunc(list, func(a, b pipeline.Route) int { return a.Dst.Addr().Compare(b.Dst.Addr()) })
	k.eachEndpoint(k.resolve)
	return list
}

// count returns how many endpoints the kernel reaches by such a link, and one of them. 0 is the link of what
// it sends nothing to. Pods on the bridge and the node itself do not count: the bridge delivers to them.
// An address counts once for each Service port that has it.
func (k *kernel) count(
	cfg *pipeline.Config, sw *ovsdb.Switch, such func(link int) bool,
) (n int, example netip.Addr) {
	var routes node.Longest[int] // the link
	for _, r := range slices.Backward(k.network.Routes) {
		if r.Protocol != routeProtocol && (r.Link != 0 || r.Dst.Bits() > 0) {
			routes.Put(r.Dst, r.Link)
		}
	}

	k.eachEndpoint(func(ip netip.Addr) {
		by, ok := routes.At(ip)
		_, isPod := sw.PortByIP(ip)
		if ok && such(by) && !isPod && !slices.Contains(cfg.LocalIPs, ip) {
			if n++; n == 1 || ip.Less(example) {
				example = ip
			}
		}
	})
	return n, example
}

// resolve notes an endpoint that has to be asked for.
func (k *kernel) resolve(endpoint netip.Addr) {
	if k.onLink == nil {
		return
	}
	if at, ok := k.onLink(endpoint); ok && k.network.Neighbours[at].State == node.Unknown {
		k.ask = append(k.ask, at)
	}
}

// external returns the load balancer addresses and external IPs on the bridge's link that the node does not
// have itself, sorted.
func (k *kernel) external(c *pipeline.Compiler, cfg *pipeline.Config) (list []netip.Addr) {
	if k.onLink == nil {
		return nil
	}
	c.ExternalAddresses(func(ip netip.Addr) {
		if _, ok := k.onLink(ip); ok && !slices.Contains(cfg.LocalIPs, ip) {
			list = append(list, ip)
		}
	})
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// neededRoutes returns the routes that endpoints resolve to, and as many others as the limit leaves room for;
// more is how many it left out.
func (k *kernel) neededRoutes(list []pipeline.Route) (some []pipeline.Route, more int) {
	used := make([]bool, len(list))
	slices.SortStableFunc(list, func(a, b pipeline.Route) int {
		return cmp.Compare(b.Dst.Bits(), a.Dst.Bits())
	})

	var at node.Longest[int]
	for i, r := range list {
		at.Put(r.Dst, i)
	}
	k.eachEndpoint(func(ip netip.Addr) {
		if i, ok := at.At(ip); ok {
			used[i] = true
		}
	})

	others := 0
	for i, r := range list {
		switch {
		case used[i] || r.Dst.Bits() == 0:
		case others == maxRoutes:
			more++
			continue
		default:
			others++
		}
		some = append(some, r)
	}
	return some, more
}

func (k *kernel) eachEndpoint(f func(netip.Addr)) {
	if k.endpoints != nil {
		k.endpoints(f)
	}
}

// distinctRoutes returns the routes, shorter prefixes first, without those whose next hop is the one that a
// shorter prefix gives. A prefix on the link without a MAC gets its family's router, which sends on to
// stations that the kernel does not know: that of a station that it knows has a MAC.
func distinctRoutes(list []pipeline.Route, gateway flow.MAC) (out []pipeline.Route) {
	router := map[bool]flow.MAC{true: gateway, false: gateway}
	for _, r := range list {
		if r.Dst.Bits() == 0 && !r.MAC.IsZero() {
			router[r.Dst.Addr().Is4()] = r.MAC
		}
	}

	slices.SortStableFunc(list, func(a, b pipeline.Route) int {
		return cmp.Compare(a.Dst.Bits(), b.Dst.Bits())
	})
	known := map[netip.Prefix]bool{}
	for _, r := range list {
		known[r.Dst] = known[r.Dst] || !r.MAC.IsZero()
	}

	var hops node.Longest[flow.MAC] // of out
	for _, r := range list {
		if r.MAC.IsZero() && known[r.Dst] {
			continue
		}
		is4 := r.Dst.Addr().Is4()
		if r.MAC.IsZero() && !r.Closed {
			r.MAC = router[is4]
		}
		covered, ok := hops.At(r.Dst.Addr())
		if !ok {
			covered = gateway
		}
		if r.Closed || r.MAC != covered {
			out = append(out, r)
			hops.Put(r.Dst, r.MAC)
		}
	}
	return out
}
