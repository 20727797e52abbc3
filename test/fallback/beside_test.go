//go:build linux

package fallback

import (
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

// BenchmarkBeside measures nkp and kube-proxy on the same API server, one after the other in one run, at 10,000 Services with 10 endpoints
// each: the first sync, one endpoint's change, and memory. kube-proxy's iptables mode over nf_tables is left out: one transaction for
// everything does not end in ten minutes there. The least of several runs is to be compared, because other work only adds.
//
//	go test -run '^$' -bench Beside -benchtime 1x -timeout 30m ./test/fallback
func BenchmarkBeside(b *testing.B) {
	for _, p := range []struct {
		name  string
		start func(*cluster) *proxy
	}{
		{"kube-proxy iptables, legacy", func(c *cluster) *proxy { return c.startKubeProxy("iptables", "legacy") }},
		{"nkp iptables, nf_tables", func(c *cluster) *proxy { return c.startNKP("nf_tables") }},
		{"nkp iptables, legacy", func(c *cluster) *proxy { return c.startNKP("legacy") }},
		{"kube-proxy nftables", func(c *cluster) *proxy { return c.startKubeProxy("nftables", "nf_tables") }},
		{"nkp nftables", func(c *cluster) *proxy { return c.startNKPWith("--mode", "nftables") }},
	} {
		b.Run(p.name, func(b *testing.B) {
			testbed.Linux.Require(b)
			for range b.N {
				r := measure(b, p.start)
				b.ReportMetric(r.first.Seconds(), "s/first-sync")
				b.ReportMetric(float64(r.change[len(r.change)/2].Microseconds())/1000, "ms/change")
				b.ReportMetric(float64(r.most), "MB")
			}
		})
	}
}

// measure lets a proxy begin on a fresh node, and follow changes.
func measure(t testing.TB, run func(*cluster) *proxy) *result {
	c := newCluster(t, besideServices, 10)
	start := time.Now()
	running := run(c)
	for i := range 40 { // any of them
		c.reach(i*besideServices/40, "")
	}
	c.reach(besideServices-1, "")
	r := &result{first: time.Since(start)}
	own, children := running.cpu()
	t.Logf("first sync %v (processor: %v itself, %v what it ran)", r.first, own, children)
	time.Sleep(2 * time.Second)
	c.api.slice(c.sliceObject(7, c.pods[0]))
	c.reach(7, c.pods[0].Name)
	for i := range 9 {
		time.Sleep(3 * time.Second) // what follows a change ends
		to := c.pods[(i+1)%2]
		changed := time.Now()
		c.api.slice(c.sliceObject(7, to))
		c.reach(7, to.Name)
		r.change = append(r.change, time.Since(changed))
	}
	slices.Sort(r.change)
	r.now, r.most = running.memory()
	t.Logf("one endpoint's change %v, %d MB, at most %d", r.change, r.now, r.most)
	return r
}
