//go:build linux

package packets

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// says reports an error unless a command's output matches a regular expression.
func says(t *testing.T, command, out, want string) {
	t.Helper()
	if !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("nkp %s does not say %q:\n%s", command, want, out)
	}
}

// disagrees checks what trace --live says of a packet of TCP, and returns it.
func (c *cluster) disagrees(t *testing.T, from *testbed.Host, to, verdict string, wants ...string) {
	t.Helper()
	r, status := c.trace(t, "tcp", from.IP(testbed.NodeIP4).String(), to, "--live")
	if status != 1 || r.Live == nil || r.Live.Agrees || r.Live.Verdict != verdict {
		t.Errorf("trace from %s to %s: status %d, %+v; want %s", from.Name, to, status, r.Live, verdict)
		return
	}
	for _, want := range wants {
		says(t, "trace --live", strings.Join(r.Live.Differences, "\n"), want)
	}
}

// taken begins a connection, waits until a flow with a cookie has its packet, and returns whether there was an answer, and which.
func (c *cluster) taken(t *testing.T, from *testbed.Host, to, cookie string) (bool, error) {
	t.Helper()
	c.uncached(t)
	p := c.sends(t, from, "tcp", to)
	c.eventually("the foreign flow has the packet", func() error {
		c.uncached(t)
		out, err := c.Ofctl("dump-flows", c.Bridge, "cookie="+cookie+"/-1")
		if err == nil && !regexp.MustCompile(`n_packets=[1-9]`).MatchString(out) {
			err = errors.New(out)
		}
		return err
	})
	return p.answered()
}

// uncached has the datapath forget its cached flows.
func (c *cluster) uncached(t *testing.T) {
	t.Helper()
	_, err := c.Appctl("revalidator/purge") // Settle takes half a second
	must(t, err)
}

// inForce waits until what was put holds for the next packet: in the switch's tables, as settle does, and in its cache, which follows
// some time later on a busy machine.
func (c *cluster) inForce(t *testing.T) {
	t.Helper()
	c.settle()
	c.uncached(t)
}

// oneService starts nkp for one Service with an endpoint here and one elsewhere, and no audit.
func oneService(t *testing.T) *cluster {
	c := newCluster(t, testbed.Options{Standalone: true}, "--service-cidr", serviceCIDRs, "--gateway-mac", testbed.GatewayMAC)
	c.servePods(t)
	web := service("web", "40.0.0.1", exposed(30080))
	c.put(web, slice(web, 8080, at(c.pods[0].IP4), at(c.remotes[0].IP4)))
	c.runWith("--audit-period", "1h")
	c.settle()
	return c
}

// A flow of another owner in one of nkp's later tables drops packets after the choice of an endpoint. All commands name it; it
// stays.
func TestForeignFlowInALaterTable(t *testing.T) {
	c := oneService(t)
	client := aPod(c)
	if r, status := c.trace(t, "tcp", client.IP4.String(), "40.0.0.1:80", "--live"); status != 0 || !r.Live.Agrees || r.Live.Verdict != "deliver" {
		t.Errorf("before: status %d, %+v", status, r.Live)
	}
	for _, foreign := range []string{"table=30,priority=65000,ip", "table=2,priority=65000,ip", "table=30,priority=250,ip,nw_dst=10.0.0.0/24"} {
		_, err := c.Ofctl("add-flow", c.Bridge, "cookie=0x77,"+foreign+",actions=drop")
		must(t, err)
		flow := `cookie=0x77,` + regexp.QuoteMeta(foreign)
		c.statusMatches(true, `WARNING +flows of other owners in nkp's tables: 1\..*`+flow+`,actions=drop`)
		out, _, status := c.nkp("diff", "--socket", c.socket())
		if says(t, "diff", out, `^! another owner's flow in nkp's tables: `+flow+`,actions=drop\n$`); status != 1 {
			t.Errorf("diff ends with %d", status)
		}
		out, _, status = c.nkp(append([]string{"diff"}, c.common()...)...)
		if says(t, "diff without the agent", out, `^! another owner's flow in nkp's tables: `+flow+`,actions=drop\n$`); status != 1 {
			t.Errorf("diff without the agent ends with %d", status)
		}
		verdict := "drop"
		if strings.Contains(foreign, "nw_dst") {
			verdict = "mixed" // the other node's endpoints are not concerned
		}
		c.disagrees(t, client, "40.0.0.1:80", verdict, `the switch drops packets to .*10\.0\.0\.11:8080.*: by another owner's flow: `+flow+`,actions=drop\. nkp leaves flows of others alone`,
			`--strict del-flows br-int '`+regexp.QuoteMeta(foreign)+`'`)
		c.disagrees(t, c.External, "172.16.0.2:30080", verdict, flow)
		if verdict == "drop" {
			if yes, err := c.taken(t, client, "40.0.0.1:80", "0x77"); yes {
				t.Errorf("%s: there was an answer: %v", foreign, err)
			}
		}
		// The command that trace names deletes it.
		_, err = c.Ofctl("--strict", "del-flows", c.Bridge, foreign)
		must(t, err)
		c.inForce(t)
		c.happens(t, client, "tcp", "40.0.0.1:80", traced{Verdict: "deliver", Endpoints: []string{hostPort(c.pods[0].IP4, 8080), hostPort(c.remotes[0].IP4, 8080)}, Masquerade: "never"})
	}
	for i := range 9 {
		_, err := c.Ofctl("add-flow", c.Bridge, fmt.Sprintf("cookie=0x77,table=2,priority=%d,udp,tp_dst=9,actions=drop", 1000+i))
		must(t, err)
	}
	c.statusSays("flows of other owners in nkp's tables: 9.", "priority=1008", "priority=1004", "and 4 more")
	out, _, _ := c.nkp("diff", "--socket", c.socket())
	if says(t, "diff", out, `: and 4 more\n$`); strings.Count(out, "\n") != 6 {
		t.Errorf("diff has %d lines:\n%s", strings.Count(out, "\n"), out)
	}
	_, err := c.Appctl("dpctl/flush-conntrack", "zone=1001") // connections that flows above kept from being answered
	must(t, err)
	if r, status := c.trace(t, "tcp", client.IP4.String(), "40.0.0.1:80", "--live"); status != 0 || !r.Live.Agrees {
		t.Errorf("flows that no packet of the connection can match: status %d, %+v", status, r.Live)
	}
}

// A flow of another owner in table 0, which nkp shares with the pod network, takes Service packets before nkp's flows see them.
// All commands name it; other foreign flows there are legitimate.
func TestForeignFlowBeforeNkp(t *testing.T) {
	c := oneService(t)
	client := aPod(c)
	for _, legitimate := range []string{"priority=500,arp,actions=NORMAL", "priority=500,udp,tp_dst=67,actions=LOCAL", "priority=500,ip,nw_dst=10.0.0.99,actions=drop",
		"priority=500,tcp,nw_dst=40.0.0.1,tp_dst=81,actions=drop", "priority=50,ip,nw_dst=10.0.0.99,actions=drop", "priority=500,ip,nw_src=10.99.0.0/16,actions=resubmit(,3)"} {
		_, err := c.Ofctl("add-flow", c.Bridge, "cookie=0x66,table=0,"+legitimate)
		must(t, err)
	}
	c.settle() // nkp looks at them as well
	if out, _, _ := c.nkp("status", "--socket", c.socket()); strings.Contains(out, "other owners") {
		t.Errorf("status reports legitimate flows:\n%s", out)
	}
	if r, status := c.trace(t, "tcp", client.IP4.String(), "40.0.0.1:80", "--live"); status != 0 || !r.Live.Agrees {
		t.Errorf("with legitimate flows: status %d, %+v", status, r.Live)
	}
	for _, tc := range []struct{ match, actions, verdict string }{
		{"table=0,priority=65000,ip", "drop", "drop"},
		{"table=0,priority=500,tcp,nw_dst=40.0.0.1", "drop", "drop"},
		{"table=0,priority=400,ip,nw_dst=40.0.0.0/16", "NORMAL", "untouched"},
	} {
		_, err := c.Ofctl("add-flow", c.Bridge, "cookie=0x77,"+tc.match+",actions="+tc.actions)
		must(t, err)
		flow := `cookie=0x77,` + regexp.QuoteMeta(tc.match) + ",actions=" + tc.actions
		c.statusMatches(true, `WARNING +flows of other owners before nkp's in table 0: 1\..*`+flow)
		out, _, _ := c.nkp("diff", "--socket", c.socket())
		says(t, "diff", out, `^! another owner's flow before nkp's: `+flow+`\n$`)
		c.disagrees(t, client, "40.0.0.1:80", tc.verdict, `another owner's flow: `+flow+`\. nkp leaves flows of others alone: find the owner by the cookie`,
			`--strict del-flows br-int '`+regexp.QuoteMeta(tc.match)+`'`)
		if r, _ := c.trace(t, "tcp", client.IP4.String(), "40.0.0.1:80", "--live"); strings.Contains(strings.Join(r.Live.Differences, "\n"), "repairs") {
			t.Errorf("trace says that the agent repairs what it does not: %v", r.Live.Differences)
		}
		if yes, err := c.taken(t, client, "40.0.0.1:80", "0x77"); yes && err == nil {
			t.Errorf("%s: the Service answers", tc.match)
		}
		_, err = c.Ofctl("--strict", "del-flows", c.Bridge, tc.match)
		must(t, err)
	}
}

// A flow that leads from a later table back to an earlier one, through conntrack, would keep ovs-vswitchd's main thread for ever if
// it were asked to follow a packet (ofproto/trace). nkp does not ask, and names the flow. The switch goes on.
func TestFlowThatLeadsBack(t *testing.T) {
	nightly.Only(t, "flows that no program is known to install; TestForeignFlowInALaterTable has others")
	c := oneService(t)
	client := aPod(c)
	for _, flow := range []string{
		"cookie=0x77,table=30,priority=65000,ip,actions=resubmit(,2)",
		"cookie=0x77,table=2,priority=65000,tcp,actions=ct(commit,zone=9,table=2)",
		"cookie=0x77,table=30,priority=65000,ip,actions=resubmit(,77)",
		"cookie=0x77,table=0,priority=65000,ip,actions=ct(zone=9,table=0)",
	} {
		_, err := c.Ofctl("add-flow", c.Bridge, flow)
		must(t, err)
		named := "may lead back to an earlier table: cookie=0x77," + regexp.QuoteMeta(strings.Split(flow, ",")[1])
		for _, more := range [][]string{nil, {"--reply"}} {
			r, status := c.trace(t, "tcp", client.IP4.String(), "40.0.0.1:80", append([]string{"--live"}, more...)...)
			if status != 1 || r.Live == nil || r.Live.Agrees || r.Live.Verdict != "uncertain" {
				t.Fatalf("%s: status %d, %+v; want uncertain", flow, status, r.Live)
			}
			says(t, "trace --live", strings.Join(r.Live.Differences, "\n"), named)
		}
		if _, err := c.Appctl("version"); err != nil {
			t.Fatalf("%s: ovs-vswitchd does not answer: %v", flow, err)
		}
		_, err = c.Ofctl("del-flows", c.Bridge, "cookie=0x77/-1")
		must(t, err)
	}
	if r, status := c.trace(t, "tcp", client.IP4.String(), "40.0.0.1:80", "--live"); status != 0 || r.Live.Verdict != "deliver" {
		t.Errorf("without the flows: status %d, %+v", status, r.Live)
	}
}

// A foreign flow in the tables of session affinity, which hold flows that come and go with traffic, is reported too. Pins and the
// seed are nkp's own.
func TestForeignFlowAmongPins(t *testing.T) {
	nightly.Only(t, "TestForeignFlowInALaterTable has foreign flows in other tables")
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs, "--gateway-mac", testbed.GatewayMAC)
	c.servePods(t)
	web := service("web", "40.0.0.1", affinity(600))
	c.put(web, slice(web, 8080, at(c.pods[0].IP4), at(c.remotes[0].IP4)))
	c.runWith("--audit-period", "2s")
	c.settle()
	client := aPod(c)
	_, err := client.Ask(c.ctx, "tcp", "40.0.0.1:80")
	must(t, err)
	for _, foreign := range []string{"table=10,priority=500,ip", "table=17,priority=500,ip"} {
		c.audited(t)
		c.statusMatches(false, "other owners") // of pins and seed
		_, err := c.Ofctl("add-flow", c.Bridge, "cookie=0x77,"+foreign+",actions=drop")
		must(t, err)
		c.statusSays("flows of other owners in nkp's tables: 1. Service packets that match one may be lost. ",
			": cookie=0x77,"+foreign+",actions=drop")
		if out, _, status := c.nkp("diff", "--socket", c.socket()); status != 1 || out != "! another owner's flow in nkp's tables: cookie=0x77,"+foreign+",actions=drop\n" {
			t.Errorf("diff, status %d:\n%s", status, out)
		}
		_, err = c.Ofctl("--strict", "del-flows", c.Bridge, foreign)
		must(t, err)
	}
	c.statusMatches(false, "other owners")
}
