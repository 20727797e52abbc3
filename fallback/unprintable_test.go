//go:build linux

package fallback_test

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Where others have put rules by nft into the chains of iptables, which iptables-nft then prints no more, nkp serves, leaves what is in
// order alone, repairs what is not, writes nothing at a restart and cleans up all that is its own.
func TestTablesThatIPTablesCannotPrint(t *testing.T) {
	for name, scope := range map[string]serving.Scope{"everything": serving.Everything, "own": serving.Own} {
		t.Run(name, func(t *testing.T) {
			testbed.Linux.Require(t)
			t.Parallel()
			testUnprintable(t, scope)
		})
	}
}

func testUnprintable(t *testing.T, scope serving.Scope) {
	b, pods := bed(t, testbed.Options{})
	for _, program := range []string{"iptables", "ip6tables"} {
		inIPTables(t, b, restore.NFT, program, "-P", "FORWARD", "DROP")
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			inIPTables(t, b, restore.NFT, program, "-A", chain, "-p", "tcp", "--dport", "22", "-j", "ACCEPT")
		}
		inIPTables(t, b, restore.NFT, program, "-t", "nat", "-N", "OTHER")
		for _, chain := range []string{"PREROUTING", "OUTPUT", "POSTROUTING"} {
			inIPTables(t, b, restore.NFT, program, "-t", "nat", "-A", chain, "-p", "tcp", "--dport", "22", "-j", "OTHER")
		}
	}
	for _, family := range []string{"ip", "ip6"} {
		for _, chain := range []string{"filter INPUT", "filter FORWARD", "filter OUTPUT", "nat PREROUTING", "nat OUTPUT", "nat POSTROUTING", "nat OTHER"} {
			inNFTables(t, b, strings.Fields("add rule "+family+" "+chain+" ct state established ct mark 7 counter accept")...)
		}
	}
	tables := func() (all string) {
		for _, name := range []string{"ip filter", "ip nat", "ip6 filter", "ip6 nat"} {
			all += inNFTables(t, b, append([]string{"-s", "list", "table"}, strings.Fields(name)...)...)
		}
		return all
	}
	before := tables()

	o := defaults(restore.NFT)
	o.Scope = scope
	manifests := nodeObject + service("web", 1, "type: NodePort") + endpoints("web", pods[0])
	p := start(t, b, o, manifests)
	reach := func() {
		t.Helper()
		from := b.External
		if scope == serving.Own {
			from = b.Node
		}
		for _, to := range []string{"172.16.0.2:30001", "[fd00:ac::2]:30001"} {
			packet{what: "NodePort", from: from, proto: "tcp", to: to, by: []string{pods[0].Name}}.check(t)
		}
	}
	reach()
	written := p.status().Families
	p.audited()
	for i, f := range p.status().Families {
		if f.Rules != written[i].Rules || f.Repairs != 0 {
			t.Errorf("%s: at rest, nkp writes: %d rules, then %d; %d repairs", f.Family, written[i].Rules, f.Rules, f.Repairs)
		}
	}

	// A jump that is gone comes back, once, and so does what nft has put into one of Services' chains go.
	p.repaired("a lost jump", func() {
		inIPTables(t, b, restore.NFT, "ip6tables", "-D", "INPUT", "-m", "comment", "--comment", "kubernetes health check service ports", "-j", "KUBE-NODEPORTS")
	})
	p.repaired("a rule of nft in nkp's chain", func() { inNFTables(t, b, "add", "rule", "ip", "nat", "KUBE-SERVICES", "ct", "state", "new", "return") })
	reach()

	p.kill()
	p = start(t, b, o, manifests)
	p.audited()
	for _, f := range p.status().Families {
		if f.Repairs != 0 {
			t.Errorf("%s: repairs after a restart: %+v", f.Family, f.LastRepair)
		}
	}
	reach()
	p.kill()
	cleaner := launch(t, b, o)
	cleaner.ask(request{Op: "cleanup"})
	if after := tables(); after != before {
		t.Errorf("before:\n%s\nafter a cleanup:\n%s", before, after)
	}
}
