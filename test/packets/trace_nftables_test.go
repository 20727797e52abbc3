//go:build linux

package packets

import (
	"errors"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// What other programs, or mistakes, put into nftables shows in trace --live: each case says what becomes of a packet, and a packet shows
// that it is so. Where a rule decides by what nkp does not know, the verdict is uncertain. Each mode has the same to say of others' rules.
func TestTraceForeignTables(t *testing.T) {
	nightly.Only(t, "TestTraceDisagrees has one thing that differs")
	needsIPTables(t)
	for name, flags := range map[string][]string{
		"nftables":        {"--mode", "nftables"},
		"iptables-nft":    {"--mode", "iptables", "--iptables-backend", "nf_tables"},
		"iptables-legacy": {"--mode", "iptables", "--iptables-backend", "legacy"},
	} {
		t.Run(name, func(t *testing.T) { traceForeignTables(t, flags...) })
	}
}

func traceForeignTables(t *testing.T, flags ...string) {
	c := newCluster(t, testbed.Options{Plane: testbed.Linux}, append(flags, "--service-cidr", serviceCIDRs)...)
	web, itself := service("web", "40.0.0.1", exposed(30080)), service("itself", "40.0.0.2")
	two := service("two", "40.0.0.3")
	here, there, other := c.pods[0], c.remotes[0], c.remotes[1]
	c.begin(web, slice(web, 8080, at(there.IP4)), itself, slice(itself, 8080, at(here.IP4)), two, slice(two, 8080, ats(there.IP4, other.IP4)...))
	_, err := c.Node.ServeUDP(8081)
	must(t, err)
	must(t, c.agent.Stop(15)) // it would repair nkp's table
	client, twin := c.pods[1].Host, c.pods[0].Host
	const fw = "table inet fw { chain x { type filter hook forward priority 10; "
	delivered, unsent := error(nil), errors.New("not sent")
	for _, tc := range []struct {
		name    string
		do      string // in a shell; "nft …" for tables
		undo    string
		from    *testbed.Host
		to      string // of TCP
		verdict string
		err     error    // what becomes of the packet
		differs []string // nil: what is installed agrees
	}{
		{"as installed", "true", "true", client, "40.0.0.1:80", "deliver", delivered, nil},
		{"policy drop", "nft '" + fw + "policy drop; }; }'", "nft delete table inet fw", client, "40.0.0.1:80", "drop", testbed.ErrTimeout,
			[]string{"the rules say drop, the model deliver", "table inet fw, chain x drops it"}},
		{"policy drop elsewhere", "nft '" + fw + "policy drop; }; }'", "nft delete table inet fw", c.Node, "40.0.0.1:80", "deliver", delivered, nil},
		{"a drop of the endpoint's port", "nft '" + fw + "tcp dport 8080 drop; }; }'", "nft delete table inet fw", client, "40.0.0.1:80", "drop", testbed.ErrTimeout,
			[]string{"table inet fw, chain x drops it"}},
		{"a drop of the Service's port", "nft '" + fw + "tcp dport 80 drop; }; }'", "nft delete table inet fw", client, "40.0.0.1:80", "deliver", delivered, nil},
		{"a drop of another client", "nft '" + fw + "ip saddr 10.0.0.13 drop; }; }'", "nft delete table inet fw", client, "40.0.0.1:80", "deliver", delivered, nil},
		{"a refusal of this client", "nft '" + fw + "ip saddr 10.0.0.12 reject; }; }'", "nft delete table inet fw", client, "40.0.0.1:80", "reject", testbed.ErrRefused,
			[]string{"the rules say reject, the model deliver", "table inet fw, chain x refuses it"}},
		{"a range", "nft 'table inet fw { set s { type ipv4_addr; flags interval; elements = { 10.0.0.8-10.0.0.12 }; }; chain x { type filter hook forward priority 10; ip saddr @s drop; }; }'",
			"nft delete table inet fw", client, "40.0.0.1:80", "drop", testbed.ErrTimeout, []string{"drops it"}},
		{"outside a range", "nft 'table inet fw { set s { type ipv4_addr; flags interval; elements = { 10.0.0.8-10.0.0.11 }; }; chain x { type filter hook forward priority 10; ip saddr @s drop; }; }'",
			"nft delete table inet fw", client, "40.0.0.1:80", "deliver", delivered, nil},
		{"a map of verdicts with a default", "nft '" + fw + "tcp dport vmap { 22 : accept, * : drop }; }; }'", "nft delete table inet fw", client, "40.0.0.1:80", "drop", testbed.ErrTimeout,
			[]string{"drops it"}},
		{"a chain that returns", "nft 'table inet fw { chain y { ip daddr 10.0.1.0/24 return; drop; }; chain x { type filter hook forward priority 10; jump y; }; }'",
			"nft delete table inet fw", client, "40.0.0.1:80", "uncertain", testbed.ErrTimeout, []string{"the answer of 10.0.1.11:8080 is lost: table inet fw, chain y drops it"}},
		{"established connections only", "nft '" + fw + "ct state established,related accept; drop; }; }'", "nft delete table inet fw", client, "40.0.0.1:80", "drop", testbed.ErrTimeout,
			[]string{"drops it"}},
		{"translated connections only", "nft '" + fw + "ct state established accept; ct status dnat accept; drop; }; }'", "nft delete table inet fw", client, "40.0.0.1:80", "deliver", delivered, nil},
		{"a limit", "nft '" + fw + "limit rate over 1000/second drop; }; }'", "nft delete table inet fw", client, "40.0.0.1:80", "uncertain", delivered,
			[]string{"what becomes of the packet is not certain: the model says deliver", "table inet fw, chain x drops it"}},
		{"a chain that returns, both ways", "nft 'table inet fw { chain y { ip daddr 10.0.1.0/24 return; ip saddr 10.0.1.0/24 return; drop; }; chain x { type filter hook forward priority 10; jump y; }; }'",
			"nft delete table inet fw", client, "40.0.0.1:80", "deliver", delivered, nil},
		{"answers are dropped", "nft 'table ip fw { chain x { type filter hook prerouting priority -150; tcp flags & (syn|ack) == syn|ack drop; }; }'", "nft delete table ip fw", client, "40.0.0.1:80", "uncertain", testbed.ErrTimeout,
			[]string{"the answer of 10.0.1.11:8080 is lost: table ip fw, chain x drops it"}},
		{"answers to the node are dropped", "nft 'table ip fw { chain x { type filter hook input priority 10; policy drop; }; }'", "nft delete table ip fw", c.Node, "40.0.0.1:80", "uncertain", testbed.ErrTimeout,
			[]string{"the answer of 10.0.1.11:8080 is lost: table ip fw, chain x drops it"}},
		{"answers to the node are accepted", "nft 'table ip fw { chain x { type filter hook input priority 10; policy drop; ct state established ct direction reply accept; }; }'", "nft delete table ip fw",
			c.Node, "40.0.0.1:80", "deliver", delivered, nil},
		{"an expression that is not evaluated", "nft 'table ip early { chain x { type nat hook prerouting priority -110; ip daddr 40.0.0.1 tcp dport 80 redirect to :9; }; }'", "nft delete table ip early",
			client, "40.0.0.1:80", "uncertain", unsent, []string{"table ip early, chain x decides by what nkp does not evaluate"}},
		{"what is not tracked", "nft 'table ip raw2 { chain x { type filter hook prerouting priority -300; ip daddr 40.0.0.1 notrack; }; }'", "nft delete table ip raw2", client, "40.0.0.1:80", "uncertain", testbed.ErrTimeout,
			[]string{"table ip raw2, chain x decides by what nkp does not evaluate"}},
		{"what iptables does not track", "iptables-nft -t raw -A PREROUTING -d 40.0.0.1 -j CT --notrack", "iptables-nft -t raw -F", client, "40.0.0.1:80", "uncertain", testbed.ErrTimeout,
			[]string{"table ip raw, chain PREROUTING decides by what nkp does not evaluate"}},
		{"what is dropped before", "nft 'table ip raw2 { chain x { type filter hook prerouting priority -300; ip daddr 40.0.0.1 drop; }; }'", "nft delete table ip raw2", client, "40.0.0.1:80", "drop", testbed.ErrTimeout,
			[]string{"table ip raw2, chain x drops it"}},
		{"another translation before", "nft 'table ip early { chain x { type nat hook prerouting priority -110; ip daddr 40.0.0.1 tcp dport 80 dnat to " + hostPort(other.IP4, 8080) + "; }; }'",
			"nft delete table ip early", client, "40.0.0.1:80", "deliver", delivered, []string{"still have the endpoint " + hostPort(other.IP4, 8080), "lack the endpoint " + hostPort(there.IP4, 8080)}},
		{"iptables policy", "iptables-nft -P FORWARD DROP", "iptables-nft -P FORWARD ACCEPT", client, "40.0.0.1:80", "drop", testbed.ErrTimeout,
			[]string{"table ip filter, chain FORWARD drops it"}},
		{"iptables policy with an exception", "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -s 10.0.0.0/16 -j ACCEPT; iptables-nft -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT",
			"iptables-nft -P FORWARD ACCEPT; iptables-nft -F FORWARD", client, "40.0.0.1:80", "deliver", delivered, nil},
		{"iptables states", "iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP; iptables-nft -A FORWARD -m conntrack ! --ctstate NEW,ESTABLISHED -m comment --comment x -j DROP",
			"iptables-nft -F FORWARD", client, "40.0.0.1:80", "deliver", delivered, nil},
		{"iptables refuses", "iptables-nft -A FORWARD -m conntrack --ctstate NEW -p tcp --dport 8080 -j REJECT", "iptables-nft -F FORWARD", client, "40.0.0.1:80", "reject", testbed.ErrRefused,
			[]string{"table ip filter, chain FORWARD refuses it"}},
		{"iptables by a match that is not known", "iptables-nft -A FORWARD -m statistic --mode random --probability 0 -j DROP", "iptables-nft -F FORWARD", client, "40.0.0.1:80", "uncertain", delivered,
			[]string{"table ip filter, chain FORWARD drops it"}},
		{"iptables legacy", "iptables-legacy -P FORWARD DROP", "iptables-legacy -P FORWARD ACCEPT", client, "40.0.0.1:80", "uncertain", testbed.ErrTimeout,
			[]string{"chain FORWARD of iptables (legacy, IPv4) drops what none of its rules accepts: -P FORWARD DROP"}},
		{"a rule of iptables legacy", "iptables-legacy -N x; iptables-legacy -A x -j DROP; iptables-legacy -A FORWARD -s 10.0.0.12 -p tcp --dport 8080 -j x",
			"iptables-legacy -F; iptables-legacy -X", client, "40.0.0.1:80", "uncertain", testbed.ErrTimeout, []string{"a rule of iptables (legacy) may keep the packet or its answers from arriving: table filter: -A x -j DROP"}},
		{"a rule of iptables legacy for answers", "iptables-legacy -t mangle -A PREROUTING -s 10.0.1.11 -p tcp --sport 8080 -j DROP", "iptables-legacy -t mangle -F",
			client, "40.0.0.1:80", "uncertain", testbed.ErrTimeout, []string{"table mangle: -A PREROUTING -s 10.0.1.11/32 -p tcp -m tcp --sport 8080 -j DROP"}},
		{"iptables legacy, answers to the node", "iptables-legacy -P INPUT DROP", "iptables-legacy -P INPUT ACCEPT", c.Node, "40.0.0.1:80", "uncertain", testbed.ErrTimeout,
			[]string{"chain INPUT of iptables (legacy, IPv4) drops what none of its rules accepts: -P INPUT DROP"}},
		{"rules of iptables legacy for others", "iptables-legacy -A FORWARD -m conntrack --ctstate INVALID -j DROP; iptables-legacy -A FORWARD -s 10.0.0.13 -j DROP; iptables-legacy -A FORWARD -d 10.0.1.11 -p tcp --dport 22 -j REJECT",
			"iptables-legacy -F", client, "40.0.0.1:80", "deliver", delivered, nil},
		{"a rule in nkp's table", "nft insert rule ip nkp services tcp dport 80 drop", "nft delete rule ip nkp services handle $(nft -a list chain ip nkp services | sed -n 's/.*dport 80 drop # handle //p')",
			client, "40.0.0.1:80", "drop", testbed.ErrTimeout, []string{"the rules say drop", "table ip nkp, chain services drops it", "in nkp's table, but not nkp's: chain services (with other rules)"}},
		{"the table is dormant", "nft add table ip nkp '{ flags dormant; }'", "nft add table ip nkp", client, "172.16.0.2:30080", "untouched", testbed.ErrRefused,
			[]string{"the rules say untouched, the model deliver", "flags dormant"}},
		{"an endpoint's element is gone", "nft delete element ip nkp endpoints '{ 40.0.0.1 . tcp . 80 . 0 }'", "nft add element ip nkp endpoints '{ 40.0.0.1 . tcp . 80 . 0 : 10.0.1.11 . 8080 }'",
			client, "40.0.0.1:80", "reject", testbed.ErrRefused, []string{"the rules say reject, the model deliver", "missing or different in nkp's table: endpoints 40.0.0.1 . tcp . 80 . 0 : 10.0.1.11 . 8080"}},
		{"an element of one of two endpoints is gone", "nft delete element ip nkp endpoints '{ 40.0.0.3 . tcp . 80 . 1 }'", "true",
			client, "40.0.0.3:80", "mixed", unsent, []string{"the rules say mixed, the model deliver", "lack the endpoint 10.0.1.12:8080", "missing or different in nkp's table: endpoints 40.0.0.3 . tcp . 80 . 1 : 10.0.1.12 . 8080"}},
		{"an endpoint that is its own client is not masqueraded", "nft delete element ip nkp hairpin '{ 10.0.0.11 . 10.0.0.11 }'", "nft add element ip nkp hairpin '{ 10.0.0.11 . 10.0.0.11 }'",
			twin, "40.0.0.2:80", "deliver", unsent, []string{"the rules say masquerade never, the model", "hairpin 10.0.0.11 . 10.0.0.11"}},
		{"nothing is installed", "nft delete table ip nkp", "true", client, "172.16.0.2:30080", "untouched", testbed.ErrRefused, []string{"the rules say untouched, the model deliver", "table nkp"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if strings.Contains(tc.do, " nkp") && flags[1] != "nftables" {
				t.Skip("it breaks the table of mode nftables")
			}
			shell := func(text string) {
				t.Helper()
				if out, err := c.Exec(c.Node, "sh", "-ec", text); err != nil {
					t.Fatal(out, err)
				}
			}
			shell(tc.do)
			defer shell(tc.undo)
			r, status := c.traceHere(t, tc.from.IP(here.IP4).String(), tc.to, "--reply")
			if strings.Contains(tc.name, "legacy") && (r.Reply == nil || r.Reply.Live == nil || r.Reply.Live.Verdict != tc.verdict) {
				t.Errorf("the answer: %+v; want %s", r.Reply, tc.verdict)
			}
			if r.Live == nil || r.Live.Verdict != tc.verdict || r.Live.Agrees != (tc.differs == nil) || (status == 0) != r.Live.Agrees {
				t.Fatalf("status %d, %+v; want %s", status, r.Live, tc.verdict)
			}
			for _, want := range tc.differs {
				if !strings.Contains(strings.Join(r.Live.Differences, "\n"), want) {
					t.Errorf("no %q in %q", want, r.Live.Differences)
				}
			}
			t.Logf("%s\n%s", strings.Join(r.Live.Steps, "\n"), strings.Join(r.Live.Differences, "\n"))
			if tc.err == unsent {
				return
			}
			if tc.err == testbed.ErrTimeout {
				c.unanswered(t, tc.from, "tcp", tc.to, func() { // past the rules of all cases
					if tc.from == c.Node {
						c.ask(t, client, "udp", hostPort(there.IP4, 8080), there.Name)
					} else {
						c.ask(t, tc.from, "udp", hostPort(testbed.NodeIP4, 8081), c.Node.Name)
					}
				})
			} else if a, err := tc.from.Ask(c.ctx, "tcp", tc.to); !errors.Is(err, tc.err) {
				t.Errorf("the packet: %+v, %v; want %v", a, err, tc.err)
			}
		})
	}
}
