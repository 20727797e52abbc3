package fallback

import (
	"hash/maphash"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// change is what brings some items in step: complete for each of them.
type change struct {
	names []k8s.PortName
	write []written // chains that are new or differ
	used  []string  // all chains that the items have then
	gone  []string  // chains that they had
	links delta
}

// written is a chain to write, and the digest of its rules.
type written struct {
	rules.Chain
	digest uint64
}

// compile returns the rules of an item.
func compile(c *rules.Compiler, n k8s.PortName, it item) rules.Service {
	switch {
	case it.port != nil:
		return c.Service(it.port)
	case it.check != nil:
		return rules.Service{Name: n, Links: c.HealthCheck(n.ServiceName, *it.check)}
	}
	return rules.Service{}
}

// plan adds an item to a change.
func (w *worker) plan(c *change, n k8s.PortName) {
	c.names = append(c.names, n)
	var had map[string]bool
	if old, ok := w.have.items[n]; ok {
		s := compile(old.compiler, n, old.item)
		c.links.count(s.Links, -1)
		had = make(map[string]bool, len(s.Chains))
		for _, ch := range s.Chains {
			had[ch.Name] = true
		}
	}
	s := compile(w.want.compiler, n, w.want.items[n])
	c.links.count(s.Links, +1)
	for _, ch := range s.Chains {
		delete(had, ch.Name)
		c.used = append(c.used, ch.Name)
		sum := digest(ch.Rules)
		if known, ok := w.have.chains[ch.Name]; !ok || known.digest != sum {
			c.write = append(c.write, written{ch, sum})
		}
	}
	for name := range had {
		c.gone = append(c.gone, name)
	}
}

// digestSeed is this process's: digests are compared within it only.
var digestSeed = maphash.MakeSeed()

// digest returns chains apart by what their rules do, without comments. It is never 0.
func digest(list []rules.Rule) uint64 {
	var h maphash.Hash
	h.SetSeed(digestSeed)
	for _, r := range list {
		_, _ = h.WriteString(r.Canonical()) // never fails
		_ = h.WriteByte('\n')
	}
	return max(h.Sum64(), 1)
}

// inputs are the transactions of a change, in their order. A frontend that is refused must not be translated before its
// refusal is there, nor lose its refusal before it is translated: table filter gets rules before table nat, and loses them
// after it. What refuses the other ports of ClusterIPs comes after it, too: there is much of it, and nothing waits for it.
// Where no packet gets to nkp's chains yet, that is deferred until all Services are in, and so is what leads to them: with
// each transaction that adds to a chain, the kernel copies the whole chain.
type inputs struct {
	beforeNAT, nat, afterNAT *input
	hooked                   bool
	deferred                 []linkKey // what waits
}

// goesAfterNAT reports whether a rule of table filter is added after those of table nat.
func goesAfterNAT(l rules.Link) bool { return l.Chain == rules.ClusterIPs }

// waitsForAll reports whether a rule is deferred until all Services are in, where no packet gets to nkp's chains yet.
func waitsForAll(l rules.Link) bool { return l.Table == rules.NAT || goesAfterNAT(l) }

func (c *change) inputs(known linkSet, hooked bool) inputs {
	in := inputs{beforeNAT: newInput(rules.Filter), nat: newInput(rules.NAT), afterNAT: newInput(rules.Filter), hooked: hooked}
	in.nat.own(c.write)
	var gone []rules.Link
	for k, d := range c.links {
		l := known[k]
		owners, present := d.n, false
		if l != nil {
			owners, present = l.owners+d.n, l.present
		}
		switch {
		case owners > 0 && !present && !hooked && waitsForAll(d.Link):
			in.deferred = append(in.deferred, k)
		case owners > 0 && !present && k.table == rules.NAT:
			in.nat.link(d.Link)
		case owners > 0 && !present && goesAfterNAT(d.Link):
			in.afterNAT.link(d.Link)
		case owners > 0 && !present:
			in.beforeNAT.link(d.Link)
		case owners <= 0 && present:
			gone = append(gone, l.Link)
		}
	}
	for _, l := range gone {
		if l.Table == rules.NAT {
			in.nat.delete(l.Chain, l.Rule)
		} else {
			in.afterNAT.delete(l.Chain, l.Rule)
		}
	}
	return in
}

// done notes that a whole change is in, but for what is deferred.
func (w *worker) done(c *change, deferred []linkKey) {
	for _, k := range deferred {
		if w.have.links[k] == nil {
			w.have.links[k] = &link{Link: c.links[k].Link}
		}
		w.have.deferred[k] = true // ports of one Service may hold the same rule
	}
	for k, d := range c.links {
		l := w.have.links[k]
		if l == nil {
			continue // never wanted, never there
		}
		if l.owners += d.n; l.owners <= 0 && !l.present {
			delete(w.have.links, k)
		}
	}
	for _, n := range c.names {
		if it, ok := w.want.items[n]; ok {
			w.have.items[n] = installation{it, w.want.compiler}
		} else {
			delete(w.have.items, n)
		}
		delete(w.want.dirty, n)
		w.want.refused.Forget(n)
	}
	for _, name := range c.used {
		known := w.have.chains[name]
		known.used = true
		w.have.chains[name] = known
		delete(w.have.garbage, name)
	}
	for _, name := range c.gone {
		w.have.discard(name)
	}
}
