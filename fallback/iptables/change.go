package iptables

import (
	"hash/maphash"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// change is all that some items, Service ports and health checks, still need in the kernel. It is complete
// for each of them.
type change struct {
	names  []k8s.PortName
	write  []chainWrite // chains that are new or differ
	used   []string     // all chains of the items after the change
	stale  []string     // chains of the items before the change that are not among used
	shared delta        // by how many owners (sharedRule) each rule in a shared chain gains or loses
}

// chainWrite is a chain to write, and the digest of its rules.
type chainWrite struct {
	rules.Chain
	digest uint64
}

// compile returns the rules of an item.
func compile(c *rules.Compiler, n k8s.PortName, it item) rules.Service {
	switch {
	case it.port != nil:
		return c.Service(it.port)
	case it.check != nil:
		return rules.Service{Name: n, SharedRules: c.HealthCheck(n.ServiceName, *it.check)}
	}
	return rules.Service{}
}

// plan adds an item to a change.
func (w *worker) plan(c *change, n k8s.PortName) {
	c.names = append(c.names, n)
	var had map[string]bool
	if old, ok := w.have.items[n]; ok {
		s := compile(old.compiler, n, old.item)
		c.shared.count(s.SharedRules, -1)
		had = make(map[string]bool, len(s.Chains))
		for _, ch := range s.Chains {
			had[ch.Name] = true
		}
	}
	s := compile(w.want.compiler, n, w.want.items[n])
	c.shared.count(s.SharedRules, +1)
	for _, ch := range s.Chains {
		delete(had, ch.Name)
		c.used = append(c.used, ch.Name)
		sum := digest(ch.Rules)
		if known, ok := w.have.chains[ch.Name]; !ok || known.digest != sum {
			c.write = append(c.write, chainWrite{ch, sum})
		}
	}
	for name := range had {
		c.stale = append(c.stale, name)
	}
}

// digestSeed is new in each process; digests are not persisted.
var digestSeed = maphash.MakeSeed()

// digest hashes a chain's rules without their comments: equal digests mean equal behaviour. It is never 0,
// which stands for a chain whose rules are not known.
func digest(list []rules.Rule) uint64 {
	var h maphash.Hash
	h.SetSeed(digestSeed)
	for _, r := range list {
		_, _ = h.WriteString(r.Canonical()) // never fails
		_ = h.WriteByte('\n')
	}
	return max(h.Sum64(), 1)
}

// inputs are the transactions of a change, in their order. REJECT and DROP rules (table filter) are added
// before the DNAT rules of the change (table nat) and deleted after them, so that no packet of a frontend
// passes between the two. The rules that reject all other ports of ClusterIPs are added last: there are many,
// and nothing depends on them. As long as the base chains do not jump to nkp's chains, these and the DNAT
// rules in shared chains are deferred until all Services are installed: the kernel copies a whole chain with
// each transaction that adds to it.
type inputs struct {
	beforeNAT, nat, afterNAT *input
	hooked                   bool      // the base chains jump to nkp's chains already
	deferred                 []ruleKey // rules to add once all Services are installed
}

// goesAfterNAT reports whether a rule of table filter is added after those of table nat.
func goesAfterNAT(l rules.SharedRule) bool { return l.Chain == rules.ClusterIPs }

// waitsForAll reports whether a rule is deferred until all Services are installed, if nkp's chains are not
// hooked yet.
func waitsForAll(l rules.SharedRule) bool { return l.Table == rules.NAT || goesAfterNAT(l) }

func (c *change) inputs(known ruleSet, hooked bool) inputs {
	in := inputs{
		beforeNAT: newInput(rules.Filter),
		nat:       newInput(rules.NAT),
		afterNAT:  newInput(rules.Filter),
		hooked:    hooked,
	}
	in.nat.writeChains(c.write)

	var gone []rules.SharedRule
	for k, d := range c.shared {
		l := known[k]
		owners, present := d.n, false
		if l != nil {
			owners, present = l.owners+d.n, l.present
		}
		switch {
		case owners > 0 && !present && !hooked && waitsForAll(d.SharedRule):
			in.deferred = append(in.deferred, k)
		case owners > 0 && !present && k.table == rules.NAT:
			in.nat.addShared(d.SharedRule)
		case owners > 0 && !present && goesAfterNAT(d.SharedRule):
			in.afterNAT.addShared(d.SharedRule)
		case owners > 0 && !present:
			in.beforeNAT.addShared(d.SharedRule)
		case owners <= 0 && present:
			gone = append(gone, l.SharedRule)
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

// done records that a change is installed, except its deferred rules.
func (w *worker) done(c *change, deferred []ruleKey) {
	for _, k := range deferred {
		if w.have.shared[k] == nil {
			w.have.shared[k] = &sharedRule{SharedRule: c.shared[k].SharedRule}
		}
		w.have.deferred[k] = true // ports of one Service may hold the same rule
	}

	for k, d := range c.shared {
		l := w.have.shared[k]
		if l == nil {
			continue // never wanted, never there
		}
		if l.owners += d.n; l.owners <= 0 && !l.present {
			delete(w.have.shared, k)
		}
	}

	for _, n := range c.names {
		if it, ok := w.want.items[n]; ok {
			w.have.items[n] = installation{it, w.want.compiler}
		} else {
			delete(w.have.items, n)
		}
		delete(w.Dirty, n)
		w.Refused.Forget(n)
	}

	for _, name := range c.used {
		known := w.have.chains[name]
		known.used = true
		w.have.chains[name] = known
		delete(w.have.garbage, name)
	}
	for _, name := range c.stale {
		w.have.discard(name)
	}
}
