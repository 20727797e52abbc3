package rules

import (
	"net/netip"

	"github.com/nkp-proxy/nkp/k8s"
)

// ownSlots is up to how many addresses of a Service port have slots of their own each. If there are more,
// they share the slots of the first one. Then a Service port takes the sum of its addresses and endpoints in
// elements, not the product, and a chain of its own for each set of endpoints. With few addresses such a
// chain is more than the elements that it saves, and the kernel follows it whenever it validates the table's
// jumps.
const ownSlots = 4

// sharesSlots reports whether the addresses of a Service port share slots. NodePorts have maps of their own.
func sharesSlots(p *k8s.ServicePort) bool {
	addresses := 0
	for i := range p.Frontends {
		if p.Frontends[i].Type != k8s.NodePort {
			addresses++
		}
	}
	return addresses > ownSlots
}

// HasOwn reports whether a Service port has maps or chains of its own.
func HasOwn(p *k8s.ServicePort) bool { return p.AffinitySeconds > 0 || sharesSlots(p) }

// sharedSlots returns the address whose slots the Service port's addresses share: the first one that is
// served, because no other Service port has elements there. It is not valid if each address has slots of its
// own.
func (b *builder) sharedSlots() netip.Addr {
	if sharesSlots(b.ServicePort) {
		for i := range b.Frontends {
			if f := &b.Frontends[i]; f.Type != k8s.NodePort && b.Router.Serves(f) {
				return f.Address
			}
		}
	}
	return netip.Addr{}
}

// pickShared adds the chain that picks one of the shared slots, and returns its name.
func (b *builder) pickShared(s spread) string {
	name := "slots" + suffix(s.of) + "-" + b.hash
	if !b.has(name) {
		b.add(Chain{Name: name, Rules: s.draws(b.first)})
	}
	return name
}
