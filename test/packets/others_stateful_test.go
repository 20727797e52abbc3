//go:build linux

package packets

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// ownFlows is how ovs-ofctl selects nkp's flows.
const ownFlows = "cookie=0x6e6b700000000000/0xffffff0000000000"

// ownGroup finds a group of nkp's: their ids have ten digits, those of others in these tests one.
var ownGroup = regexp.MustCompile(`group_id=\d{10}`)

// Where a flow of others uses conntrack on packets that nkp passes on, nkp does not start: it says which flow, programs nothing, and
// starts once that flow is gone, or with --allow-stateful-policies. If the flow comes later, nkp serves on and warns.
func TestStatefulPolicies(t *testing.T) {
	for _, policy := range []struct {
		name    string
		lead    []string // flows that lead to tracked
		tracked string   // the flow that uses conntrack, without its actions
		track   string   // what it does
		how     string   // ends what is said of it
		groups  []string
		args    []string
	}{
		{"in a table that table 0 leads to", []string{"table=0,priority=50,ip,actions=resubmit(,50)", "table=50,priority=0,actions=goto_table:60",
			"table=60,priority=0,actions=NORMAL"}, "table=60,priority=10,tcp", "ct(commit,zone=NXM_NX_REG1[0..15]),NORMAL", "", nil, nil},
		{"in table 0", []string{"table=0,priority=40,ip,actions=NORMAL"}, "table=0,priority=50,ip", "ct(commit,zone=9),NORMAL", "", nil, nil},
		{"by a group", []string{"table=0,priority=40,ip,actions=NORMAL"}, "table=0,priority=50,ip", "group:7", ", by group 7",
			[]string{"group_id=7,type=all,bucket=actions=ct(commit,zone=9),NORMAL"}, nil},
		{"by a group of a group that leads to a table", []string{"table=0,priority=50,ip,actions=clone(group:8)", "table=60,priority=0,actions=NORMAL"},
			"table=60,priority=10,tcp", "ct(commit,zone=9),NORMAL", "",
			[]string{"group_id=7,type=indirect,bucket=actions=resubmit(,60)", "group_id=8,type=select,bucket=actions=group:7"}, nil},
		{"behind --next-table", []string{"table=50,priority=0,actions=goto_table:60", "table=60,priority=0,actions=NORMAL"},
			"table=60,priority=10,tcp", "ct(commit,zone=9),NORMAL", "", nil, []string{"--next-table", "50"}},
	} {
		t.Run(policy.name, func(t *testing.T) {
			c := newCluster(t, testbed.Options{Standalone: true}, append(policy.args, "--service-cidr", serviceCIDRs)...)
			c.put(c.policyServices()...)
			c.servePods(t)
			client := c.pods[0].Host
			serves := func() { t.Helper(); c.ask(t, client, "tcp", "40.0.0.3:80", c.pods[2].Name) }
			here := func() { c.addFlows(t, "cookie=0x77,"+policy.tracked+",actions="+policy.track) }
			gone := func() {
				t.Helper()
				_, err := c.Ofctl("--strict", "del-flows", c.Bridge, policy.tracked)
				must(t, err)
			}
			for _, g := range policy.groups {
				_, err := c.Ofctl("add-group", c.Bridge, g)
				must(t, err)
			}
			for _, f := range policy.lead {
				c.addFlows(t, "cookie=0x77,"+f)
			}
			warning := `a flow of others uses conntrack on packets that nkp passes on \(cookie=0x77,` + policy.tracked + `\)` + policy.how
			refuses := warning + `.*client→endpoint on the way there and Service→client on the way back: nkp programs nothing.*--allow-stateful-policies permits it`
			warns := `WARNING +` + warning + `.*--allow-stateful-policies lets nkp start`

			here()
			c.runWith("--audit-period", "1s", "--iptables-sync-period", "1s")
			c.statusMatches(true, `WARNING +`+refuses)
			c.statusMatches(true, `does NOT hold what it should yet`)
			c.eventually("/healthz", func() error {
				status, body, err := c.get(c.Node, "http://127.0.0.1:10256/healthz")
				if err == nil && status != 503 {
					err = fmt.Errorf("%d %s; want 503", status, body)
				}
				return err
			})
			if !regexp.MustCompile(refuses).MatchString(c.agent.Log.String()) {
				t.Errorf("the log does not say so:\n%s", tail(c.agent.Log.String(), 4000))
			}
			if own, err := c.Ofctl("dump-flows", c.Bridge, ownFlows); err != nil || strings.Contains(own, "cookie=") {
				t.Errorf("nkp has programmed the switch: %s%v", own, err)
			}
			if own, err := c.Ofctl("dump-groups", c.Bridge); err != nil || ownGroup.MatchString(own) {
				t.Errorf("nkp has programmed the switch: %s%v", own, err)
			}
			c.ask(t, client, "tcp", hostPort(c.pods[1].IP4, 8080), c.pods[1].Name)

			gone()
			c.settle()
			serves()
			c.statusMatches(false, "uses conntrack")

			here()
			c.statusMatches(true, warns)
			serves()
			gone()
			c.statusMatches(false, "uses conntrack")
			here()

			must(t, c.agent.Stop(syscall.SIGTERM))
			c.runWith("--allow-stateful-policies")
			c.settle()
			serves()
			c.statusMatches(false, "uses conntrack")
			must(t, c.agent.Stop(syscall.SIGTERM))
			c.cleanup(t)
		})
	}
}

// Flows of others that use conntrack on packets which nkp never passes on do not matter: those of tables that nothing leads to, and
// of packets without IP. Nor do those that look for a packet that was not tracked.
func TestStatefulPoliciesElsewhere(t *testing.T) {
	c := newCluster(t, testbed.Options{Standalone: true}, "--service-cidr", serviceCIDRs)
	c.addFlows(t, "cookie=0x77,table=0,priority=50,arp,actions=resubmit(,51)", "cookie=0x77,table=51,priority=0,actions=NORMAL",
		"cookie=0x77,table=51,priority=5,ip,actions=ct(commit,zone=9),NORMAL", "cookie=0x77,table=52,priority=5,ip,actions=ct(commit,zone=9),NORMAL",
		"cookie=0x77,table=0,priority=50,ip,ct_state=-trk,actions=NORMAL")
	c.begin(c.policyServices()...)
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.3:80", c.pods[2].Name)
	c.statusMatches(false, "uses conntrack")
}

// A flow of others that clears the bit of passed packets, in any table that these come to, would keep ovs-vswitchd's main thread for
// ever if it were asked to follow a packet (ofproto/trace). nkp does not ask, and names the flow. The switch goes on.
func TestFlowThatUnmarks(t *testing.T) {
	c := newCluster(t, testbed.Options{Standalone: true}, "--service-cidr", serviceCIDRs)
	c.addFlows(t, "cookie=0x77,table=0,priority=50,ip,actions=goto_table:50", "cookie=0x77,table=50,priority=0,actions=NORMAL",
		"cookie=0x77,table=50,priority=5,tcp,tp_dst=8080,actions=resubmit(,60)", "cookie=0x77,table=60,priority=0,actions=NORMAL")
	c.begin(c.policyServices()...)
	client := c.pods[0].Host
	_, err := c.Ofctl("add-group", c.Bridge, "group_id=9,type=all,bucket=actions=load:0->NXM_NX_REG10[],resubmit(,0)")
	must(t, err)
	for _, tc := range []struct{ name, does string }{
		{"by a group", "group:9"},
		{"all of the register", "load:0->NXM_NX_REG10[],resubmit(,0)"},
		{"as part of a larger one", "set_field:0->xreg5,resubmit(,0)"},
		{"not needed: it leads past table 0", "resubmit(,1)"},
	} {
		if r, status := c.trace(t, "tcp", client.IP4.String(), "40.0.0.3:80", "--live"); status != 0 || r.Live.Verdict != "deliver" {
			t.Fatalf("without the flow: status %d, %+v", status, r.Live)
		}
		c.addFlows(t, "cookie=0x77,table=60,priority=5,tcp,tp_dst=8080,actions="+tc.does)
		c.disagrees(t, client, "40.0.0.3:80", "uncertain", `clears bit 31 of reg10, --exit-register, which marks them\).*: cookie=0x77,table=60,priority=5`)
		if _, err := c.Appctl("version"); err != nil {
			t.Fatalf("%s: ovs-vswitchd does not answer: %v", tc.name, err)
		}
		_, err := c.Ofctl("del-flows", c.Bridge, "table=60,tcp")
		must(t, err)
	}
}

// With --next-table nothing marks passed packets. A flow of others behind that table which leads to one of nkp's makes a loop, too.
func TestFlowThatReturns(t *testing.T) {
	c := newCluster(t, testbed.Options{Standalone: true}, "--service-cidr", serviceCIDRs, "--next-table", "50")
	c.addFlows(t, "cookie=0x77,table=50,priority=0,actions=resubmit(,60)", "cookie=0x77,table=60,priority=0,actions=NORMAL")
	c.begin(c.policyServices()...)
	client := c.pods[0].Host
	if r, status := c.trace(t, "tcp", client.IP4.String(), "40.0.0.3:80", "--live"); status != 0 || r.Live.Verdict != "deliver" {
		t.Fatalf("without the flow: status %d, %+v", status, r.Live)
	}
	c.addFlows(t, "cookie=0x77,table=60,priority=5,tcp,tp_dst=8080,actions=resubmit(,0)")
	c.disagrees(t, client, "40.0.0.3:80", "uncertain", `may lead passed packets back to nkp's flows .*: cookie=0x77,table=60,priority=5`)
	if _, err := c.Appctl("version"); err != nil {
		t.Fatalf("ovs-vswitchd does not answer: %v", err)
	}
}

// What nkp passes on may pass conntrack a few times more, in zones of others, before the datapath drops it, in both directions: as often
// as docs/decisions/others-keep-their-say.md says. The userspace datapath drops it one pass later; the kernel's, which puts off what is
// nested too deeply, does not.
func TestPassesLeftToOthers(t *testing.T) {
	const most = 10 // lookups of others that are tried
	c := newCluster(t, testbed.Options{Standalone: true}, "--service-cidr", serviceCIDRs)
	web, six, node := service("web", "40.0.0.1"), service("six", "fd00:40::1", affinity(600)), service("node", "40.0.0.2", exposed(30080))
	near, far := c.pods[1], c.remotes[0]
	c.put(web, slice(web, 8080, at(near.IP4)), six, slice(six, 8080, at(far.IP6)), node, slice(node, 8080, at(near.IP4)))
	c.servePods(t)
	c.runWith("--allow-stateful-policies")
	c.settle()
	file := filepath.Join(t.TempDir(), "flows")
	lookups := func(n int) {
		t.Helper()
		flows := fmt.Sprintf("cookie=0x77,table=0,priority=2,actions=NORMAL\ncookie=0x77,table=%d,priority=0,actions=NORMAL\n", 50+n)
		for i := range n {
			in := 50 + i
			if i == 0 {
				in = 0
			}
			for _, family := range []string{"tcp", "tcp6"} {
				flows += fmt.Sprintf("cookie=0x77,table=%d,priority=50,%s,actions=ct(table=%d,zone=%d)\n", in, family, 51+i, 100+i)
			}
		}
		must(t, os.WriteFile(file, []byte(flows), 0o600))
		_, err := c.Ofctl("del-flows", c.Bridge, "cookie=0x77/-1") // those of another number of lookups
		must(t, err)
		_, err = c.Ofctl("add-flows", c.Bridge, file)
		must(t, err)
		c.settle()
	}
	if onKernelDatapath() {
		lookups(most)
	}
	for _, tc := range []struct {
		name string
		from *testbed.Host
		to   string
		who  string
		left int
	}{
		{"pods, directly", c.pods[0].Host, hostPort(near.IP6, 8080), near.Name, 5},
		{"the node and a pod, directly", c.Node, hostPort(near.IP4, 8080), near.Name, 4},
		{"ClusterIP, endpoint elsewhere, IPv6, affinity", c.pods[0].Host, "[fd00:40::1]:80", far.Name, 5},
		{"ClusterIP from the node", c.Node, "40.0.0.1:80", near.Name, 4},
		{"NodePort from outside", c.External, hostPort(testbed.NodeIP4, 30080), near.Name, 3},
		{"NodePort from a pod", c.pods[0].Host, hostPort(testbed.NodeIP4, 30080), near.Name, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if onKernelDatapath() {
				c.ask(t, tc.from, "tcp", tc.to, tc.who)
				return
			}
			lookups(tc.left)
			c.ask(t, tc.from, "tcp", tc.to, tc.who)
			if c.Since(3, 3) { // it takes two more
				return
			}
			lookups(tc.left + 1)
			c.unanswered(t, tc.from, "tcp", tc.to, c.direct(t, tc.from))
		})
	}
}
