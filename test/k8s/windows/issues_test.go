//go:build linux

package windows

import (
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// hnsDown is the code of calls while the service of HNS does not run.
const hnsDown = 0x800706BA

// publicIssue is what a public issue of Kubernetes reports of HNS and kube-proxy (windows/issues_test.go has more).
type publicIssue struct {
	number string
	start  func(h *host) // before the proxy starts; nil: nothing
	hurt   func(h *host) // when it has programmed HNS, or tried
}

func outage(h *host) {
	h.HNS.Inject(hnsfake.Fault{Times: -1, Code: hnsDown, Text: "The RPC server is unavailable."})
	h.HNS.Disconnect()
}

var publicIssues = []publicIssue{
	{number: "135802", hurt: func(h *host) { h.HNS.DropLoadBalancer(h.HNS.LoadBalancers()[0].ID) }},
	{number: "139519", hurt: func(h *host) { outage(h); time.Sleep(40 * time.Second); h.HNS.Heal() }},
	{number: "139503", start: outage, hurt: func(h *host) { time.Sleep(10 * time.Second); h.HNS.Heal() }},
	{number: "141489",
		start: func(h *host) { h.HNS.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"10.99.3.9"}}) },
		hurt:  func(*host) {}},
}

// What public issues report, beside kube-proxy.exe: nkp heals within 30 s and goes on. What kube-proxy does is printed.
func TestPublicIssues(t *testing.T) {
	nightly.Only(t, "it waits for minutes; package windows has these issues without kube-proxy")
	exe, err := kubeProxy()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range publicIssues {
		t.Run(c.number, func(t *testing.T) {
			ours := newHost(t, hns.NetworkL2Bridge, newest)
			took, ended := c.heals(ours, func() {
				ours.agent = ours.Start(nkpExe, ours.args()...)
			})
			if took > 35*time.Second || ended { // the programs are slow here
				t.Errorf("nkp: %v, ended %t; HNS has\n%s\n%s", took, ended, ours.HNS.Dump(), ours.agent.Out.Tail())
			}
			theirs := newHost(t, hns.NetworkL2Bridge, newest)
			theirs.write("node", "apiVersion: v1\nkind: Node\nmetadata: {name: "+nodeName+"}\n"+
				"status: {addresses: [{type: InternalIP, address: "+someAddress(t)+"}]}\n")
			theirTime, theirEnd := c.heals(theirs, func() { theirs.startKubeProxy(exe, freePort(t)) })
			t.Logf("until HNS has both load balancers: nkp %v; kube-proxy %v, its process has ended: %t (a minute: not at all)",
				took, theirTime, theirEnd)
		})
	}
}

// heals starts a proxy for two Services, and returns how long HNS took to be right after the issue's cause had ended, at most a
// minute, and whether the proxy has ended.
func (c *publicIssue) heals(h *host, start func()) (took time.Duration, ended bool) {
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
	h.write("two", simple("two", "10.99.3.2", "100.244.1.2"))
	right := func() bool {
		n := 0
		for _, l := range h.HNS.LoadBalancers() {
			if len(l.PortMappings) > 0 && len(l.HostComputeEndpoints) > 0 {
				n++
			}
		}
		return n == 2
	}
	within := func(limit time.Duration) time.Duration {
		began := time.Now()
		for !right() && time.Since(began) < limit {
			time.Sleep(100 * time.Millisecond)
		}
		return time.Since(began).Round(100 * time.Millisecond)
	}
	if c.start != nil {
		c.start(h)
	}
	start()
	if c.number != "139503" {
		within(time.Minute)
	}
	c.hurt(h)
	took = within(time.Minute)
	ended = h.agent.Ended()
	h.agent.Kill()
	return took, ended
}
