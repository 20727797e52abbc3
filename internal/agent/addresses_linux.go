package agent

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/internal/mode"
)

// addressesPeriod is how often the addresses are listed again in case an announcement was lost.
const addressesPeriod = time.Minute

// addressesPause is how long nkp waits before it subscribes to announcements of addresses again.
const addressesPause = time.Second

// ipvsDevice is the interface to which kube-proxy's IPVS mode assigns every Service's address. None of them
// is the node's.
const ipvsDevice = "kube-ipvs0"

// LocalAddresses returns the addresses that the kernel takes for the node's at which a NodePort may be
// served, sorted: those of its interfaces and those of routes of type local, without loopback addresses,
// ranges, and the link-local addresses that each IPv6 interface has; in mode ovs without any link-local ones.
// It returns none if the settings name the node's addresses, and none in mode ovs if the bridge is not
// visible, because this is not the node's network namespace.
func (s *Settings) LocalAddresses(by mode.Mode) ([]netip.Addr, error) {
	if len(s.NodeIPs) > 0 {
		return nil, nil
	}

	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}

	ipvs, here := 0, by != mode.OVS
	for _, l := range links {
		a := l.Attrs()
		if a.Name == ipvsDevice {
			ipvs = a.Index
		}
		here = here || a.Name == s.Bridge
	}
	if !here {
		return nil, nil
	}

	var ips []netip.Addr
	add := func(a net.IP, link int) {
		ip, ok := netip.AddrFromSlice(a)
		ip = ip.Unmap()
		linkLocal := ip.IsLinkLocalUnicast() && ip.Is4() && by != mode.OVS
		if ok && (ipvs == 0 || link != ipvs) && (ip.IsGlobalUnicast() || linkLocal) &&
			!slices.Contains(ips, ip) && !slices.Contains(s.HairpinIPs, ip) {
			ips = append(ips, ip)
		}
	}

	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs { // those of an interface that is down have no route
		add(a.IP, a.LinkIndex)
	}

	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		local := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
		routes, err := netlink.RouteListFiltered(family, local,
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Dst != nil {
				if ones, bits := r.Dst.Mask.Size(); ones == bits {
					add(r.Dst.IP, r.LinkIndex)
				}
			}
		}
	}

	slices.SortFunc(ips, netip.Addr.Compare)
	return ips, nil
}

// watchAddresses sends the local addresses whenever they change, until the context ends.
func (s *Settings) watchAddresses(
	ctx context.Context, by mode.Mode, last []netip.Addr, log *slog.Logger,
) <-chan []netip.Addr {
	out := make(chan []netip.Addr)
	go func() {
		var updates chan netlink.AddrUpdate
		var done chan struct{} // ends the subscription; nil: there is none
		end := func() {
			if done != nil {
				close(done)
				done = nil
			}
		}
		defer end()

		tick := time.NewTicker(addressesPeriod)
		defer tick.Stop()

		for subscribe := time.After(0); ; {
			select {
			case <-subscribe:
				updates, done, subscribe = make(chan netlink.AddrUpdate, 16), make(chan struct{}), nil
				if err := netlink.AddrSubscribe(updates, done); err != nil {
					log.Warn("cannot watch the node's addresses; they are listed every minute", "error", err)
					updates = nil
				}
			case _, ok := <-updates:
				if !ok { // announcements were lost (ENOBUFS)
					end()
					updates, subscribe = nil, time.After(addressesPause)
				}
				for len(updates) > 0 { // one listing serves all
					<-updates
				}
			case <-tick.C:
			case <-ctx.Done():
				return
			}

			ips, err := s.LocalAddresses(by)
			if err != nil {
				log.Warn("cannot list the node's addresses", "error", err)
				continue
			}
			if slices.Equal(ips, last) {
				continue
			}
			last = ips

			select {
			case out <- slices.Clone(ips):
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// deviceOf returns the device that has an address; "": none, or a loopback device, by which nothing comes in.
// It asks the kernel once for the addresses of all devices: a node has hundreds.
func deviceOf(ip netip.Addr) string {
	addrs, _ := netlink.AddrList(nil, netlink.FAMILY_ALL)
	for _, a := range addrs {
		if has, _ := netip.AddrFromSlice(a.IP); has.Unmap() != ip {
			continue
		}
		if l, err := net.InterfaceByIndex(a.LinkIndex); err == nil && l.Flags&net.FlagLoopback == 0 {
			return l.Name
		}
	}
	return ""
}
