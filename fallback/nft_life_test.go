//go:build linux

package fallback

import (
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// nftIn runs nft in the node.
func nftIn(t *testing.T, b *testbed.Bed, argv ...string) string {
	t.Helper()
	out, err := b.Node.Exec(t.Context(), append([]string{"nft"}, argv...)...)
	if err != nil {
		t.Fatal(out, err)
	}
	return out
}

// foreignNFT are tables and rules of others.
func foreignNFT(t *testing.T, b *testbed.Bed) (list func() string) {
	t.Helper()
	for _, c := range []string{
		"add table inet firewall", "add chain inet firewall input { type filter hook input priority 0 ; policy accept ; }",
		"add rule inet firewall input tcp dport 9 drop", "add table ip nkp-other", "add map ip nkp-other services { type ipv4_addr : verdict ; }",
	} {
		nftIn(t, b, strings.Fields(c)...)
	}
	iptables(t, b, xtables.NFT, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "10.99.0.0/16", "-j", "MASQUERADE")
	return func() string {
		var s strings.Builder
		for _, table := range []string{"inet firewall", "ip nkp-other", "ip nat"} {
			s.WriteString(nftIn(t, b, append([]string{"-s", "list", "table"}, strings.Fields(table)...)...))
		}
		return s.String()
	}
}

// A Plane that starts again finds its table in place and writes nothing, whatever had happened to the slots of its endpoints; the
// counters go on, and so does session affinity.
func TestNFTRestart(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{})
	o := defaults(nftables)
	o.Tracker.ServiceCIDRs = testbed.ServiceRanges[:2]
	manifests := func(list ...*testbed.Pod) string {
		return nodeObject + service("web", 1, "type: NodePort", "sessionAffinity: ClientIP", "externalTrafficPolicy: Local") + endpoints("web", list...) +
			service("none", 2, "type: NodePort") + endpoints("none") +
			service("ranges", 3, "type: LoadBalancer", `loadBalancerSourceRanges: [10.0.0.0/8, 10.0.0.11/32, "fd00:a::/32"]`) +
			"status: {loadBalancer: {ingress: [{ip: 20.0.0.3}]}}\n" + endpoints("ranges", pods[2])
	}
	p := start(t, b, o, manifests(pods...))
	p.sync(manifests(pods[1], pods[2])) // the first slot is another's now
	first, err := pods[0].Ask(t.Context(), "tcp", "40.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	before := nftIn(t, b, "list", "table", "ip", "nkp")
	for _, how := range []string{"kill", "stop"} {
		if how == "stop" {
			p.ask(request{Op: "stop"})
		}
		p.kill()
		p = start(t, b, o, manifests(pods[1], pods[2]))
		for _, f := range p.status().Families {
			if f.Rules != 0 || f.Transactions != 0 || f.Services != 6 {
				t.Errorf("after %s: %+v", how, f)
			}
		}
	}
	withoutTimes := func(s string) string { // how long clients are remembered
		var lines []string
		for l := range strings.Lines(s) {
			if !strings.Contains(l, "expires") {
				lines = append(lines, l)
			}
		}
		return strings.Join(lines, "")
	}
	if after := nftIn(t, b, "list", "table", "ip", "nkp"); withoutTimes(after) != withoutTimes(before) {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	for range chance.Trials(0.5) {
		if a, err := pods[0].Ask(t.Context(), "tcp", "40.0.0.1:80"); err != nil || a.Pod != first.Pod {
			t.Errorf("session affinity led to %s, then to %s: %v", first.Pod, a.Pod, err)
		}
	}
}

// What others do to the table is undone at once: a flush of everything, a lost or foreign element, a lost or foreign rule. What they
// have of their own is left alone.
func TestNFTRepair(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{})
	o := defaults(nftables)
	o.SyncPeriod = time.Hour // notifications alone
	p := start(t, b, o, nodeObject+service("web", 1, "type: NodePort", "sessionAffinity: ClientIP")+endpoints("web", pods[0])+
		service("none", 2, "type: NodePort")+endpoints("none"))
	for what, command := range map[string]string{
		"flush":            "flush ruleset",
		"deleted table":    "delete table ip nkp",
		"deleted table v6": "delete table ip6 nkp",
		"lost element":     "delete element ip nkp services { 40.0.0.1 . tcp . 80 }",
		"lost endpoint":    "delete element ip nkp endpoints { 40.0.0.1 . tcp . 80 . 0 }",
		"another endpoint": "delete element ip nkp endpoints { 40.0.0.1 . tcp . 80 . 0 } ; add element ip nkp endpoints { 40.0.0.1 . tcp . 80 . 0 : 10.0.0.99 . 80 }",
		"foreign element":  "add element ip nkp cluster-ips { 9.9.9.9 }",
		"emptied chain":    "flush chain ip nkp external",
		"foreign rule":     "insert rule ip nkp services return",
		"foreign chain":    "add chain ip nkp mine",
		"lost hook":        "delete chain ip nkp prerouting",
		"emptied set":      "flush map ip6 nkp services",
	} {
		p.repaired(what, func() { nftIn(t, b, strings.Fields(command)...) })
		for _, to := range []string{"40.0.0.1:80", "[fd00:40::1]:80", "172.16.0.2:30001"} {
			for _, from := range []*testbed.Host{pods[1].Host, b.Node} {
				if _, err := from.Ask(t.Context(), "tcp", to); err != nil {
					t.Errorf("after %s: %v", what, err)
				}
			}
		}
	}
	list := foreignNFT(t, b)
	before, repaired := list(), p.status()
	p.sync(nodeObject + service("other", 3, "type: NodePort") + endpoints("other", pods[1]))
	if got := list(); got != before {
		t.Errorf("others' tables before:\n%s\nafter a change:\n%s", before, got)
	}
	for i, f := range p.status().Families {
		if f.Repairs != repaired.Families[i].Repairs {
			t.Errorf("another's table is a repair: %+v", f.LastRepair)
		}
	}
	p.kill()
	cleaner := launch(t, b, o)
	if got := cleaner.ask(request{Op: "cleanup"}).Text; got != "2 tables" {
		t.Error(got)
	}
	if got := list(); got != before {
		t.Errorf("others' tables before:\n%s\nafter cleanup:\n%s", before, got)
	}
	if again := cleaner.ask(request{Op: "cleanup"}).Text; again != "0 tables" {
		t.Error("a second cleanup removed", again)
	}
}

// A client of a Service with session affinity is led to another endpoint when its own is gone, by every address; the bound on the
// clients holds, and those beyond it are served.
func TestNFTAffinity(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{})
	o := defaults(nftables)
	o.AffinityLimit = 2
	svc := nodeObject + service("web", 1, "type: NodePort", "sessionAffinity: ClientIP")
	p := start(t, b, o, svc+endpoints("web", pods...))
	clients := []*testbed.Host{pods[0].Host, pods[1].Host, b.External, b.Node}
	for range 5 {
		for _, c := range clients {
			if _, err := c.Ask(t.Context(), "tcp", "172.16.0.2:30001"); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
	s := nftIn(t, b, "list", "table", "ip", "nkp")
	if n := strings.Count(s, "expires"); n != 2 {
		t.Errorf("%d clients are remembered, 2 may be:\n%s", n, s)
	}
	for i := range 6 {
		left := pods[i%3]
		p.sync(svc + endpoints("web", left))
		for _, c := range clients {
			for _, to := range []string{"40.0.0.1:80", "172.16.0.2:30001", "[fd00:40::1]:80"} {
				if a, err := c.Ask(t.Context(), "tcp", to); err != nil || a.Pod != left.Name {
					t.Errorf("%s -> %s: answered by %q, want %s: %v", c.Name, to, a.Pod, left.Name, err)
				}
			}
		}
	}
}

// Over nftables, too, no neighbour reaches what listens at 127.0.0.1.
func TestNFTLoopback(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{})
	o := defaults(nftables)
	n := newIntruder(t, b)
	manifests := nodeObject + service("web", 1, "type: NodePort") + endpoints("web", pods[0])
	served := packet{what: "NodePort at localhost", from: b.Node, proto: "tcp", to: "127.0.0.1:30001", by: []string{pods[0].Name}}
	p := start(t, b, o, manifests)
	n.none("the first sync")
	served.check(t)
	for _, c := range []string{"flush ruleset", "flush chain ip nkp localnet-guard", "delete chain ip nkp localnet-guard"} {
		nftIn(t, b, strings.Fields(c)...)
		wait.For(t, "a repair after "+c, func() bool {
			return n.routes() == "1" && strings.Contains(nftIn(t, b, "list", "ruleset"), "localnet-guard")
		})
		p.settle()
		n.stops(c)
		n.none("after the repair of " + c)
		served.check(t)
	}
	p.kill()
	o.LocalhostNodePorts = false
	p = start(t, b, o, manifests)
	if n.routes() != "0" {
		t.Error("without NodePorts at 127.0.0.1, route_localnet stays set")
	}
	p.kill()
	o.LocalhostNodePorts = true
	p = start(t, b, o, manifests)
	served.check(t)
	p.kill()
	launch(t, b, o).ask(request{Op: "cleanup"})
	if n.routes() != "0" {
		t.Error("route_localnet stays set after a cleanup")
	}
	n.set("1")
	start(t, b, o, manifests).kill()
	launch(t, b, o).ask(request{Op: "cleanup"})
	if n.routes() != "1" {
		t.Error("nkp has unset what another has set")
	}
}

// The scopes beside a bridge: Host leaves the bridge's pods alone, Own serves what the node sends to itself.
func TestNFTScopes(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{PodBridge: true, NoServiceRoutes: true})
	o := defaults(nftables)
	o.Scope, o.PodDevice = rules.Host, b.Bridge
	p := start(t, b, o, nodeObject+
		service("web", 1, "type: NodePort")+endpoints("web", pods[0])+
		service("here", 2, "type: NodePort", "externalTrafficPolicy: Local")+endpoints("here", pods[0])+
		service("none", 3, "type: NodePort")+endpoints("none"))
	for _, c := range scopeHostPackets(b, pods) {
		c.check(t)
	}
	for _, scope := range []rules.Scope{rules.Everything, rules.Host, rules.Own} { // from any to any
		p.kill()
		o.Scope = scope
		p = start(t, b, o, nodeObject+service("web", 1, "type: NodePort")+endpoints("web", pods[0]))
	}
	s := nftIn(t, b, "list", "table", "ip", "nkp")
	if strings.Contains(s, "hook prerouting") || strings.Contains(s, "hook forward") || strings.Contains(s, "40.0.0.1") {
		t.Errorf("with scope own:\n%s", s)
	}
	own := packet{what: "the node to its own NodePort", from: b.Node, proto: "tcp", to: "172.16.0.2:30001", by: []string{"pod-11"}}
	own.check(t)
}
