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
	begun xtables.Transaction // table nat's, if it has begun

	// Set if table nat's commits already, before the batch's turn.
	since  time.Time
	result chan error
}

// start commits table nat's part before the batch's turn.
func (b *batch) start() {
	tx := b.begun
	b.begun, b.since, b.result = nil, time.Now(), make(chan error, 1)
	go func() { b.result <- tx.Commit() }()
}

// started tells whether the batch commits already. Then it must have its turn.
func (b *batch) started() bool { return b != nil && b.result != nil }

// wait waits until what has started has ended.
func (b *batch) wait() {
	if b.started() {
		b.result <- <-b.result
	}
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

// batchAhead plans the batch after one that is not in yet, and lets iptables-restore read it. As long as nothing leads to
// Services it commits too: iptables-nft-restore spends as much time on preparing a commit as the kernel on the commit, and
// starts over by itself if another came between. It gives nil if the two have rules in common, since these depend on how the
// first ends.
func (w *worker) batchAhead(ctx context.Context, names []k8s.PortName, before *batch) *batch {
	b := w.batch(names)
	for k := range b.links {
		if before.links[k] != nil {
			return nil
		}
	}
	if !b.nat.empty() {
		tx, err := w.tables.Begin(ctx, b.nat.bytes())
		if err != nil {
			return nil // its turn will come, and tell
		}
		b.begun = tx
		if !w.hooked && b.give.empty() {
			b.start()
		}
	}
	return b
}

// abandon forgets a batch whose turn has not come. What it wrote already is written again in its turn.
func (b *batch) abandon() {
	b.wait()
	if b != nil && b.begun != nil {
		b.begun.Abort()
		b.begun = nil
	}
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
	if !b.started() {
		if b.begun == nil {
			tx, err := w.tables.Begin(ctx, b.nat.bytes())
			if err != nil {
				return err
			}
			b.begun = tx
		}
		b.start()
	}
	meanwhile()
	err := <-b.result
	b.result = nil // it ends here
	return w.committed(b.nat, time.Since(b.since), err)
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
