package differential

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

var (
	seedFlag  = flag.Uint64("seed", 1, "seed of the first case; the others count up from it")
	casesFlag = flag.Int("cases", 10000, "how many cases")
)

// shrinkLimit is how long a failing case may be made smaller; stopAt is how many are reported.
const (
	shrinkLimit = 20 * time.Second
	stopAt      = 3
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard()) // kube-proxy's code tells of every odd object
	os.Exit(m.Run())
}

// nkp and kube-proxy's own code agree on random clusters, but for the accepted differences.
func TestDifferential(t *testing.T) {
	accepted := compare(t, *seedFlag, *casesFlag)
	if *casesFlag < 10000 || t.Failed() {
		return
	}
	for _, r := range Reasons {
		if accepted[r.Name] == 0 {
			t.Errorf("the accepted difference %q does not occur: take it from the list, or make the generator meet it", r.Name)
		}
	}
}

// The same from a random seed: every run sees other clusters.
func TestDifferentialRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	compare(t, seed, max(1, *casesFlag/5))
}

// compare runs cases on all processors and gives how often each accepted difference was met.
func compare(t *testing.T, seed uint64, cases int) map[string]int {
	var (
		mu       sync.Mutex // what follows
		next     int
		asked    int
		ran      int
		regular  int
		failed   int
		accepted = map[string]int{}
		wg       sync.WaitGroup
	)
	start := time.Now()
	for range runtime.GOMAXPROCS(0) {
		dir := t.TempDir()
		wg.Go(func() {
			for {
				mu.Lock()
				mine := seed + uint64(next)
				done := next >= cases || failed >= stopAt
				next++
				mu.Unlock()
				if done {
					return
				}
				c := Generate(mine)
				r := c.Run(dir)
				mu.Lock()
				ran++
				asked += r.Asked
				if c.Regular {
					regular++
				}
				for name, n := range r.Accepted {
					accepted[name] += n
				}
				if len(r.Failures) > 0 {
					failed++
				}
				mu.Unlock()
				if len(r.Failures) > 0 {
					c = shrink(c, failsLike(r.Failures[0], dir), shrinkLimit)
					t.Error(report(mine, c, c.Run(dir)))
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d cases (%d of them through manifests too), %d facts compared, %.1f s", ran, regular, asked, time.Since(start).Seconds())
	for _, r := range slices.SortedFunc(slices.Values(Reasons), func(a, b Reason) int { return accepted[b.Name] - accepted[a.Name] }) {
		t.Logf("%8d accepted: %s", accepted[r.Name], r.Name)
	}
	return accepted
}
