//go:build linux

package nftables

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// compareTable returns how an installed table differs from the wanted one, in lines: "+" marks what is
// missing, "-" what is extra. The table is nil if there is none.
func compareTable(t *netlink.Table, want *rules.Ruleset) []string {
	if t == nil {
		return []string{"+ table " + rules.TableName}
	}

	lines := compareObjects(t, want)
	known := map[string]bool{}
	for _, s := range slices.Concat(want.Common, want.Sets) {
		known[s.Name] = true
	}
	for i := range want.Chains {
		known[want.Chains[i].Name] = true
	}

	for _, n := range t.ChainNames() {
		if !known[n] && !isSpread(t, n) {
			lines = append(lines, "- chain "+n)
		}
	}
	for _, n := range t.SetNames() {
		if !known[n] {
			lines = append(lines, "- set "+n)
		}
	}

	if len(want.Devices) == 0 && t.HasFlowtable {
		lines = append(lines, "- flowtable "+rules.Flowtable)
	}
	return append(lines, compareElements(t.Elements, want)...)
}

// compareObjects returns which of the wanted sets and chains are missing, or others.
func compareObjects(t *netlink.Table, want *rules.Ruleset) (lines []string) {
	if t.Dormant {
		lines = append(lines, "- flags dormant")
	}
	if len(want.Devices) > 0 && !t.HasFlowtable {
		lines = append(lines, "+ flowtable "+rules.Flowtable)
	}
	for _, s := range slices.Concat(want.Common, want.Sets) {
		if has, same := t.HasSet(&s); !has {
			lines = append(lines, "+ set "+s.Name)
		} else if !same {
			lines = append(lines, "- set "+s.Name+" (of another type)", "+ set "+s.Name)
		}
	}
	for i := range want.Chains {
		ch := &want.Chains[i]
		switch has, sameHook, sameRules := t.HasChain(ch); {
		case !has:
			lines = append(lines, "+ chain "+ch.Name)
		case !sameHook || !sameRules:
			lines = append(lines, "- chain "+ch.Name+" (with other rules)", "+ chain "+ch.Name)
		}
	}
	return lines
}

func compareElements(have rules.Elements, want *rules.Ruleset) (lines []string) {
	line := func(sign string, r rules.Ref, v rules.Value) {
		lines = append(lines, sign+" "+rules.Sets[r.Set].Name+" "+r.Text(want.Family, v))
	}
	for r, v := range want.Elements {
		got, ok := have[r]
		if ok && got != v {
			line("-", r, got)
		}
		if !ok || got != v {
			line("+", r, v)
		}
	}
	for r, v := range have {
		if _, ok := want.Elements[r]; !ok {
			line("-", r, v)
		}
	}
	slices.SortFunc(lines, func(a, b string) int {
		return cmp.Or(cmp.Compare(a[2:], b[2:]), cmp.Compare(b, a))
	})
	return lines
}

// Diff returns how the tables installed on this node differ from those that a model calls for: lines of the
// form "IPv4 nftables + MAP ELEMENT", where + marks what is missing and - what is extra; "" if they do not
// differ.
func Diff(m *k8s.Model, o Options) (string, error) {
	o.KeepInvalid = o.KeepInvalid || fallback.IsLiberal()
	conn, err := netlink.Open()
	if err != nil {
		return "", err
	}
	defer conn.Close()

	var b strings.Builder
	for _, f := range o.ToServe() {
		t, err := read(conn, f)
		if err != nil {
			return "", err
		}
		lacking, err := o.lacksFlowtable(conn, f) // status says what is lacking
		if err != nil {
			return "", err
		}

		c := rules.NewCompiler(o.config(lacking), f, m)
		want := c.Ruleset(m, func(p *k8s.ServicePort) rules.Ports {
			if t == nil {
				return rules.Ports{}
			}
			return c.Adopt(t.Elements, p)
		})

		for _, l := range compareTable(t, want) {
			b.WriteString(f.String() + " nftables " + l + "\n")
		}
	}
	return b.String(), nil
}
