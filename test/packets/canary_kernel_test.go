//go:build linux

package packets

import (
	"context"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// On the kernel planes a datagram of the node's own proves the way from hook output to a socket and back. It leaves no conntrack entry, no
// Service shows, nkp diff stays empty, and what keeps it from passing is named within three canaries: rules of others, and rules of nkp's
// that others delete.
func TestCanaryKernel(t *testing.T) {
	for _, plane := range []string{"nftables", "iptables"} {
		t.Run(plane, func(t *testing.T) {
			if plane == "iptables" {
				needsIPTables(t)
			}
			testCanaryKernel(t, plane)
		})
	}
}

func testCanaryKernel(t *testing.T, plane string) {
	c := newCluster(t, testbed.Options{Plane: testbed.Linux}, "--mode", plane, "--service-cidr", serviceCIDRs)
	c.servePods(t)
	c.put()
	c.runWith("--healthz-data-path")
	c.settle()
	c.canaryPassed(t, 1)
	exec := func(line string) func() {
		return func() { _, _ = c.Exec(c.Node, "sh", "-c", line) }
	}
	c.eventually("no conntrack entry", func() error {
		out, err := c.Exec(c.Node, "cat", "/proc/sys/net/netfilter/nf_conntrack_count")
		if err == nil && out != "0\n" {
			err = errString(out)
		}
		return err
	})
	if out, _, _ := c.nkp("services", "-o", "json", "--socket", c.socket()); strings.Contains(out, "canary") {
		t.Errorf("services: %s", out)
	}
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.runWith("--healthz-data-path")
	c.settle()
	c.canaryPassed(t, 1)
	if out, errOut, status := c.nkp("diff", "--socket", c.socket()); status != 0 {
		t.Errorf("diff: %s%s", out, errOut)
	}
	if out, errOut, status := c.nkp(append([]string{"diff"}, c.common()...)...); status != 0 {
		t.Errorf("diff without the agent: %s%s", out, errOut)
	}

	filter := func(hook, priority, rule string) string {
		return "nft 'add table ip f; add chain ip f c { type filter hook " + hook + " priority " + priority + "; }; add rule ip f c " + rule + "'"
	}
	type fault struct {
		name, line string
		gate       bool
		again      bool // nkp repairs it at its next check
		partial    bool // /healthz does not fail
		says       string
	}
	faults := []fault{
		{name: "output drops", line: filter("output", "-300", "udp dport 28267 drop"), gate: true, says: "in hook output"},
		{name: "output drops behind nkp", line: filter("output", "0", "udp dport 28268 drop"), says: "hook output"},
		{name: "postrouting drops", line: filter("postrouting", "0", "udp dport 28268 drop"), says: "postrouting"},
		{name: "prerouting drops", line: filter("prerouting", "0", "udp dport 28268 drop"), says: "prerouting"},
		{name: "input drops", line: filter("input", "0", "udp dport 28268 drop"), says: "input"},
		{name: "answers dropped in output", line: filter("output", "0", "udp sport 28268 drop"), says: "answer is lost"},
		{name: "answers dropped in input", line: filter("input", "0", "udp sport 28267 drop"), says: "answer is lost"},
		{name: "not tracked", line: filter("output", "-300", "udp dport 28267 notrack"), partial: true, says: "not translated, because a rule of others keeps it from being tracked"},
		{name: "another translation first", line: "nft 'add table ip f; add chain ip f c { type nat hook output priority -150; }; add rule ip f c udp dport 28267 dnat to 127.0.0.9:9'", says: "not "},
	}
	if plane == "iptables" { // nftables repairs its table within milliseconds
		faults = append(faults,
			fault{name: "chain flushed", line: "iptables -t nat -F KUBE-SERVICES", gate: true, again: true, says: "not translated"},
			fault{name: "hook deleted", line: "iptables -t nat -F OUTPUT", again: true, says: "not translated"},
			fault{name: "filter drops", line: "iptables -I OUTPUT -p udp --dport 28268 -j DROP", says: "hook output"})
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if !f.gate {
				nightly.Only(t, "the gate has a rule of others, and one of nkp's that is deleted")
			}
			begun := time.Now()
			exec(f.line)()
			defer func() {
				exec("nft delete table ip f; iptables -D OUTPUT -p udp --dport 28268 -j DROP")()
				c.canaryPassed(t, 1)
			}()
			named := func() (v dataplane.CanaryVerdict) {
				for _, v := range c.status(t).Canary {
					if v.Family == "IPv4" {
						return v
					}
				}
				return v
			}
			c.eventually("a fault that is named", func() error {
				if f.again {
					exec(f.line)()
				}
				if v := named(); v.Fault == "" {
					return errString(strings.Join(v.Passed, ", "))
				}
				return nil
			})
			v := named()
			after := v.FaultSince.Sub(begun)
			late := after > 3*dataplane.CanaryPeriod && !f.again && !onKernelDatapath() // an emulated machine is
			if late || !strings.Contains(v.Fault, f.says) || v.Full {
				t.Errorf("after %v: %+v; want %q", after, v, f.says)
			}
			t.Logf("after %.1f s: %s", after.Seconds(), v.Fault)
			want := 503
			if f.partial {
				want = 200
			}
			if got, body, err := c.get(c.Node, "http://127.0.0.1:10256/healthz"); err != nil || got != want || v.Partial != f.partial {
				t.Errorf("/healthz: %d, %v; want %d\n%s", got, err, want, body)
			}
		})
	}
}

// Where others keep what passes lo from being tracked, only what the node sends to itself through Services fails: by NodePorts, and to
// endpoints at its own addresses. The canary says so, and trace --live says of each what a packet shows.
func TestLoopbackIsNotTracked(t *testing.T) {
	for _, plane := range []string{"nftables", "iptables"} {
		t.Run(plane, func(t *testing.T) {
			if plane == "iptables" {
				nightly.Only(t, "nftables has the same to say of others' rules")
				needsIPTables(t)
			}
			c := newCluster(t, testbed.Options{Plane: testbed.Linux}, "--mode", plane, "--service-cidr", serviceCIDRs)
			there, client := c.remotes[0], c.pods[1].Host
			web, web6, own := service("web", "40.0.0.1", exposed(30080)), service("web6", "fd00:40::1"), service("own", "40.0.0.2")
			_, err := c.Node.ServeTCP(8081)
			must(t, err)
			c.begin(web, slice(web, 8080, at(there.IP4)), web6, slice(web6, 8080, at(there.IP6)), own, slice(own, 8081, at(testbed.NodeIP4)))
			_, err = c.Exec(c.Node, "nft", "add table inet r; add chain inet r out { type filter hook output priority -300; }; "+
				"add rule inet r out oifname lo notrack; add chain inet r in { type filter hook prerouting priority -300; }; add rule inet r in iif lo notrack")
			must(t, err)
			for _, tc := range []struct {
				from *testbed.Host
				to   string
				who  string // "": nobody
			}{
				{c.Node, "40.0.0.1:80", there.Name},
				{c.Node, "[fd00:40::1]:80", there.Name},
				{client, "40.0.0.1:80", there.Name},
				{client, "40.0.0.2:80", c.Node.Name},
				{c.External, "172.16.0.2:30080", there.Name},
				{c.Node, "172.16.0.2:30080", ""},
				{c.Node, "40.0.0.2:80", ""},
			} {
				from := tc.from.IP(netip.MustParseAddrPort(tc.to).Addr()).String()
				r, status := c.trace(t, "tcp", from, tc.to, "--live")
				if tc.who == "" {
					// Refused by the node at once, or reset again and again, because the answer has the endpoint's address.
					ctx, cancel := context.WithTimeout(c.ctx, 3*time.Second)
					if a, err := tc.from.Ask(ctx, "tcp", tc.to); err == nil {
						t.Errorf("%s -> %s: %s answers", tc.from.Name, tc.to, a.Pod)
					}
					cancel()
				} else {
					c.ask(t, tc.from, "tcp", tc.to, tc.who)
				}
				if r.Live == nil || r.Live.Agrees != (tc.who != "") || (status == 0) != r.Live.Agrees {
					t.Errorf("trace from %s to %s: status %d, %+v", from, tc.to, status, r.Live)
				}
			}
			c.eventually("the canary's fault", func() error {
				list := c.status(t).Canary
				for _, v := range list {
					if !v.Partial || !strings.Contains(v.Fault, "notrack") {
						return errString(v.Fault)
					}
				}
				return nil
			})
		})
	}
}
