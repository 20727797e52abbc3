//go:build linux

package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// end is one end of a veth pair.
type end struct {
	ns   *namespace
	name string
	mac  string         // "" lets the kernel choose
	addr []netip.Prefix // added without duplicate address detection
	bare bool           // no IPv6 of its own: the switch's end
}

// connect makes a veth pair, without offloads unless the datapath is the kernel's, and brings both ends up.
func connect(a, b end, mtu int) error {
	if err := tryConnect(a, b, mtu); err != nil {
		return fmt.Errorf("testbed: link %s - %s: %w", a.name, b.name, err)
	}
	return nil
}

func tryConnect(a, b end, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.name, mtu
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerNamespace, v.PeerMTU = b.name, netlink.NsFd(b.ns.fd), uint32(mtu)
	var err error
	if v.HardwareAddr, err = parseMAC(a.mac); err != nil {
		return err
	}
	if v.PeerHardwareAddr, err = parseMAC(b.mac); err != nil {
		return err
	}
	if err := a.ns.nl.LinkAdd(v); err != nil {
		return err
	}
	for _, e := range []end{a, b} {
		if err := e.up(); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return nil
}

func parseMAC(s string) (net.HardwareAddr, error) {
	if s == "" {
		return nil, nil
	}
	return net.ParseMAC(s)
}

func (e end) up() error {
	if e.bare {
		if err := e.ns.sysctl([2]string{"ipv6/conf/" + e.name + "/disable_ipv6", "1"}); err != nil {
			return err
		}
	}
	if !e.ns.offload {
		if err := e.ns.noOffload(e.name); err != nil {
			return err
		}
	}
	l, err := e.ns.nl.LinkByName(e.name)
	if err != nil {
		return err
	}
	if err := e.ns.nl.LinkSetUp(l); err != nil {
		return err
	}
	for _, p := range e.addr {
		if err := e.ns.addAddr(l, p); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

// addAddr adds an address to a device and waits until the namespace receives what
// is sent there: with IPv6 the kernel makes the route that says so a moment later,
// on a work queue of its own (net/ipv6/addrconf.c, addrconf_dad_work).
func (n *namespace) addAddr(l netlink.Link, p netip.Prefix) error {
	if err := n.nl.AddrReplace(l, addr(p)); err != nil {
		return err
	}
	if p.Addr().Is4() {
		return nil
	}
	ready := func() bool {
		routes, err := n.nl.RouteGet(p.Addr().AsSlice())
		return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
	}
	if !eventually(context.Background(), ready) {
		return errors.New("the address does not become usable")
	}
	return nil
}

func addr(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: ipnet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// route adds a route to dst by way of via, which may be off-link on dev.
// A zero via means that dst is on the link.
func (n *namespace) route(dst netip.Prefix, via netip.Addr, dev string) error {
	l, err := n.nl.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("testbed: route %s: %s: %w", dst, dev, err)
	}
	r := &netlink.Route{Dst: ipnet(dst), LinkIndex: l.Attrs().Index}
	if via.IsValid() {
		r.Gw = via.AsSlice()
		r.Flags = int(netlink.FLAG_ONLINK)
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := n.nl.RouteReplace(r); err != nil {
		return fmt.Errorf("testbed: route %s via %s dev %s: %w", dst, via, dev, err)
	}
	return nil
}

// The ethtool requests that turn off what the userspace datapath cannot do:
// include/uapi/linux/ethtool.h, each with a value of 0.
const (
	ethtoolSTXCSUM = 0x17
	ethtoolSTSO    = 0x1f
	ethtoolSGSO    = 0x24
	ethtoolSGRO    = 0x2c
)

// noOffload makes the kernel finish checksums and segments itself before a frame
// leaves by the device: the switch reads frames as they are.
func (n *namespace) noOffload(dev string) error {
	return n.do(func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		for _, cmd := range []uint32{ethtoolSTXCSUM, ethtoolSTSO, ethtoolSGSO, ethtoolSGRO} {
			err := ethtool(s, dev, cmd, 0)
			if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
				return fmt.Errorf("ethtool %s %#x: %w", dev, cmd, err)
			}
		}
		return nil
	})
}

// ethtool sends one request that carries a single value (struct ethtool_value).
func ethtool(socket int, dev string, cmd, value uint32) error {
	arg := struct{ cmd, value uint32 }{cmd, value}
	// struct ifreq: the name, then a union of 24 bytes that holds a pointer here.
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}
	if len(dev) >= unix.IFNAMSIZ {
		return unix.ENAMETOOLONG
	}
	copy(req.name[:], dev)
	req.data = unsafe.Pointer(&arg)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return errno
	}
	return nil
}
