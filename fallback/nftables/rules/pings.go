package rules

import (
	"net/netip"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// Echo requests to an address in set ping are translated to the node's address, which answers them, if one of
// the sets of clients has their source. Service ports may have an address in common, and the ranges of their
// clients may overlap, which the kernel accepts in no set with intervals. So a range is an element like any
// other, and the source is looked up as a range of each length.

// marked returns the first address of a client range with the first bit behind the range's length set. So
// ranges of all lengths but the whole address's differ, and from the unspecified address.
func marked(first netip.Addr, length int) netip.Addr {
	b := first.AsSlice()
	b[length/8] |= 0x80 >> (length % 8)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// pings adds the elements for pings of a frontend's address.
func (b *builder) pings(f *k8s.Frontend) {
	everyone, inside, from := b.Pings(b.ServicePort, f)
	add := func(set SetID, client netip.Addr) {
		b.out.Shared = append(b.out.Shared, Ref{set, string(key{}.addr(client).addr(f.Address))})
	}
	if everyone || inside {
		b.out.Shared = append(b.out.Shared, Ref{Ping, string(key{}.addr(f.Address))})
	}

	switch {
	case !everyone && inside:
		add(PingClients, b.Family.Unspecified())
	case everyone && from == nil:
		from = []netip.Prefix{netip.PrefixFrom(b.Family.Unspecified(), 0)}
	}
	for _, p := range from {
		if p.IsSingleIP() {
			add(PingHosts, p.Addr())
			continue
		}
		add(PingClients, marked(p.Masked().Addr(), p.Bits()))
	}
}

// pingChains makes the chains that answer pings, and returns the rule that leads there.
func (c *Compiler) pingChains(chain func(name string, list ...Rule)) []Rule {
	to := c.PingTarget()
	if !to.IsValid() {
		return nil
	}

	const answer = "ping-answer"
	zero := c.Family.Unspecified()
	ones := lastOf(netip.PrefixFrom(zero, 0))
	inRange := func(length int) Statement {
		mask := netip.PrefixFrom(ones, length).Masked().Addr()
		return ClientIn{mask, marked(zero, length), Sets[PingClients].Name}
	}
	inside := ClientIn{zero, zero, Sets[PingClients].Name}

	list := []Rule{{inRange(0), Goto{answer}}}
	for _, pods := range c.pods {
		list = append(list, Rule{pods, inside, Goto{answer}})
	}
	list = append(list, Rule{Local{Saddr}, inside, Goto{answer}})
	for length := 1; length < to.BitLen(); length++ {
		list = append(list, Rule{inRange(length), Goto{answer}})
	}
	list = append(list, Rule{In{[]Field{Saddr, Daddr}, Sets[PingHosts].Name}, Goto{answer}})

	chain("ping", list...)
	chain(answer, Rule{DNATTo{to}})
	chain(CountsPings, Rule{Above{serving.PingRate}, Counter{}, Drop{}}, Rule{Counter{}})
	return []Rule{{EchoRequest{}, In{[]Field{Daddr}, Sets[Ping].Name}, Goto{"ping"}}}
}

// limitPings returns the rule that limits the pings that are answered. Chains of type nat see only the first
// packet that a program sends.
func (c *Compiler) limitPings() []Rule {
	if !c.PingTarget().IsValid() {
		return nil
	}
	return []Rule{{
		EchoRequest{}, Translated{}, In{[]Field{OriginalDaddr}, Sets[Ping].Name}, Jump{CountsPings},
	}}
}
