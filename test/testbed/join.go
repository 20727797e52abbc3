//go:build linux

package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// JoinDevice is the device of each router that leads to the other bed. In a bed that was joined before, a number follows.
const JoinDevice = "join"

// joinNets has the links between routers, a /30 each: the range for tests between networks (RFC 2544), which no bed uses.
var joinNets = netip.MustParseAddr("198.18.0.0").As4()

// joined is another bed that a bed was joined to.
type joined struct {
	bed         *Bed
	here, there netip.Addr // of the two routers
	device      string     // of the router here
}

// Join links the routers of two beds, so that each bed's node is a second node to the other, with a switch of its own.
// Over IPv4 these reach each other: a's node and pods, a's external client, b's node and pods. Each router sends the
// other's node and pods over the link; service ranges stay where they are.
//
// The beds need different addresses of their own ([Options.IPv4]); their nodes may be in one subnet, where the
// routers then answer ARP for the node that is elsewhere. What the beds have in common is not joined: the IPv6
// addresses, and the external clients' IPv4 address, which from now on means a's client. A bed can be joined as b once, and
// then not as a. Beds that were joined to the same a reach each other through its router. The link goes with either bed.
func Join(a, b *Bed) error {
	if err := joinable(a, b); err != nil {
		return fmt.Errorf("testbed: join: %w", err)
	}
	n := len(a.joins)
	link := joinNets
	link[3] += byte(4*n + 1)
	here := netip.AddrFrom4(link)
	there := here.Next()
	device := JoinDevice
	if n > 0 {
		device += fmt.Sprint(n)
	}
	if err := connect(
		end{ns: a.Router.ns, name: device, addr: []netip.Prefix{netip.PrefixFrom(here, 30)}},
		end{ns: b.Router.ns, name: JoinDevice, addr: []netip.Prefix{netip.PrefixFrom(there, 30)}},
		min(a.opt.MTU, b.opt.MTU)); err != nil {
		return err
	}
	client := netip.PrefixFrom(a.External.IP4, 32)
	err := errors.Join(
		a.sendOver(there, device, b.ranges()...),
		b.sendOver(here, JoinDevice, append(a.ranges(), client)...),
		a.answerFor(b), b.answerFor(a),
	)
	for _, j := range a.joins {
		err = errors.Join(err, j.bed.sendOver(j.here, JoinDevice, b.ranges()...), b.sendOver(here, JoinDevice, j.bed.ranges()...))
	}
	a.joins = append(a.joins, joined{b, here, there, device})
	return err
}

// SendServices makes the router send a range to the node of the bed that was joined as the nth, from 0; -1: to its own node.
func (b *Bed) SendServices(p netip.Prefix, n int) error {
	via, device := b.ipv4.node, b.RouterDevice()
	if n >= 0 {
		via, device = b.joins[n].there, b.joins[n].device
	}
	_, err := b.Router.Exec(context.Background(), "ip", "route", "replace", p.String(), "via", via.String(), "dev", device)
	return err
}

// joinable returns why two beds cannot be joined; nil: they can.
func joinable(a, b *Bed) error {
	if a == b {
		return errors.New("a bed cannot be joined to itself")
	}
	for _, p := range a.ranges() {
		for _, q := range b.ranges() {
			if p.Overlaps(q) {
				return fmt.Errorf("%s is in both beds; give one of them other addresses (Options.IPv4)", q)
			}
		}
	}
	return nil
}

// ranges are what another bed reaches here.
func (b *Bed) ranges() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(b.ipv4.node, 32), b.ipv4.pods}
}

func (b *Bed) sendOver(via netip.Addr, device string, ranges ...netip.Prefix) error {
	for _, p := range ranges {
		if err := b.Router.ns.route(p, via, device); err != nil {
			return err
		}
	}
	return nil
}

// answerFor lets the router answer ARP for the other bed's node where that is in the node's own subnet.
func (b *Bed) answerFor(other *Bed) error {
	if !netip.PrefixFrom(b.ipv4.node, 24).Masked().Contains(other.ipv4.node) {
		return nil
	}
	return b.Router.Sysctl("ipv4/conf/"+b.RouterDevice()+"/proxy_arp", "1")
}
