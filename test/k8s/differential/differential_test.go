package differential

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/oracle"
)

var (
	seedFlag  = flag.Uint64("seed", 1, "seed of the first case; the others count up from it")
	casesFlag = flag.Int("cases", 10000, "how many cases")
	update    = flag.Bool("update", false, "write the file of the answers that both sides agreed on")
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
	accepted, answers := compare(t, *seedFlag, *casesFlag)
	if *seedFlag != 1 || *casesFlag < 10000 || t.Failed() {
		return
	}
	checkAgreed(t, answers)
	for _, r := range Reasons {
		if accepted[r.Name] == 0 {
			t.Errorf("the accepted difference %q does not occur: take it from the list, or make the generator meet it", r.Name)
		}
	}
}

// checkAgreed compares the answers of the first cases with the file by which test/oracle judges nkp, or writes it.
func checkAgreed(t *testing.T, answers map[uint64]string) {
	t.Helper()
	var text strings.Builder
	for i := range uint64(oracle.AgreedCases) {
		text.WriteString(answers[1+i] + "\n")
	}
	switch {
	case *update:
		if err := os.WriteFile(filepath.Join("..", "..", "oracle", "testdata", "agreed"), []byte(text.String()), 0o644); err != nil {
			t.Error(err)
		}
	case text.String() != oracle.Agreed:
		t.Error("test/oracle/testdata/agreed has other answers; write it anew with -update")
	}
}

// The same from a random seed: every night sees other clusters.
func TestDifferentialRandom(t *testing.T) {
	nightly.Only(t, "the gate's cases are TestDifferential's")
	compare(t, nightly.Seed(t), max(1, *casesFlag/5))
}

// compare runs cases on all processors. It returns how often each accepted difference was met, and each case's answers by its seed.
func compare(t *testing.T, seed uint64, cases int) (accepted map[string]int, answers map[uint64]string) {
	accepted, answers = map[string]int{}, map[uint64]string{}
	var (
		mu      sync.Mutex // what follows
		next    int
		asked   int
		ran     int
		regular int
		failed  int
		wg      sync.WaitGroup
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
				c := oracle.Generate(mine)
				r := replay(c, dir)
				mu.Lock()
				ran++
				asked += r.Asked
				answers[mine] = r.Answers.String()
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
					t.Error(report(mine, c, replay(c, dir)))
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d cases (%d of them through manifests too), %d facts compared, %.1f s", ran, regular, asked, time.Since(start).Seconds())
	for _, r := range slices.SortedFunc(slices.Values(Reasons), func(a, b Reason) int { return accepted[b.Name] - accepted[a.Name] }) {
		t.Logf("%8d accepted: %s", accepted[r.Name], r.Name)
	}
	return accepted, answers
}
