package iptables

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// batch is a change with its transactions.
type batch struct {
	*change
	inputs
	transaction // table nat's
}

// batch plans a change of the first of names, as many as one transaction may hold.
func (w *worker) batch(names []k8s.PortName) *batch {
	c := &change{shared: delta{}}
	limit := w.limits.chains
	if w.have.hooked {
		limit = w.limits.live
	}
	for len(names) > 0 && len(c.write) < limit && len(c.names) < limit {
		w.plan(c, names[0])
		names = names[1:]
	}
	return w.batchOf(c)
}

func (w *worker) batchOf(c *change) *batch {
	in := c.inputs(w.have.shared, w.have.hooked)
	return &batch{change: c, inputs: in, transaction: transaction{input: in.nat}}
}

// queue holds the planned batches, in the order of their commits.
type queue []*batch

// take returns the first one, nil if there is none.
func (q *queue) take() *batch {
	if len(*q) == 0 {
		return nil
	}
	b := (*q)[0]
	*q = (*q)[1:]
	return b
}

func (q *queue) abandon() {
	for _, b := range *q {
		b.abandon()
	}
	*q = nil
}

// fill plans the batches after one that has not committed yet, and has iptables-restore parse them. names are
// the items after that batch. It stops at a batch that depends on the outcome of an earlier one.
func (w *worker) fill(ctx context.Context, q *queue, current *batch, names []k8s.PortName) {
	before := []*batch{current}
	for _, b := range *q {
		before = append(before, b)
		names = names[len(b.names):]
	}
	for len(*q) < readAhead && len(names) > 0 && w.In.Idle() {
		b := w.batch(names)
		for _, other := range before {
			if !w.independent(other, b) {
				return
			}
		}
		if b.begin(ctx, w.tables) != nil {
			return // it begins again in its turn, which reports the error
		}
		*q, before, names = append(*q, b), append(before, b), names[len(b.names):]
	}
}

// independent reports whether a batch is the same, planned before another has committed or after. A rule that
// both need in a shared chain must be installed already, or be deferred until all Services are installed:
// otherwise both would add it.
func (w *worker) independent(before, b *batch) bool {
	for k, d := range b.shared {
		first := before.shared[k]
		if first == nil {
			continue
		}
		l := w.have.shared[k]
		waits := !w.have.hooked && waitsForAll(d.SharedRule)
		if first.n < 0 || d.n < 0 || !waits && (l == nil || !l.present) {
			return false
		}
	}
	return true
}

// commit commits a change to the kernel.
func (w *worker) commit(ctx context.Context, c *change) error {
	return w.commitBatch(ctx, w.batchOf(c), func() {})
}

// commitBatch commits a batch to the kernel, and calls meanwhile while table nat commits.
func (w *worker) commitBatch(ctx context.Context, b *batch, meanwhile func()) error {
	defer b.abandon()
	if err := w.restore(ctx, b.beforeNAT); err != nil {
		return err
	}
	w.have.settleShared(b.change, part{table: rules.Filter, added: true})
	if err := w.commitMeanwhile(ctx, &b.transaction, meanwhile); err != nil {
		return err
	}
	w.have.settleShared(b.change, part{table: rules.NAT, added: b.hooked, deleted: true})
	w.have.recordChains(b.change)
	if err := w.restore(ctx, b.afterNAT); err != nil {
		return err
	}
	w.have.settleShared(b.change, part{table: rules.Filter, addedAfter: b.hooked, deleted: true})
	w.done(b.change, b.deferred)
	return nil
}
