//go:build linux

package packets

import (
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
		t.Run(plane, func(t *testing.T) { testCanaryKernel(t, plane) })
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
		{name: "not tracked", line: filter("output", "-300", "udp dport 28267 notrack"), says: "not translated"},
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
			if after > 3*dataplane.CanaryPeriod && !f.again || !strings.Contains(v.Fault, f.says) || v.Full {
				t.Errorf("after %v: %+v; want %q", after, v, f.says)
			}
			t.Logf("after %.1f s: %s", after.Seconds(), v.Fault)
			if got, body, err := c.get(c.Node, "http://127.0.0.1:10256/healthz"); err != nil || got != 503 {
				t.Errorf("/healthz: %d, %v\n%s", got, err, body)
			}
		})
	}
}
