package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Read asks the kernel for the network of this network namespace.
func Read() (*Network, error) {
	n := &Network{Neighbours: map[Station]Neighbour{}}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	at := map[int]int{}
	for _, l := range links {
		a := l.Attrs()
		at[a.Index] = len(n.Links)
		n.Links = append(n.Links, Link{
			Index:    a.Index,
			Name:     a.Name,
			Loopback: a.Flags&net.FlagLoopback != 0 || l.Type() == "dummy",
		})
	}

	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if i, ok := at[a.LinkIndex]; ok {
			n.Links[i].Addrs = append(n.Links[i].Addrs, addrOf(a.IP))
		}
	}

	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if err := n.routes(family); err != nil {
			return nil, err
		}
		neighbours, err := netlink.NeighList(0, family)
		if err != nil {
			return nil, err
		}
		for i := range neighbours {
			n.neighbour(&neighbours[i])
		}
		rules, err := netlink.RuleList(family)
		n.Rules = n.Rules || err == nil && foreignRule(rules)
	}
	sortRoutes(n.Routes)
	local, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	reserved, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports")
	n.Ports, err = ParsePorts(string(local), string(reserved))
	return n, err
}

// routes adds the routes of a family. One that changes while they are listed does not matter: Watch reports
// it.
func (n *Network) routes(family int) error {
	bits := 32
	if family == netlink.FAMILY_V6 {
		bits = 128
	}

	err := netlink.RouteListFilteredIter(family, &netlink.Route{}, 0, func(r netlink.Route) bool {
		if len(n.Routes) >= MaxRoutes {
			n.More = true
			return false
		}

		dst := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if family == netlink.FAMILY_V6 {
			dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		if r.Dst != nil {
			ones, size := r.Dst.Mask.Size()
			dst = netip.PrefixFrom(addrOf(r.Dst.IP), ones)
			if size != bits || !dst.IsValid() {
				return true
			}
		}

		route := Route{
			Dst:      dst.Masked(),
			Via:      addrOf(r.Gw),
			Link:     r.LinkIndex,
			Metric:   r.Priority,
			Protocol: int(r.Protocol),
			MTU:      r.MTU,
		}
		if via, ok := r.Via.(*netlink.Via); ok { // an IPv4 route by an IPv6 next hop (RFC 5549)
			route.Via = addrOf(via.Addr)
		}

		switch {
		case r.Type != unix.RTN_UNICAST:
			if r.Type != unix.RTN_UNREACHABLE && r.Type != unix.RTN_BLACKHOLE && r.Type != unix.RTN_PROHIBIT {
				return true
			}
			route.Link = 0
		case len(r.MultiPath) > 0:
			for _, hop := range r.MultiPath {
				route.Via, route.Link = addrOf(hop.Gw), hop.LinkIndex
				if via, ok := hop.Via.(*netlink.Via); ok {
					route.Via = addrOf(via.Addr)
				}
				n.Routes = append(n.Routes, route)
			}
			return true
		}
		n.Routes = append(n.Routes, route)
		return true
	})

	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	return err
}

func (n *Network) neighbour(e *netlink.Neigh) {
	ip := addrOf(e.IP)
	if !ip.IsValid() || ip.IsMulticast() {
		return
	}
	if len(n.Neighbours) >= MaxRoutes {
		n.More = true
		return
	}
	var out Neighbour
	known := len(e.HardwareAddr) == len(out.MAC)
	switch {
	case e.State&netlink.NUD_INCOMPLETE != 0:
		out.State = Asked
	case e.State&netlink.NUD_FAILED != 0 || !known:
		out.State = Unknown
	case e.State&netlink.NUD_STALE != 0:
		out.State = Stale
	default:
		out.State = Fresh
	}
	if known && out.State >= Stale {
		out.MAC = [6]byte(e.HardwareAddr)
	}
	n.Neighbours[Station{e.LinkIndex, ip}] = out
}

// foreignRule reports whether there are rules besides those of the tables local, main and default.
func foreignRule(rules []netlink.Rule) bool {
	for _, r := range rules {
		switch r.Table {
		case unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN, unix.RT_TABLE_DEFAULT:
		default:
			return true
		}
	}
	return false
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// Ask makes the kernel resolve a station that it never talked to, or confirm one that is stale, as if a
// packet were sent to it (NTF_USE). An error is ignored: the next Network still has it so.
func Ask(s Station) {
	family := netlink.FAMILY_V4
	if s.Addr.Is6() {
		family = netlink.FAMILY_V6
	}
	_ = netlink.NeighSet(&netlink.Neigh{
		LinkIndex: s.Link,
		Family:    family,
		IP:        s.Addr.AsSlice(),
		State:     netlink.NUD_NONE,
		Flags:     netlink.NTF_USE,
	})
}

const (
	// watchPause is how long Watch collects changes that come together.
	watchPause = 20 * time.Millisecond
	// watchAgain is when Watch subscribes again after an error. Whoever reads regularly misses little.
	watchAgain = time.Second
)

// Watch calls changed after changes of what Read returns, once for a burst, until the context ends.
func Watch(ctx context.Context, changed func(), log *slog.Logger) {
	for ctx.Err() == nil {
		err := watch(ctx, changed)
		if ctx.Err() == nil {
			log.Debug("the subscription to changes of the node's network ended; subscribing again",
				"error", err)
		}
		changed() // changes were lost
		sleep(ctx, watchAgain)
	}
}

func watch(ctx context.Context, changed func()) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return err
	}

	defer context.AfterFunc(ctx, s.Close)()
	defer s.Close()

	for {
		err := s.SetReceiveTimeout(&unix.Timeval{})
		if err == nil {
			_, _, err = s.Receive()
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}

		sleep(ctx, watchPause)
		if err := s.SetReceiveTimeout(&unix.Timeval{Usec: 1}); err != nil {
			return err
		}

		// One reading serves all of a burst; changes that never stop are several bursts.
		end := time.Now().Add(watchPause)
		for (err == nil || errors.Is(err, unix.ENOBUFS)) && time.Now().Before(end) {
			_, _, err = s.Receive()
		}

		changed()
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
