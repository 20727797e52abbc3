package iptables

import (
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// installed is the state of one family's tables, as the worker last wrote it or read it back. Only the
// worker's goroutine may use it.
type installed struct {
	items    map[k8s.PortName]installation
	shared   ruleSet
	last     []rules.SharedRule // rules of Fixed that complete has installed
	deferred map[ruleKey]bool   // rules to add once all Services are installed
	chains   map[string]chain   // Services' own chains
	garbage  map[string]bool    // unreferenced chains, to be deleted
	hooked   bool               // the base chains jump to nkp's chains
}

// installation is an installed item and the compiler that generated its rules.
type installation struct {
	item     item
	compiler *rules.Compiler
}

// chain is what is known about an installed chain.
type chain struct {
	digest uint64 // of its rules; 0: not read back
	used   bool   // an installed item uses it
}

// reset discards the state before a read-back, except deferred and hooked.
func (h *installed) reset() {
	*h = installed{
		items: map[k8s.PortName]installation{}, shared: ruleSet{}, deferred: h.deferred,
		chains: map[string]chain{}, garbage: map[string]bool{}, hooked: h.hooked,
	}
}

// ownerText returns " of SERVICE (PROTOCOL)" for a Service's own chain; "" if no installed Service owns it.
// It recompiles each Service until it finds the owner.
func (h *installed) ownerText(chain string) string {
	for n, i := range h.items {
		if i.item.port == nil {
			continue
		}
		s := i.compiler.Service(i.item.port)
		if slices.ContainsFunc(s.Chains, func(c rules.Chain) bool { return c.Name == chain }) {
			return fmt.Sprintf(" of %s (%s)", n, n.Protocol)
		}
	}
	return ""
}

// counts returns the number of installed Service ports and of the chains that they use.
func (h *installed) counts() (services, chains int) {
	for _, i := range h.items {
		if i.item.port != nil {
			services++
		}
	}
	for _, c := range h.chains {
		if c.used {
			chains++
		}
	}
	return services, chains
}

// part is one table's transaction of a change. It records which shared rules the transaction added and
// deleted.
type part struct {
	table                      rules.Table
	added, addedAfter, deleted bool // addedAfter: those that go after table nat
}

// settleShared records that a part of a change is installed.
func (h *installed) settleShared(c *change, p part) {
	for k, d := range c.shared {
		if k.table != p.table {
			continue
		}
		added := p.added
		if goesAfterNAT(d.SharedRule) {
			added = p.addedAfter
		}
		l := h.shared[k]
		owners := d.n
		if l != nil {
			owners += l.owners
		}
		switch {
		case owners > 0 && (l == nil || !l.present) && added:
			if l == nil {
				l = &sharedRule{}
				h.shared[k] = l
			}
			l.SharedRule, l.present = d.SharedRule, true
		case owners <= 0 && l != nil && l.present && p.deleted:
			l.present = false
		}
	}
}

// recordChains records that the chains of a change are installed.
func (h *installed) recordChains(c *change) {
	for _, ch := range c.write {
		known := h.chains[ch.Name]
		known.digest = ch.digest
		h.chains[ch.Name] = known
		delete(h.garbage, ch.Name)
	}
}

// discard marks a chain that is no longer referenced for later deletion.
func (h *installed) discard(name string) {
	known := h.chains[name]
	known.used = false
	h.chains[name] = known
	h.garbage[name] = true
}
