//go:build linux

package packets

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// What counting costs in the datapath: one client talks to 50 Services that share 3 endpoints, which is when it costs most,
// as without counters established connections of all Services share their cached flows. Counting takes one for each
// Service, endpoint and direction that has traffic, and no more. `nkp services` says why there are no counters.
func TestWhatCountingCosts(t *testing.T) {
	nightly.Only(t, "it measures what counting costs")
	const services, connections = 50, 20
	c := newCluster(t, testbed.Options{})
	c.servePods(t)
	for i := range services {
		s := service(nth("svc", i), vip(40, i))
		c.put(s, slice(s, 8080, []discoveryv1.Endpoint{at(c.pods[1].IP4), at(c.pods[2].IP4), at(c.remotes[0].IP4)}...))
	}
	plain := c.flags
	flows := map[bool]int{}
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
		for i := range services {
			if _, errs := c.pods[0].Many(c.ctx, connections, 4, vip(40, i)+":80"); len(errs) > 0 {
				t.Fatal(errs[0])
			}
		}
		if s := c.services(t).Services[0]; !on && (s.Counters != nil || !strings.Contains(s.CountersNote, "--service-counters")) {
			t.Errorf("services says of counters that are off: %+v, %q", s.Counters, s.CountersNote)
		}
		out, err := c.Appctl("dpctl/dump-flows")
		must(t, err)
		flows[on] = strings.Count(out, "recirc_id(")
		must(t, c.agent.Stop(syscall.SIGTERM))
	}
	t.Logf("cached flows: %d without counters, %d with", flows[false], flows[true])
	if flows[false] == 0 {
		t.Error("nothing was cached")
	}
	if most := flows[false] + services*3*2 + services*3; flows[true] > most {
		t.Errorf("%d cached flows with counters; %d without call for at most %d", flows[true], flows[false], most)
	}
}
