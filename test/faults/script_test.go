//go:build linux

package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// form is how long to disturb, and how hard the clients work.
type form struct {
	seed      uint64
	long      bool
	agent, sw time.Duration // at most to disturb the agent alone, and to disturb the switch
	enough    int64         // connections after which the first part ends early; 0: never
	threads   int           // of clients on each host
	pause     time.Duration // of a client between two connections
}

// formFromEnv reads the environment.
func formFromEnv(t testing.TB) form {
	t.Helper()
	f := form{seed: nightly.Seed(t), threads: 1, pause: 5 * time.Millisecond}
	total := 34 * time.Second
	if os.Getenv("NKP_FAULTS_LONG") != "" {
		f.long, f.enough, f.threads, f.pause = true, 1_000_000, 4, 0
		total = 30 * time.Minute
	}
	if s := os.Getenv("NKP_FAULTS_TIME"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			t.Fatalf("NKP_FAULTS_TIME=%q is not a duration such as 10m", s)
		}
		total = d
	}
	f.agent, f.sw = total*6/10, total*4/10
	what := ""
	if f.long { // the switch gets a fifth, or what a slow machine leaves of it
		f.agent, f.sw = total*9/10, total/5
		what = fmt.Sprintf(", or %d connections", f.enough)
	}
	t.Logf("%v of faults of the agent alone%s, then faults of the switch", f.agent, what)
	return f
}

// rest is how long to disturb the switch after the agent alone was disturbed for so long: no longer in all than the form says.
func (f *form) rest(took time.Duration) time.Duration {
	if !f.long {
		return f.sw
	}
	return min(f.sw, f.agent*10/9-took)
}

// script is what disturbs: a cluster and a source of chance. All that it draws comes from the seed, so that a seed repeats the
// order of faults and their numbers; what happens at the same time elsewhere is not repeated.
type script struct {
	*cluster
	r     *rand.Rand
	extra int            // Services beside the cluster's
	guest *testbed.Pod   // a pod that comes and goes; nil: gone
	count map[string]int // of each fault
}

// fault is one way to disturb. It returns when it is over; the agent may still be at repairing.
type fault struct {
	name string
	do   func(*script) error
}

// play draws faults: first each once, in an order of chance, then any until the time is over or enough says so. Between two
// of them is a pause of chance, often none. What it draws next does not depend on the time.
func (s *script) play(faults []fault, d time.Duration, enough func() bool) error {
	begin := time.Now()
	order := slices.Clone(faults)
	s.r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for i := 0; i < len(order) || time.Since(begin) < d && !enough(); i++ {
		f := faults[s.r.IntN(len(faults))]
		if i < len(order) {
			f = order[i]
		}
		s.count[f.name]++
		at := time.Now()
		if err := f.do(s); err != nil {
			return fmt.Errorf("fault %d, %s: %w", i, f.name, err)
		}
		s.t.Logf("%s  %-40s %v", at.Format("15:04:05.000"), f.name, time.Since(at).Round(time.Millisecond))
		if p, err := s.running(); p == nil {
			return fmt.Errorf("after fault %d, %s: %w", i, f.name, err)
		}
		if s.r.IntN(2) == 0 {
			time.Sleep(s.between(0, 500))
		}
	}
	return nil
}

// between draws a time in milliseconds.
func (s *script) between(lo, hi int) time.Duration {
	return time.Duration(lo+s.r.IntN(hi-lo+1)) * time.Millisecond
}

// wait lets a drawn time pass.
func (s *script) wait(lo, hi int) error {
	time.Sleep(s.between(lo, hi))
	return nil
}

// churn changes the disrupted Services n times, with a drawn number of Services that come and go beside them.
func (s *script) churn(n int) error {
	for range n {
		pods := s.servers
		if s.guest != nil {
			pods = append(slices.Clone(pods), s.guest)
		}
		s.scramble(s.r, pods)
		if s.r.IntN(3) == 0 {
			s.extra = s.r.IntN(300)
		}
		if err := s.put(s.extra); err != nil {
			return err
		}
		s.wait(0, 30)
	}
	return nil
}
