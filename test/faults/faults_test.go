//go:build linux

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/wait"
)

// verdict is what TestFaults counted, for the last line of the run.
var verdict string

// Faults of the agent alone break no connection to a stable Service; after faults of the switch everything works again by
// itself; and neither leaves anything behind, on the switch or in the agent.
func TestFaults(t *testing.T) {
	form := formFromEnv(t)
	c := newCluster(t)
	c.makeServices()
	must(t, c.put(0))
	must(t, c.start())
	must(t, c.settle())
	fleet := c.fleet(c.stableServices())
	warm(t, fleet)
	before, err := c.resources()
	must(t, err)
	t.Log("at first: ", before)

	s := &script{cluster: c, r: rand.New(rand.NewPCG(form.seed, 0)), count: map[string]int{}}
	begin := time.Now()
	fleet.run(form.threads, form.pause)
	must(t, s.play(agentFaults, form.agent, func() bool { return form.enough > 0 && fleet.tally.made.Load() >= form.enough }))
	s.calm(t)
	wait.For(t, "1000 connections, and traffic on held ones", func() bool {
		return fleet.tally.made.Load() >= 1000 && fleet.broken.made.Load() > 0
	})
	fleet.stop()
	took := time.Since(begin)
	t.Logf("faults of the agent alone, %v: %s (%.0f/s)", took.Round(time.Second), fleet.tally, float64(fleet.tally.made.Load())/took.Seconds())
	t.Logf("connections held: %d, round trips on them: %s", fleet.held.Load(), fleet.broken)
	if fleet.tally.failed.Load() > 0 || fleet.broken.failed.Load() > 0 {
		t.Errorf("connections failed while the agent alone was disturbed:\n%s\n%s", fleet.tally.details(), fleet.broken.details())
	}
	made := fleet.tally.made.Load()
	verdict = fmt.Sprintf("under faults of the agent alone, in %v: %d connections made, %d failed; on held ones %d round trips, %d failed",
		took.Round(time.Second), made, fleet.tally.failed.Load(), fleet.broken.made.Load(), fleet.broken.failed.Load())
	c.hasNotGrown(t, "after faults of the agent", before)
	middle, err := c.resources()
	must(t, err)

	fleet.run(form.threads, form.pause)
	must(t, s.play(switchFaults, form.rest(took), func() bool { return false }))
	s.calm(t)
	fleet.stop()
	t.Logf("faults of the switch: %s", fleet.tally)
	t.Logf("connections held: %d, round trips on them: %s", fleet.held.Load(), fleet.broken)
	c.hasNotGrown(t, "after faults of the switch", middle)

	// All is well again: every Service, disrupted or not, answers with its endpoints.
	must(t, c.put(0))
	must(t, c.settle())
	everyone := c.fleet(c.services)
	everyone.run(2, 0)
	wait.For(t, "1000 connections at the end", func() bool { return everyone.tally.made.Load()+everyone.tally.failed.Load() >= 1000 })
	everyone.stop()
	t.Logf("at the end: %s", everyone.tally)
	if everyone.tally.failed.Load() > 0 || everyone.broken.failed.Load() > 0 {
		t.Errorf("not all is well at the end:\n%s\n%s", everyone.tally.details(), everyone.broken.details())
	}
}

// warm uses every target once, so that neighbours are known and the agent is at rest.
func warm(t *testing.T, f *fleet) {
	t.Helper()
	all := int64(0)
	for _, list := range f.targets {
		all += int64(len(list))
	}
	f.run(1, 0)
	wait.For(t, "a connection held to each target", func() bool { return f.held.Load() >= all || f.tally.failed.Load() > 0 })
	f.stop()
	if f.tally.failed.Load() > 0 {
		t.Fatalf("connections fail before anything was disturbed: %s\n%s", f.tally, f.tally.details())
	}
}

// calm ends all disturbance: every Service has endpoints, nothing is left over, and the switch is in step.
func (s *script) calm(t *testing.T) {
	t.Helper()
	s.channel.set(disturbance{})
	s.database.set(disturbance{})
	must(t, s.pod(false))
	for _, v := range s.disruptedServices() {
		v.pods = s.servers
	}
	s.extra = 0
	must(t, s.put(0))
	begin := time.Now()
	must(t, s.settle())
	t.Logf("in step %v after the last fault", time.Since(begin).Round(time.Millisecond))
}
