package fallback

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/k8s"
)

// batch is a change with its transactions.
type batch struct {
	*change
	inputs
	begun xtables.Transaction // table nat's, if iptables-restore reads it already
}

// batch plans the first of names, as many as one transaction takes.
func (w *worker) batch(names []k8s.PortName) *batch {
	c := &change{links: delta{}}
	limit := w.limits.chains
	if w.hooked {
		limit = w.limits.live
	}
	for len(names) > 0 && len(c.write) < limit && len(c.names) < limit {
		w.plan(c, names[0])
		names = names[1:]
	}
	return &batch{change: c, inputs: c.inputs(w.links, w.hooked)}
}

// begin lets iptables-restore read table nat's part.
func (b *batch) begin(ctx context.Context, t tables) error {
	if b.begun != nil || b.nat.empty() {
		return nil
	}
	tx, err := t.Begin(ctx, b.nat.bytes())
	if err != nil {
		return err
	}
	b.begun = tx
	return nil
}

// abandon forgets a batch whose turn has not come.
func (b *batch) abandon() {
	if b.begun != nil {
		b.begun.Abort()
		b.begun = nil
	}
}

// lead is how many batches iptables-restore reads while another commits. One would do if there were always a processor for
// it; commits must not wait for what could have been done before.
const lead = 2

// queue is the batches whose turn comes next. Their transactions commit one after the other: a second one, prepared while
// another commits, would have to start over.
type queue []*batch

// take gives the first one, nil if there is none.
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

// fill plans what comes after a batch that is not in yet, and lets iptables-restore read it; names are those left. It stops
// at a batch that depends on how those before it end.
func (w *worker) fill(ctx context.Context, q *queue, current *batch, names []k8s.PortName) {
	before := []*batch{current}
	for _, b := range *q {
		before = append(before, b)
		names = names[len(b.names):]
	}
	for len(*q) < lead && len(names) > 0 && w.in.idle() {
		b := w.batch(names)
		for _, other := range before {
			if !w.independent(other, b) {
				return
			}
		}
		if b.begin(ctx, w.tables) != nil {
			return // its turn will come, and tell
		}
		*q, before, names = append(*q, b), append(before, b), names[len(b.names):]
	}
}

// independent reports whether a batch, planned while another is not in yet, writes what it would write after it. What both
// want in a shared chain must be there already, or wait until all Services are in: else both would write it.
func (w *worker) independent(before, b *batch) bool {
	for k, d := range b.links {
		first := before.links[k]
		if first == nil {
			continue
		}
		l := w.links[k]
		waits := !w.hooked && waitsForAll(d.Link)
		if first.n < 0 || d.n < 0 || !waits && (l == nil || !l.present) {
			return false
		}
	}
	return true
}

// commit brings a change to the kernel.
func (w *worker) commit(ctx context.Context, c *change) error {
	return w.commitBatch(ctx, &batch{change: c, inputs: c.inputs(w.links, w.hooked)}, func() {})
}

// commitBatch brings a batch to the kernel, and does something useful while table nat commits.
func (w *worker) commitBatch(ctx context.Context, b *batch, meanwhile func()) error {
	defer b.abandon()
	if err := w.restore(ctx, b.give); err != nil {
		return err
	}
	w.settleLinks(b.change, part{table: rules.Filter, added: true})
	if err := w.commitNAT(ctx, b, meanwhile); err != nil {
		return err
	}
	w.settleLinks(b.change, part{table: rules.NAT, added: b.hooked, deleted: true})
	w.wrote(b.change)
	if err := w.restore(ctx, b.take); err != nil {
		return err
	}
	w.settleLinks(b.change, part{table: rules.Filter, late: b.hooked, deleted: true})
	w.done(b.change, b.held)
	return nil
}

func (w *worker) commitNAT(ctx context.Context, b *batch, meanwhile func()) error {
	if b.nat.empty() {
		meanwhile()
		return nil
	}
	if err := b.begin(ctx, w.tables); err != nil {
		return err
	}
	tx, start, result := b.begun, time.Now(), make(chan error, 1)
	b.begun = nil
	go func() { result <- tx.Commit() }()
	meanwhile()
	err := <-result // it ends here
	return w.committed(b.nat, time.Since(start), err)
}

// maxHeld is how many rules one transaction adds to a shared chain: for 10,000, four take two thirds of the time of one.
const maxHeld = 2500

// giveHeld gives what was held until all Services are in: first what leads to them; what refuses the other ports of
// ClusterIPs once they are served, since nobody waits for it.
func (w *worker) giveHeld(ctx context.Context) error {
	for _, t := range []rules.Table{rules.NAT, rules.Filter} {
		if t == rules.Filter && !w.hooked {
			continue
		}
		var keys []linkKey
		for k := range w.held {
			if k.table == t {
				keys = append(keys, k)
			}
		}
		for part := range slices.Chunk(keys, maxHeld) {
			if err := w.giveLinks(ctx, t, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// giveLinks adds rules that wait to shared chains of a table. If they are refused, halves are tried, so that one does not
// hold up the others; that one is named, and tried again with the next round.
func (w *worker) giveLinks(ctx context.Context, t rules.Table, keys []linkKey) error {
	in := newInput(t)
	var given []*link
	for _, k := range keys {
		if l := w.links[k]; l != nil && l.owners > 0 && !l.present {
			in.link(l.Link)
			given = append(given, l)
		}
	}
	err := w.restore(ctx, in)
	if err == nil {
		for _, l := range given {
			l.present = true
		}
		for _, k := range keys {
			delete(w.held, k)
		}
		return nil
	}
	if ctx.Err() != nil || errors.Is(err, xtables.ErrBusy) {
		return err
	}
	if len(keys) == 1 {
		w.log.Error("iptables refuses a rule; the others go on", "chain", keys[0].chain, "rule", keys[0].rule, "error", err)
		w.report(func(s *FamilyStatus) { s.Failures++; s.LastError = err.Error() })
		return nil
	}
	half := len(keys) / 2
	if err := w.giveLinks(ctx, t, keys[:half]); err != nil {
		return err
	}
	return w.giveLinks(ctx, t, keys[half:])
}
