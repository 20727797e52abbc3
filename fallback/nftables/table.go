//go:build linux

package nftables

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// read reads the installed table with its elements; nil if there is none.
func read(conn *netlink.Conn, f k8s.Family) (*netlink.Table, error) {
	t, err := conn.ReadChains(f)
	if err != nil || t == nil {
		return nil, err
	}
	return t, conn.ReadElements(t)
}

// installed is what is installed of nkp's table, as far as nkp knows. The elements are not kept: they are
// compiled again when a Service port changes.
type installed struct {
	ports    map[k8s.PortName]installedPort
	shared   map[rules.Ref]int // elements that several Service ports may need -> how many do
	spreads  map[string]bool   // chains that pick among a number of endpoints, used or not
	elements int
	// staleClients are the maps of clients that may hold endpoints which are gone, with the endpoints that
	// serve.
	staleClients map[string]rules.Slots
}

// installedPort is an installed Service port.
type installedPort struct {
	port     *k8s.ServicePort
	slots    rules.Ports
	compiler *rules.Compiler
}

func (p *installedPort) compile() rules.Service {
	if p.port == nil {
		return rules.Service{}
	}
	return p.compiler.Service(p.port, p.slots)
}

func (h *installed) reset() {
	h.ports, h.shared, h.spreads = map[k8s.PortName]installedPort{}, map[rules.Ref]int{}, map[string]bool{}
	h.staleClients = map[string]rules.Slots{}
	h.elements = 0
}

// chains returns the chains and sets that are installed, besides rules.Sets.
func (h *installed) chains(c *rules.Compiler) *rules.Ruleset {
	m := &k8s.Model{Ports: map[k8s.PortName]*k8s.ServicePort{}}
	for n, p := range h.ports {
		if rules.HasOwn(p.port) {
			m.Ports[n] = p.port
		}
	}
	r := c.Ruleset(m, func(p *k8s.ServicePort) rules.Ports { return h.ports[p.Name].slots })
	r.Elements = nil
	r.Chains = slices.DeleteFunc(r.Chains, func(ch rules.Chain) bool { return h.spreads[ch.Name] })
	for name := range h.spreads {
		if ch, ok := rules.SpreadChain(name); ok {
			r.Chains = append(r.Chains, ch)
		}
	}
	return r
}

// note records that a change is installed.
func (h *installed) note(c *change, compiler *rules.Compiler) {
	if c.port == nil {
		delete(h.ports, c.name)
	} else {
		h.ports[c.name] = installedPort{c.port, c.slots, compiler}
	}
	for _, ch := range c.new.Chains {
		h.spreads[ch.Name] = true
	}
	for _, m := range c.new.Own.Sets {
		gone := func(e netip.AddrPort) bool { return !slices.Contains(m.Slots, e) }
		at := slices.IndexFunc(c.old.Own.Sets, func(o rules.ClientMap) bool { return o.Name == m.Name })
		if c.full || at >= 0 && slices.ContainsFunc(c.old.Own.Sets[at].Slots, gone) {
			h.staleClients[m.Name] = m.Slots
		}
	}
	for _, m := range c.old.Own.Sets {
		if !slices.ContainsFunc(c.new.Own.Sets, func(n rules.ClientMap) bool { return n.Name == m.Name }) {
			delete(h.staleClients, m.Name)
		}
	}
}

// count adds changes of shared elements' numbers of owners.
func (h *installed) count(delta map[rules.Ref]int) {
	for r, n := range delta {
		if h.shared[r] += n; h.shared[r] == 0 {
			delete(h.shared, r)
		}
	}
}
