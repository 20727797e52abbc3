//go:build linux

package netlink

import (
	"bytes"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
)

// HasSet reports whether the table has a set of a name, and whether it is like s.
func (t *Table) HasSet(s *rules.Set) (has, same bool) {
	d, has := t.sets[s.Name]
	return has, has && d == describe(t.family, s)
}

// HasChain reports whether the table has a chain of a name, and whether its hook, and its rules and policy,
// are those of ch.
func (t *Table) HasChain(ch *rules.Chain) (has, sameHook, sameRules bool) {
	have, has := t.chains[ch.Name]
	if !has {
		return false, false, false
	}
	if ch.Hook.Type == "" {
		sameHook = have.kind == ""
	} else {
		sameHook = have.kind == ch.Hook.Type && have.hook == hookNumber(ch.Hook.Hook) &&
			int32(have.priority) == int32(ch.Hook.Priority)
	}
	samePolicy := have.kind == "" || have.policy == policyAccept
	return true, sameHook, samePolicy && slices.EqualFunc(have.rules, ch.Rules, t.sameRule)
}

// sameRule reports whether an installed rule is r.
func (t *Table) sameRule(installed []byte, r rules.Rule) bool {
	want, err := encode(t.family, r)
	if err != nil {
		return false
	}
	for _, e := range attributes(installed) {
		if len(want) == 0 || !sameExpression(e, want[0]) {
			return false
		}
		want = want[1:]
	}
	return len(want) == 0
}

// sameExpression reports whether an installed expression is the wanted one. The kernel reports attributes
// that have a default, and what counters count; so that it is the same if all of the wanted attributes are
// there. Identifiers of sets are not reported.
func sameExpression(have, want []byte) bool {
	name := text(attribute(want, unix.NFTA_EXPR_NAME))
	if text(attribute(have, unix.NFTA_EXPR_NAME)) != name {
		return false
	}
	if name == "counter" {
		return true
	}
	setID := map[string]uint16{"lookup": unix.NFTA_LOOKUP_SET_ID, "dynset": unix.NFTA_DYNSET_SET_ID}[name]
	return covers(attribute(have, unix.NFTA_EXPR_DATA), attribute(want, unix.NFTA_EXPR_DATA), setID)
}

// covers reports whether all wanted attributes but the one of kind except are there with the same values.
func covers(have, want []byte, except uint16) bool {
	for kind, data := range rawAttributes(want) {
		nested := kind&unix.NLA_F_NESTED != 0
		kind &^= unix.NLA_F_NESTED
		if kind == except {
			continue
		}
		got := attribute(have, kind)
		if nested && !covers(got, data, 0) || !nested && !bytes.Equal(got, data) {
			return false
		}
	}
	return true
}

// ChainNames and SetNames return the names of all chains and sets.
func (t *Table) ChainNames() []string { return slices.Sorted(maps.Keys(t.chains)) }

// SetNames returns the names of all sets.
func (t *Table) SetNames() []string { return slices.Sorted(maps.Keys(t.sets)) }
