//go:build linux

package fallback

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const besideServices = 10_000

// result is what one proxy took.
type result struct {
	first     []time.Duration // from the start of the process until all Services answer, run by run
	change    []time.Duration // from the change of an EndpointSlice until a new connection reaches the new pod
	now, most int             // MB, at the end
}

// noise is what percentage of a time another, measured a minute later on a machine that others use too, may be of it without
// meaning anything: the same program took 10.3 to 12.9 s for the same first sync within an hour. Where each comes once before
// the other, half of that is left.
const noise, noiseInTurns = 130, 115

// sync is the mean of the first syncs.
func (r result) sync() (mean time.Duration) {
	for _, d := range r.first {
		mean += d / time.Duration(len(r.first))
	}
	return mean
}

func (r result) median() time.Duration { return r.change[len(r.change)/2] }

// How fast nkp and kube-proxy are on the same API server, one after the other in one run: at 10,000 Services with 10
// endpoints each, the first sync, and one endpoint's change. The two that are closest to each other begin twice, and each is
// once before the other: what drifts meets both alike. kube-proxy's iptables mode over nf_tables is left out: one
// transaction for everything does not end in ten minutes there.
func TestBeside(t *testing.T) {
	testbed.Linux.Require(t)
	for _, build := range []func() (string, error){kubeProxy, testbed.NKP} {
		if _, err := build(); err != nil {
			t.Fatal(err)
		}
	}
	start := map[string]func(*cluster) *proxy{
		"nkp, nf_tables":              func(c *cluster) *proxy { return c.startNKP("nf_tables") },
		"nkp, legacy":                 func(c *cluster) *proxy { return c.startNKP("legacy") },
		"kube-proxy iptables, legacy": func(c *cluster) *proxy { return c.startKubeProxy("iptables", "legacy") },
		"kube-proxy nftables":         func(c *cluster) *proxy { return c.startKubeProxy("nftables", "nf_tables") },
	}
	results := map[string]*result{}
	for _, name := range []string{
		"kube-proxy iptables, legacy", "nkp, nf_tables", "nkp, legacy", "kube-proxy nftables", "nkp, nf_tables", "kube-proxy iptables, legacy",
	} {
		if t.Failed() {
			return // what is left says nothing by itself
		}
		t.Run(name, func(t *testing.T) {
			again := results[name]
			if again == nil {
				results[name] = &result{}
			}
			results[name].measure(t, start[name], again == nil)
		})
	}
	if t.Failed() {
		return
	}
	table := ""
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		table += fmt.Sprintf("\n%-30s first sync %8v (%v)  change p50 %8v  %4d MB, at most %4d", name,
			r.sync().Round(time.Millisecond), r.first, r.median().Round(time.Millisecond), r.now, r.most)
	}
	t.Log(table)
	if len(results) < len(start) {
		return // -run chose some
	}
	legacy, nftables := results["kube-proxy iptables, legacy"], results["kube-proxy nftables"]
	ours := results["nkp, nf_tables"]
	faster := min(legacy.sync(), nftables.sync())
	t.Logf("nkp's first sync over nf_tables takes %.2f of the time of the faster of kube-proxy's two modes", ours.sync().Seconds()/faster.Seconds())
	if ours.sync() > faster*noiseInTurns/100 {
		t.Errorf("nkp's first sync over nf_tables takes %v, that of the faster of kube-proxy's two modes %v", ours.sync(), faster)
	}
	if ours.median() > nftables.median() {
		t.Errorf("nkp follows a change over nf_tables in %v, kube-proxy's nftables mode in %v", ours.median(), nftables.median())
	}
	if ours := results["nkp, legacy"]; ours.sync() > legacy.sync()*noise/100 || ours.median() > legacy.median()*noise/100 {
		t.Errorf("nkp over legacy is slower than kube-proxy's iptables mode over legacy")
	}
}

// measure lets a proxy begin on a fresh node, and follow changes if that is asked for.
func (r *result) measure(t *testing.T, run func(*cluster) *proxy, changes bool) {
	c := newCluster(t, besideServices, 10)
	start := time.Now()
	running := run(c)
	for i := range 40 { // any of them
		c.reach(i*besideServices/40, "", 5*time.Minute)
	}
	c.reach(besideServices-1, "", 5*time.Minute)
	first := time.Since(start)
	r.first = append(r.first, first.Round(time.Millisecond))
	own, children := running.cpu()
	t.Logf("first sync %v (processor: %v itself, %v what it ran)", first, own, children)
	if !changes {
		return
	}
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
}
