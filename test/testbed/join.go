//go:build linux

package testbed

import (
	"errors"
	"fmt"
	"net/netip"
)

// JoinDevice is the device of each router that leads to the other bed.
const JoinDevice = "join"

// joinNet is the link between two routers: from the range for tests between networks (RFC 2544), which no bed uses.
var joinNet = netip.MustParsePrefix("198.18.0.0/30")

// Join links the routers of two beds, so that each bed's node is a second node to the other, with a switch of its own.
// Over IPv4 these reach each other: a's node and pods, a's external client, b's node and pods. Each router sends the
// other's node and pods over the link; service ranges stay where they are.
//
// The beds need different addresses of their own ([Options.IPv4]); their nodes may be in one subnet, where the
// routers then answer ARP for the node that is elsewhere. What the beds have in common is not joined: the IPv6
// addresses, and the external clients' IPv4 address, which from now on means a's client. A bed can be joined once.
// The link goes with either bed.
func Join(a, b *Bed) error {
	if err := joinable(a, b); err != nil {
		return fmt.Errorf("testbed: join: %w", err)
	}
	here, there := joinNet.Addr().Next(), joinNet.Addr().Next().Next()
	if err := connect(
		end{ns: a.Router.ns, name: JoinDevice, addr: []netip.Prefix{netip.PrefixFrom(here, joinNet.Bits())}},
		end{ns: b.Router.ns, name: JoinDevice, addr: []netip.Prefix{netip.PrefixFrom(there, joinNet.Bits())}},
		min(a.opt.MTU, b.opt.MTU)); err != nil {
		return err
	}
	client := netip.PrefixFrom(a.External.IP4, 32)
	return errors.Join(
		a.sendOver(there, b.joined()...),
		b.sendOver(here, append(a.joined(), client)...),
		a.answerFor(b), b.answerFor(a),
	)
}

// joinable returns why two beds cannot be joined; nil: they can.
func joinable(a, b *Bed) error {
	if a == b {
		return errors.New("a bed cannot be joined to itself")
	}
	for _, p := range a.joined() {
		for _, q := range b.joined() {
			if p.Overlaps(q) {
				return fmt.Errorf("%s is in both beds; give one of them other addresses (Options.IPv4)", q)
			}
		}
	}
	return nil
}

// joined are the ranges that another bed reaches here.
func (b *Bed) joined() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(b.ipv4.node, 32), b.ipv4.pods}
}

func (b *Bed) sendOver(via netip.Addr, ranges ...netip.Prefix) error {
	for _, p := range ranges {
		if err := b.Router.ns.route(p, via, JoinDevice); err != nil {
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
