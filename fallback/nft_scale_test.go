//go:build linux

package fallback

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// The bounds of TestNFTScale with 10,000 Services of 10 endpoints. The times are far above what an idle machine takes.
const (
	nftScaleStart    = 30 * time.Second
	nftScaleChange   = 10.0      // ms, median
	nftScaleGrowth   = 4.0       // times the median with 1,000 Services; what every Service costs would make it 10
	nftScaleResident = 120 << 10 // kB
)

// TestNFTScale measures the first sync, one endpoint's change and a restart over nftables, with 1,000 and 10,000 Services.
func TestNFTScale(t *testing.T) {
	testbed.Linux.Require(t)
	median := map[int]float64{}
	for _, services := range []int{1_000, 10_000} {
		b, _ := bed(t, testbed.Options{})
		o := defaults(nftables)
		o.SyncPeriod = time.Hour
		in := func(f FamilyStatus) bool { return f.InStep && f.Services == services }
		p := launch(t, b, o)
		begin := time.Now()
		p.ask(request{Op: "generate", N: services})
		first := p.until(begin, in, nftScaleStart)
		for i := range 100 {
			n := p.ipv4().Transactions
			p.ask(request{Op: "replace", N: i * services / 100, To: fmt.Sprintf("10.250.0.%d:80", i)})
			p.until(time.Now(), func(f FamilyStatus) bool { return f.InStep && f.Transactions > n }, time.Minute)
			time.Sleep(5 * time.Millisecond)
		}
		programming := p.ipv4().Programming
		median[services] = programming.P50Milli
		resident := residentOf(t, p)
		p.kill()
		p = launch(t, b, o)
		begin = time.Now()
		p.ask(request{Op: "generate", N: services})
		again := p.until(begin, in, nftScaleStart)
		t.Logf("%d Services: first sync %v; one change p50 %.2f ms, p99 %.2f ms; restart %v, %d changes; resident %d kB",
			services, first, programming.P50Milli, programming.P99Milli, again, p.ipv4().Rules, resident)
		if programming.P50Milli > nftScaleChange {
			t.Errorf("%d Services: one change takes %.2f ms, want at most %.0f", services, programming.P50Milli, nftScaleChange)
		}
		if resident > nftScaleResident {
			t.Errorf("%d Services: resident %d kB, want at most %d", services, resident, nftScaleResident)
		}
	}
	growth := median[10_000] / median[1_000]
	t.Logf("one change: %.2f times as long with 10 times the Services, exponent %.2f", growth, math.Log10(growth))
	if growth > nftScaleGrowth {
		t.Errorf("one change takes %.2f times as long with 10 times the Services", growth)
	}
}

func residentOf(t *testing.T, p *process) int {
	t.Helper()
	usage, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	kB, err := strconv.Atoi(string(regexp.MustCompile(`VmRSS:\s+(\d+)`).FindSubmatch(usage)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kB
}
