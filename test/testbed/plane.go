//go:build linux

package testbed

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Plane is what carries the node's packets.
type Plane string

// The planes. The addresses, the other hosts and the methods that do not speak of
// a switch are the same on both.
const (
	// OVS: pods hang on a bridge of a private Open vSwitch. It is the zero value.
	OVS Plane = ""
	// Linux: there is no Open vSwitch. Each pod has a veth to the node, whose kernel
	// routes; the router sends the pods' subnet to the node.
	Linux Plane = "linux"
)

// errNoSwitch is what methods that need the switch give on the Linux plane.
var errNoSwitch = errors.New("testbed: this bed has no Open vSwitch")

// outside reports whether the node has a network card of its own, NodeNIC.
func (b *Bed) outside() bool { return b.opt.NodeOutside || b.opt.Plane == Linux }

// NodeDevice is the node's device that has its addresses.
func (b *Bed) NodeDevice() string {
	if b.outside() {
		return NodeNIC
	}
	return b.Bridge
}

// RouterDevice is the router's device that leads to the node.
func (b *Bed) RouterDevice() string {
	if b.outside() {
		return "node"
	}
	return "uplink"
}

// wireNode joins the node, whose subnet the router has the given addresses in, to
// the router.
func (b *Bed) wireNode(nodeNet []netip.Prefix) error {
	node, router := b.Node.ns, b.Router.ns
	uplink := []netip.Prefix{netip.PrefixFrom(b.ipv4.gateway, 24), netip.PrefixFrom(GatewayIP6, 64)}
	if b.outside() {
		if err := connect(
			end{ns: router, name: b.RouterDevice(), addr: nodeNet},
			end{ns: node, name: NodeNIC, addr: b.Node.prefixes(24, 64)}, b.opt.MTU); err != nil {
			return err
		}
		if err := defaultRoutes(node, b.ipv4.router, RouterIP6, NodeNIC); err != nil {
			return err
		}
	} else {
		uplink = append(uplink, nodeNet...)
	}
	if b.opt.Plane != Linux {
		return connect(
			end{ns: router, name: "uplink", mac: GatewayMAC, addr: uplink},
			end{ns: node, name: UplinkName, bare: true}, b.opt.MTU)
	}
	if err := errors.Join(
		router.route(b.ipv4.pods, b.ipv4.node, b.RouterDevice()),
		router.route(PodCIDR6, NodeIP6, b.RouterDevice()),
	); err != nil || !b.opt.PodBridge {
		return err
	}
	return b.addPodBridge()
}

// addPodBridge makes the kernel's bridge that pods hang on. It has no address: the
// node's own is the one that pods see.
func (b *Bed) addPodBridge() error {
	mac, err := parseMAC(GatewayMAC)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = b.Bridge, b.opt.MTU, mac
	if err := b.Node.ns.nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("testbed: bridge %s: %w", b.Bridge, err)
	}
	return end{ns: b.Node.ns, name: b.Bridge}.up()
}

// routePod leads packets to a pod of the Linux plane, whose link is there, and
// back. Like on a node of Calico's, the link has no address; the pod knows its
// gateway's Ethernet address from the start.
func (b *Bed) routePod(p *Pod) error {
	dev := p.Interface
	if b.opt.PodBridge {
		dev = b.Bridge
		if err := b.Node.ns.enslave(p.Interface, b.Bridge); err != nil {
			return err
		}
	}
	for _, a := range p.prefixes(32, 128) {
		gw := b.ipv4.gateway
		if a.Addr().Is6() {
			gw = GatewayIP6
		}
		if err := errors.Join(
			p.ns.neighbour(gw, GatewayMAC, "eth0"),
			b.Node.ns.route(a, netip.Addr{}, dev),
		); err != nil {
			return err
		}
	}
	return nil
}

// enslave puts a device on a bridge of the kernel's.
func (n *namespace) enslave(dev, bridge string) error {
	l, err := n.nl.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("testbed: %s: %w", dev, err)
	}
	master, err := n.nl.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("testbed: %s: %w", bridge, err)
	}
	if err := n.nl.LinkSetMaster(l, master); err != nil {
		return fmt.Errorf("testbed: %s on bridge %s: %w", dev, bridge, err)
	}
	return nil
}

// neighbour records for good which Ethernet address an IP address has on a device.
func (n *namespace) neighbour(ip netip.Addr, mac, dev string) error {
	l, err := n.nl.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("testbed: neighbour %s: %s: %w", ip, dev, err)
	}
	hw, err := parseMAC(mac)
	if err != nil {
		return err
	}
	family := unix.AF_INET
	if ip.Is6() {
		family = unix.AF_INET6
	}
	if err := n.nl.NeighSet(&netlink.Neigh{
		LinkIndex: l.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: hw,
	}); err != nil {
		return fmt.Errorf("testbed: neighbour %s dev %s: %w", ip, dev, err)
	}
	return nil
}
