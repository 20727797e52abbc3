// Package node holds what nkp knows of the node's network: links with their addresses, routes, neighbours.
// All of it is the kernel's; nkp copies it and assumes nothing. Read makes a Network, Watch says when to read
// again.
package node

import (
	"cmp"
	"net/netip"
	"slices"
)

// MaxRoutes bounds the routes and the neighbours of a Network, each. A node with a full BGP table has more.
const MaxRoutes = 1 << 16

// Network is what the kernel knew when it was read. It does not change. A nil Network knows nothing.
type Network struct {
	Links []Link
	// Routes are those of the main table, in the order in which the kernel takes them: longer prefixes first,
	// then lower metrics.
	Routes []Route
	// Neighbours are the stations on the links, by address.
	Neighbours map[Station]Neighbour
	// Ports are the source ports of the node's own connections.
	Ports Ports
	// Rules says that the kernel does not look into the main table alone: there are rules besides those that
	// it starts with.
	Rules bool
	// More says that there are more than MaxRoutes routes or neighbours.
	More bool
}

// Link is an interface.
type Link struct {
	Index    int
	Name     string
	Loopback bool // or a dummy: it leads nowhere
	Addrs    []netip.Addr
}

// Route is one way to a destination. A route with several next hops (multipath) is several Routes.
type Route struct {
	Dst      netip.Prefix
	Via      netip.Addr // the next hop; the zero Addr: the destination is on the link
	Link     int        // 0: none (unreachable, blackhole, prohibit)
	Metric   int
	Protocol int
	MTU      int // 0: that of the link
}

// Station is an address on a link.
type Station struct {
	Link int
	Addr netip.Addr
}

// Neighbour is what the kernel knows of a Station.
type Neighbour struct {
	MAC   [6]byte // zero: not known
	State State
}

// State is how far the kernel trusts a neighbour.
type State uint8

const (
	Unknown State = iota // never asked for, or it has not answered
	Asked                // the request is on its way
	Stale                // known, and not confirmed for a while; nothing asks until it is used
	Fresh                // confirmed, about to be, or permanent
)

// Link returns the interface with a name.
func (n *Network) Link(name string) (Link, bool) {
	if n != nil {
		for _, l := range n.Links {
			if l.Name == name {
				return l, true
			}
		}
	}
	return Link{}, false
}

// DeviceOf returns the name of the interface that has an address; "": none.
func (n *Network) DeviceOf(ip netip.Addr) string {
	if n != nil {
		for _, l := range n.Links {
			if slices.Contains(l.Addrs, ip) {
				return l.Name
			}
		}
	}
	return ""
}

// Neighbour returns what the kernel knows of a station on a link.
func (n *Network) Neighbour(l Link, ip netip.Addr) Neighbour {
	if n == nil {
		return Neighbour{}
	}
	return n.Neighbours[Station{l.Index, ip}]
}

// Has reports whether an interface has one of the addresses.
func (n *Network) Has(ips []netip.Addr) bool {
	return n != nil && slices.ContainsFunc(n.Links, func(l Link) bool { return l.has(ips) })
}

func (l *Link) has(ips []netip.Addr) bool {
	return slices.ContainsFunc(l.Addrs, func(a netip.Addr) bool { return slices.Contains(ips, a) })
}

// At reports whether packets to one of the addresses arrive by an interface: it has one, or a loopback
// interface does, and the interface has the default route of its family. Routers send them to another address
// of the interface then.
func (n *Network) At(name string, ips []netip.Addr) bool {
	link, ok := n.Link(name)
	if !ok {
		return false
	}
	return link.has(ips) || slices.ContainsFunc(ips, func(ip netip.Addr) bool {
		onLoopback := slices.ContainsFunc(n.Links, func(l Link) bool {
			return l.Loopback && !ip.IsLoopback() && slices.Contains(l.Addrs, ip)
		})
		r, ok := n.defaultRoute(ip.Is4())
		return onLoopback && ok && r.Link == link.Index
	})
}

// Beside reports whether packets to one of the addresses arrive by another interface than the named one.
func (n *Network) Beside(name string, ips []netip.Addr) bool {
	return n != nil && !n.At(name, ips) && slices.ContainsFunc(n.Links, func(l Link) bool {
		return l.Name != name && !l.Loopback && n.At(l.Name, ips)
	})
}

func (n *Network) defaultRoute(is4 bool) (Route, bool) {
	i := slices.IndexFunc(n.Routes, func(r Route) bool {
		return r.Dst.Bits() == 0 && r.Dst.Addr().Is4() == is4
	})
	if i < 0 {
		return Route{}, false
	}
	return n.Routes[i], true
}

// DefaultRouteOn reports whether the default route of either family leaves by an interface.
func (n *Network) DefaultRouteOn(name string) bool {
	link, ok := n.Link(name)
	return ok &&
		slices.ContainsFunc(n.Routes, func(r Route) bool { return r.Dst.Bits() == 0 && r.Link == link.Index })
}

// sortRoutes brings routes into the kernel's order.
func sortRoutes(routes []Route) {
	slices.SortStableFunc(routes, func(a, b Route) int {
		return cmp.Or(cmp.Compare(b.Dst.Bits(), a.Dst.Bits()), a.Dst.Addr().Compare(b.Dst.Addr()),
			cmp.Compare(a.Metric, b.Metric))
	})
}
