//go:build linux

package packets

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// What counting costs in the datapath: one client talks to 50 Services that share 3 endpoints, which is when it costs most,
// as without counters established connections of all Services share their cached flows. Counting takes one for each
// Service, endpoint and direction that has traffic, and no more. The rate of connections is logged, not judged: it depends
// on the machine, and is measured in turns.
func TestWhatCountingCosts(t *testing.T) {
	const services, rounds, connections, warm = 50, 3, 20, 1500
	c := newCluster(t, testbed.Options{})
	c.servePods(t)
	for i := range services {
		s := service(nth("svc", i), vip(40, i))
		c.put(s, slice(s, 8080, []discoveryv1.Endpoint{at(c.pods[1].IP4), at(c.pods[2].IP4), at(c.remotes[0].IP4)}...))
	}
	plain := c.flags
	flows, cold, rate := map[bool]int{}, map[bool][]float64{}, map[bool][]float64{}
	many := func(n int, to string) {
		if _, errs := c.pods[0].Many(c.ctx, n, 4, to); len(errs) > 0 {
			t.Fatal(errs[0])
		}
	}
	for range rounds {
		for _, on := range []bool{false, true} {
			c.flags = plain
			if !on {
				c.flags = append(slices.Clone(plain), "--service-counters=false")
			}
			c.run()
			c.settle()
			must(t, c.Settle())
			_, err := c.Appctl("dpctl/del-flows")
			must(t, err)
			began := time.Now()
			for i := range services {
				many(connections, vip(40, i)+":80")
			}
			cold[on] = append(cold[on], services*connections/time.Since(began).Seconds())
			out, err := c.Appctl("dpctl/dump-flows")
			must(t, err)
			flows[on] = max(flows[on], strings.Count(out, "recirc_id("))
			many(warm/3, vip(40, 0)+":80")
			began = time.Now()
			many(warm, vip(40, 0)+":80")
			rate[on] = append(rate[on], warm/time.Since(began).Seconds())
			must(c.t, c.agent.Stop(syscall.SIGTERM))
		}
	}
	t.Logf("cached flows: %d without counters, %d with; new connections per second, best of %d: to all Services at once, nothing cached: %.0f without, %.0f with; to one, all cached: %.0f without, %.0f with",
		flows[false], flows[true], rounds, slices.Max(cold[false]), slices.Max(cold[true]), slices.Max(rate[false]), slices.Max(rate[true]))
	if most := flows[false] + services*3*2 + services*3; flows[true] > most {
		t.Errorf("%d cached flows with counters; %d without call for at most %d", flows[true], flows[false], most)
	}
}
