//go:build linux

package fallback_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/shapes"
	"github.com/nkp-proxy/nkp/test/testbed"
)

const scaleHeap = 5 << 10 // bytes of live memory for each Service, at most

// What one endpoint's change costs, and what each Service keeps in memory, does not grow with the number of Services; a restart writes
// what has changed, but for iptables over nf_tables, where so many rules are not read back. TestCostOfAChange shows the same of iptables
// in the gate.
func TestScale(t *testing.T) {
	planes, sizes := []restore.Backend{onNFTables}, []int{100, 1_000}
	if nightly.Is() {
		planes, sizes = append(planes, backends...), []int{1_000, 5_000}
	}
	over(t, planes, func(t *testing.T, backend restore.Backend) {
		type measured struct {
			change cost
			heap   uint64
		}
		var list []measured
		for _, services := range sizes {
			b, _ := bed(t, testbed.Options{})
			o := defaults(backend)
			o.SyncPeriod = time.Hour
			p := launch(t, b, o)
			programmed := func() {
				t.Helper()
				p.ask(request{Op: "generate", N: services})
				p.until("all Services", func(f fallback.FamilyStatus) bool { return f.InStep && f.Services == services })
			}
			programmed()

			// Chains that nothing leads to any more are deleted at a time of their own: the least of several changes has none of that.
			least := cost{math.MaxInt, math.MaxInt, math.MaxUint64}
			const changes = 10
			for i := range changes {
				c := p.ask(request{Op: "change", N: i * services / changes, To: fmt.Sprintf("10.250.0.%d:80", i)}).Cost
				least = cost{min(least.Transactions, c.Transactions), min(least.Rules, c.Rules), min(least.Allocated, c.Allocated)}
				p.until("the change", func(f fallback.FamilyStatus) bool { return f.InStep })
			}
			heap := p.ask(request{Op: "heap"}).Cost.Allocated
			p.kill()
			p = launch(t, b, o)
			programmed()
			restart := p.ipv4().Rules
			if backend != restore.NFT && restart > (changes+1)*max(least.Rules, 2) {
				t.Errorf("%d Services, of which %d have changed: a restart writes %d rules", services, changes, restart)
			}
			t.Logf("%d Services: a change %+v, heap %d kB, %d rules at a restart", services, least, heap>>10, restart)
			list = append(list, measured{least, heap})
		}

		few, many := list[0], list[1]
		if many.change.Transactions > few.change.Transactions || many.change.Rules > few.change.Rules {
			t.Errorf("a change costs %+v with %d Services, %+v with %d", few.change, sizes[0], many.change, sizes[1])
		}
		if many.change.Allocated > 2*few.change.Allocated { // all Services would make it 5
			t.Errorf("a change allocates %d bytes with %d Services, %d with %d", few.change.Allocated, sizes[0], many.change.Allocated, sizes[1])
		}
		if each := int(many.heap-few.heap) / (sizes[1] - sizes[0]); each > scaleHeap {
			t.Errorf("a Service of %d endpoints keeps %d bytes, want at most %d", shapes.Endpoints, each, scaleHeap)
		}
	})
}
