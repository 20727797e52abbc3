package iptables

import (
	"bytes"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// input is input for iptables-restore --noflush, for one table. Chains must be declared before rules are
// added.
type input struct {
	table    rules.Table
	rules    int
	declared int // chains

	chains []string // declared before everything else
	body   bytes.Buffer
}

func newInput(t rules.Table) *input { return &input{table: t} }

// chain creates a chain, or empties it if it exists.
func (in *input) chain(name string) {
	in.declared++
	in.chains = append(in.chains, name)
}

// writeChains writes Services' chains with all their rules.
func (in *input) writeChains(list []chainWrite) {
	size := 0
	for _, ch := range list {
		for _, r := range ch.Rules {
			size += len("-A  \n") + len(ch.Name) + len(r)
		}
	}
	in.body.Grow(size)
	for _, ch := range list {
		in.chain(ch.Name)
		for _, r := range ch.Rules {
			in.append(ch.Name, r)
		}
	}
}

const declarationSize = 40 // of the longest names

func declare(b *bytes.Buffer, chain string) {
	b.WriteByte(':')
	b.WriteString(chain)
	b.WriteString(" - [0:0]\n")
}

// append adds a rule to the end of a chain, insert to its beginning.
func (in *input) append(chain string, r rules.Rule) { in.rule("-A", chain, r) }
func (in *input) insert(chain string, r rules.Rule) { in.rule("-I", chain, r) }

// delete deletes a rule; iptables refuses the input if the rule does not exist.
func (in *input) delete(chain string, r rules.Rule) { in.rule("-D", chain, r) }

func (in *input) rule(op, chain string, r rules.Rule) {
	in.rules++
	b := &in.body
	b.WriteString(op)
	b.WriteByte(' ')
	b.WriteString(chain)
	b.WriteByte(' ')
	b.WriteString(string(r))
	b.WriteByte('\n')
}

// drop deletes a chain. The chain must also be declared, which empties it.
func (in *input) drop(chain string) { in.body.WriteString("-X " + chain + "\n") }

// addShared adds a rule to a shared chain.
func (in *input) addShared(l rules.SharedRule) {
	if l.Last {
		in.append(l.Chain, l.Rule)
	} else {
		in.insert(l.Chain, l.Rule)
	}
}

func (in *input) empty() bool { return len(in.chains) == 0 && in.body.Len() == 0 }

// bytes returns the input. Chains are sorted because iptables-legacy-restore keeps a sorted list of them, and
// is a third faster if it can append each.
func (in *input) bytes() []byte {
	slices.Sort(in.chains)
	var b bytes.Buffer
	b.Grow(len(in.chains)*declarationSize + in.body.Len() + 16)
	b.WriteByte('*')
	b.WriteString(string(in.table))
	b.WriteByte('\n')
	for _, c := range in.chains {
		declare(&b, c)
	}
	b.Write(in.body.Bytes())
	b.WriteString("COMMIT\n")
	return b.Bytes()
}
