//go:build linux

package iptables

import (
	"log/slog"
	"testing"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/shapes"
)

// BenchmarkPlan compiles 10,000 Services with 10 endpoints each and writes the input of their transactions.
func BenchmarkPlan(b *testing.B) {
	m := shapes.Many(10_000)
	o := fallback.DefaultOptions()
	o.Log = slog.New(slog.DiscardHandler)
	b.ReportAllocs()
	for b.Loop() {
		in := dataplane.NewInbox(func(...k8s.Family) {}, k8s.IPv4)
		w := newWorker(fallback.NewWorker("iptables", k8s.IPv4, &o, in), newFakeTables(), legacyLimits)
		in.Put(m, m.Everything())
		w.TakeUpdates(w)
		c := &change{shared: delta{}}
		names, _ := w.Due()
		for _, n := range names {
			w.plan(c, n)
		}
		bytes := len(c.inputs(w.have.shared, true).nat.bytes())
		w.have.recordChains(c)
		b.ReportMetric(float64(bytes)/1e6, "MB")
	}
}
