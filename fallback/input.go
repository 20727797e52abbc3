package fallback

import (
	"bytes"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/rules"
)

// input is input for iptables-restore --noflush, for one table. Chains must be declared before rules are added.
type input struct {
	table rules.Table
	rules int

	chains []string
	body   bytes.Buffer
}

func newInput(t rules.Table) *input { return &input{table: t} }

// chain makes a chain, or empties it if it is there.
func (in *input) chain(name string) { in.chains = append(in.chains, name) }

// append adds a rule to the end of a chain, insert to its beginning.
func (in *input) append(chain string, r rules.Rule) { in.rule("-A", chain, r) }
func (in *input) insert(chain string, r rules.Rule) { in.rule("-I", chain, r) }

// delete takes a rule away; it is an error if it is not there.
func (in *input) delete(chain string, r rules.Rule) { in.rule("-D", chain, r) }

func (in *input) rule(op, chain string, r rules.Rule) {
	in.rules++
	in.body.WriteString(op + " " + chain + " " + string(r) + "\n")
}

// drop deletes a chain, which must be declared too: that empties it.
func (in *input) drop(chain string) { in.body.WriteString("-X " + chain + "\n") }

// link adds a rule to a shared chain.
func (in *input) link(l rules.Link) {
	if l.Last {
		in.append(l.Chain, l.Rule)
	} else {
		in.insert(l.Chain, l.Rule)
	}
}

func (in *input) empty() bool { return len(in.chains) == 0 && in.body.Len() == 0 }

// bytes gives the input. Chains come sorted: iptables-legacy-restore keeps its list of them so, and is a third quicker if
// each goes to its end.
func (in *input) bytes() []byte {
	slices.Sort(in.chains)
	b := make([]byte, 0, len(in.chains)*40+in.body.Len()+16)
	b = append(b, '*')
	b = append(b, in.table...)
	b = append(b, '\n')
	for _, c := range in.chains {
		b = append(b, ':')
		b = append(b, c...)
		b = append(b, " - [0:0]\n"...)
	}
	b = append(b, in.body.Bytes()...)
	return append(b, "COMMIT\n"...)
}
