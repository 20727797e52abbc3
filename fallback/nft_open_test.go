//go:build linux

package fallback_test

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// nftables must not take the place of iptables where iptables drops what only it can accept. Each case is undone before the next.
func TestWhyNotNFTables(t *testing.T) {
	testbed.Linux.Require(t)
	b := testbed.Start(t, testbed.Options{Plane: testbed.Linux})
	o := defaults(onNFTables) // without an update it installs nothing
	whyNot := func(o childOptions) string {
		t.Helper()
		p := launch(t, b, o)
		defer p.kill()
		return p.ask(request{Op: "why not nftables"}).Text
	}
	if why := whyNot(o); why != "" {
		t.Errorf("an empty node: %s", why)
	}
	if s := inNFTables(t, b, "list", "ruleset"); s != "" {
		t.Errorf("looking has installed:\n%s", s)
	}
	drop := `drops what none of its rules accepts`
	for _, c := range []struct {
		do, undo, why string
		scope         serving.Scope
		families      []k8s.Family
	}{
		{"iptables-nft -P FORWARD DROP", "iptables-nft -P FORWARD ACCEPT", "chain FORWARD of iptables (nf_tables, IPv4) " + drop + ": -P FORWARD DROP", serving.Everything, nil},
		{"iptables-nft -P FORWARD DROP", "iptables-nft -P FORWARD ACCEPT", "", serving.Own, nil},
		{"iptables-nft -P FORWARD DROP", "iptables-nft -P FORWARD ACCEPT", "", serving.Everything, []k8s.Family{k8s.IPv6}},
		{"ip6tables-nft -P INPUT DROP", "ip6tables-nft -P INPUT ACCEPT", "chain INPUT of iptables (nf_tables, IPv6) " + drop, serving.Own, nil},
		{"iptables-legacy -P FORWARD DROP", "iptables-legacy -P FORWARD ACCEPT", "chain FORWARD of iptables (legacy, IPv4) " + drop, serving.Host, nil},
		{"iptables-nft -A FORWARD -j REJECT --reject-with icmp-host-prohibited", "iptables-nft -F FORWARD", drop + ": -A FORWARD -j REJECT", serving.Everything, nil},
		{`iptables-legacy -A FORWARD -m comment --comment "the \"rest\" of it" -j DROP`, "iptables-legacy -F FORWARD", drop, serving.Everything, nil},
		{"iptables-nft -A FORWARD -s 192.0.2.1 -j DROP", "iptables-nft -F FORWARD", "", serving.Everything, nil},
		{"iptables-nft -P OUTPUT DROP", "iptables-nft -P OUTPUT ACCEPT", "", serving.Everything, nil},
		{"iptables-nft -P FORWARD DROP; nft add rule ip filter FORWARD ct state established accept", "iptables-nft -P FORWARD ACCEPT; nft delete table ip filter", "chain FORWARD of iptables (nf_tables, IPv4) " + drop + ": -P FORWARD DROP", serving.Everything, nil},
		{"ip6tables-nft -P INPUT DROP; nft add rule ip6 filter INPUT ct state established accept", "ip6tables-nft -P INPUT ACCEPT; nft delete table ip6 filter", "chain INPUT of iptables (nf_tables, IPv6) " + drop, serving.Own, nil},
		{"iptables-nft -N OTHER; iptables-nft -P FORWARD DROP; nft add rule ip filter OTHER ct state new accept", "nft delete table ip filter", drop, serving.Everything, nil},
		{"iptables-nft -P FORWARD ACCEPT; nft add rule ip filter FORWARD counter log reject", "nft delete table ip filter", drop + ": -A FORWARD -j REJECT", serving.Everything, nil},
		{"iptables-nft -P FORWARD ACCEPT; nft add rule ip filter FORWARD ct state invalid drop", "nft delete table ip filter", "", serving.Everything, nil},
		{"nft add table inet fw; nft 'add chain inet fw f { type filter hook forward priority 0; policy drop; }'", "nft delete table inet fw", "", serving.Everything, nil}, // iptables could not accept it either
	} {
		run(t, b.Node, "sh", "-c", c.do)
		o.Scope, o.Families = c.scope, c.families
		if why := whyNot(o); why != c.why && (c.why == "" || !strings.Contains(why, c.why)) {
			t.Errorf("after %s, scope %s: %q, want %q", c.do, c.scope, why, c.why)
		}
		run(t, b.Node, "sh", "-c", c.undo)
	}
	o.Families = nil
	if why := whyNot(o); why != "" {
		t.Errorf("at last: %s", why)
	}
}
