package k8s

import (
	"fmt"
	"net/netip"
	"slices"
)

// A relay is the endpoint's address with the Service's NodePort (Consistent.Relay): there its node receives
// connections that other nodes forward, by consistent choice. It claims its address, protocol and port, as a
// frontend does (claims.go), and loses to every frontend: an EndpointSlice can name any
// address as an endpoint. Among relays the older Service's wins. All nodes have the same Services and slices,
// and so come to the same result.
type relay struct {
	key   claimKey
	claim claim
}

// relaysOf returns the relays that a Service's consistent choices want.
func (t *Tracker) relaysOf(s *service) (list []relay) {
	for i := range s.ports {
		p := &s.ports[i]
		if p.consistent == nil {
			continue
		}
		var ignored []Warning
		c := p.consistent.with(s.candidates(p, t.model.Node.Name), &ignored)
		if c == nil {
			continue
		}
		seen := map[netip.Addr]bool{} // two endpoints can be at one address
		for _, e := range c.Serving() {
			if addr := e.Addr.Addr(); !seen[addr] {
				seen[addr] = true
				list = append(list, relay{
					claimKey{addr, claimPortOf(c.Relay, p.name.Protocol)},
					claim{created: s.def.created, name: p.name},
				})
			}
		}
	}
	return list
}

// flushRelays updates the relays of the Services that are recomputed, and marks those whose relays are
// affected.
func (t *Tracker) flushRelays() {
	touched := map[claimKey]struct{}{}
	for name := range t.dirty {
		s := t.services[name]
		if s == nil {
			continue
		}

		now := t.relaysOf(s)
		if slices.Equal(now, s.relays) {
			continue
		}

		for _, r := range s.relays {
			t.relays.drop(r.key, r.claim.name, r.claim.typ)
			touched[r.key] = struct{}{}
		}
		for _, r := range now {
			t.relays.insert(r.key, &r.claim)
			touched[r.key] = struct{}{}
		}
		s.relays = now
	}

	for key := range touched {
		t.touchRelays(key)
	}
}

// touchRelays marks the Services that want a relay.
func (t *Tracker) touchRelays(key claimKey) {
	for _, c := range t.relays.of(key) {
		t.dirty[c.name.ServiceName] = struct{}{}
	}
}

// relaysTaken returns why a consistent choice has no effect: one of its relays belongs to another. "": none
// does.
func (t *Tracker) relaysTaken(name PortName, c *Consistent) string {
	for _, e := range c.Serving() {
		key := claimKey{e.Addr.Addr(), claimPortOf(c.Relay, name.Protocol)}
		owner := t.claims.of(key)
		if len(owner) == 0 {
			if owner = t.relays.of(key); len(owner) == 0 || owner[0].name == name {
				continue
			}
		}
		return fmt.Sprintf("has no effect: %s/%s, where other nodes would send on what is for endpoint %s, "+
			"belongs to Service %s",
			netip.AddrPortFrom(key.addr, c.Relay), name.Protocol, e.Addr, owner[0].name)
	}
	return ""
}
