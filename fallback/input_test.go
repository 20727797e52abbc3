//go:build linux

package fallback

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// Services' chains that come leaves first are declared before anything leads to them, and their names go from Z to A: else
// iptables-nft-restore searches its list of names to the end for each.
func TestLeavesFirst(t *testing.T) {
	m := generate(20)
	c := rules.NewCompiler(rules.DefaultConfig(), k8s.IPv4, m)
	var list []written
	for _, p := range m.Ports {
		for _, ch := range c.Service(p).Chains {
			list = append(list, written{Chain: ch})
		}
	}
	in := newInput(rules.NAT)
	in.own(list, true)
	declared, last := map[string]bool{}, ""
	for l := range strings.Lines(string(in.bytes())) {
		if name, ok := strings.CutPrefix(l, ":"); ok {
			name, _, _ = strings.Cut(name, " ")
			if last != "" && name[:9] == last[:9] && name > last {
				t.Errorf("%s comes after %s", name, last)
			}
			declared[name], last = true, name
		} else if rest, ok := strings.CutPrefix(l, "-A "); ok {
			chain, rule, _ := strings.Cut(strings.TrimSpace(rest), " ")
			if chain != last {
				t.Errorf("a rule of %s comes among those of %s", chain, last)
			}
			if to := rules.Rule(rule).Target(); rules.IsServiceChain(to) && !declared[to] {
				t.Errorf("%s leads to %s, which is not there yet", chain, to)
			}
		}
	}
	if len(declared) != len(list) || in.declared != len(list) {
		t.Errorf("%d chains declared, %d counted, of %d", len(declared), in.declared, len(list))
	}
}
