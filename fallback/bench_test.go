//go:build linux

package fallback

import (
	"testing"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// BenchmarkPlan compiles 10,000 Services with 10 endpoints each and writes the input of their transactions.
func BenchmarkPlan(b *testing.B) {
	m := generate(10_000)
	o := DefaultOptions()
	p, err := New(o)
	must(b, err)
	o.Log, o.Hooks = p.log, p.opts.Hooks
	b.ReportAllocs()
	for b.Loop() {
		in := dataplane.NewInbox(func(...k8s.Family) {}, k8s.IPv4)
		w := newWorker(k8s.IPv4, &o, newFakeTables(), legacyLimits, in)
		in.Put(m, everything(m))
		w.takeUpdates()
		c := &change{shared: delta{}}
		for _, n := range w.want.due() {
			w.plan(c, n)
		}
		bytes := len(c.inputs(w.have.shared, true).nat.bytes())
		w.have.wrote(c)
		b.ReportMetric(float64(bytes)/1e6, "MB")
	}
}
