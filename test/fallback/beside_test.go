//go:build linux

package fallback

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const besideServices = 10_000

// result is what one proxy took.
type result struct {
	first     time.Duration   // from the start of the process until all Services answer
	change    []time.Duration // from the change of an EndpointSlice until a new connection reaches the new pod
	now, most int             // MB, at the end
}

// noise is what percentage of a time another, measured a minute later on a machine that others use too, may be of it without
// meaning anything: the same program took 10.3 to 12.9 s for the same first sync within an hour.
const noise = 130

func (r *result) median() time.Duration { return r.change[len(r.change)/2] }

// How fast nkp and kube-proxy are on the same API server, one after the other in one run: at 10,000 Services with 10
// endpoints each, the first sync, and one endpoint's change. kube-proxy's iptables mode over nf_tables is left out: one
// transaction for everything does not end in ten minutes there.
func TestBeside(t *testing.T) {
	testbed.Linux.Require(t)
	for _, build := range []func() (string, error){kubeProxy, testbed.NKP} {
		if _, err := build(); err != nil {
			t.Fatal(err)
		}
	}
	proxies := []struct {
		name  string
		start func(*cluster) *proxy
	}{
		{"kube-proxy iptables, legacy", func(c *cluster) *proxy { return c.startKubeProxy("iptables", "legacy") }},
		{"nkp iptables, nf_tables", func(c *cluster) *proxy { return c.startNKP("nf_tables") }},
		{"nkp iptables, legacy", func(c *cluster) *proxy { return c.startNKP("legacy") }},
		{"kube-proxy nftables", func(c *cluster) *proxy { return c.startKubeProxy("nftables", "nf_tables") }},
		{"nkp nftables", func(c *cluster) *proxy { return c.startNKPWith("--mode", "nftables") }},
	}
	results := map[string]*result{}
	for _, p := range proxies {
		if t.Failed() {
			return // what is left says nothing by itself
		}
		t.Run(p.name, func(t *testing.T) { results[p.name] = measure(t, p.start) })
	}
	if t.Failed() {
		return
	}
	table := ""
	for _, p := range proxies {
		if r := results[p.name]; r != nil {
			table += fmt.Sprintf("\n%-30s first sync %8v  change p50 %9v, of %d at most %9v  %4d MB, at most %4d", p.name,
				r.first.Round(time.Millisecond), r.median().Round(100*time.Microsecond), len(r.change), slices.Max(r.change).Round(100*time.Microsecond), r.now, r.most)
		}
	}
	t.Log(table)
	if len(results) < len(proxies) {
		return // -run chose some
	}
	legacy, nftables := results["kube-proxy iptables, legacy"], results["kube-proxy nftables"]
	faster := min(legacy.first, nftables.first)
	ours := results["nkp nftables"]
	t.Logf("nkp nftables: first sync %.2f of the faster of kube-proxy's two modes, a change %.3f of kube-proxy nftables",
		ours.first.Seconds()/faster.Seconds(), ours.median().Seconds()/nftables.median().Seconds())
	if ours.first > faster/2 || ours.median() > nftables.median()/5 {
		t.Errorf("nkp's nftables mode takes more than half of kube-proxy's first sync, or than a fifth of its nftables mode's change")
	}
	if ours := results["nkp iptables, nf_tables"]; ours.first > nftables.first*noise/100 {
		t.Errorf("nkp's iptables mode over nf_tables begins more slowly than kube-proxy's nftables mode")
	}
	if ours := results["nkp iptables, legacy"]; ours.first > legacy.first*noise/100 || ours.median() > legacy.median()*noise/100 {
		t.Errorf("nkp's iptables mode over legacy is slower than kube-proxy's")
	}
}

// measure lets a proxy begin on a fresh node, and follow changes.
func measure(t *testing.T, run func(*cluster) *proxy) *result {
	c := newCluster(t, besideServices, 10)
	start := time.Now()
	running := run(c)
	for i := range 40 { // any of them
		c.reach(i*besideServices/40, "", 5*time.Minute)
	}
	c.reach(besideServices-1, "", 5*time.Minute)
	r := &result{first: time.Since(start)}
	own, children := running.cpu()
	t.Logf("first sync %v (processor: %v itself, %v what it ran)", r.first, own, children)
	time.Sleep(2 * time.Second)
	c.api.slice(c.sliceObject(7, c.pods[0]))
	c.reach(7, c.pods[0].Name, time.Minute)
	for i := range 9 {
		time.Sleep(3 * time.Second) // what follows a change ends
		to := c.pods[(i+1)%2]
		c.api.slice(c.sliceObject(7, to))
		r.change = append(r.change, c.reach(7, to.Name, time.Minute))
	}
	slices.Sort(r.change)
	r.now, r.most = running.memory()
	t.Logf("one endpoint's change %v (of %v), %d MB, at most %d", r.median(), r.change, r.now, r.most)
	return r
}
