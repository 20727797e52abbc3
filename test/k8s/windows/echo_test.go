//go:build linux

package windows

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// nkp.exe after a crash, with an HNS that alters everything it may: nothing is written. Each alteration by itself, and
// older versions, are in package windows (TestAlteredEchoes, which prints the table; TestOwnTests runs it as a Windows
// program).
func TestRestartWithAlteredEchoes(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest)
	h.HNS.SetEcho(func(kind string, o hnsfake.Object) {
		o["ID"] = strings.ToUpper(o["ID"].(string))
		if len(o) == 1 {
			return
		}
		flags, _ := o["Flags"].(float64)
		switch kind {
		case "LoadBalancer":
			o["Flags"] = flags + 64
			delete(o, "SourceVIP")
		case "Endpoint":
			o["Flags"] = flags + 8
			o["MacAddress"] = "00-AA-BB-CC-DD-EE"
			delete(o, "Policies")
		}
	})
	h.write("all", strings.Join(many(20, 2), "---\n"))
	h.start()
	h.has(20)
	h.settled()
	before := h.HNS.Dump()
	h.agent.Kill()
	h.HNS.Calls()
	h.start()
	h.settled()
	if n := writes(h.HNS.Calls()); n != 0 || h.HNS.Dump() != before {
		t.Errorf("a restart made %d changes", n)
	}
	if s := h.status(); s.Objects.Altered != 80 || !s.InStep { // 20 load balancers and VIPs, 40 pods
		t.Errorf("status %+v", s)
	}
}

// A load balancer that HNS's first API reports as degraded is created again.
func TestDegradedLoadBalancer(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest, "--iptables-sync-period", "1s")
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
	h.start()
	h.has(1)
	id := h.HNS.LoadBalancers()[0].ID
	h.HNS.SetState(id, 4)
	h.agent.Kill() // a new agent reads States by its first audit, this one 5 minutes after it did
	h.start()
	h.until("a new load balancer", func() bool {
		l := h.HNS.LoadBalancers()
		return len(l) == 1 && l[0].ID != id
	})
	h.until("the agent is in step", func() bool { return h.status().InStep })
	if out := h.agent.Out.String(); !strings.Contains(out, "HNS reports State 4") || !strings.Contains(out, "replaced a load balancer") {
		t.Errorf("the agent printed\n%s", out)
	}
}
