package iptables

import (
	"context"
	"errors"
	"slices"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// deferredPart is a part of the deferred rules of shared chains, with the transaction that adds them.
type deferredPart struct {
	transaction
	keys  []ruleKey
	added []*sharedRule
}

func (w *worker) deferredPart(t rules.Table, keys []ruleKey) *deferredPart {
	p := &deferredPart{transaction: transaction{input: newInput(t)}, keys: keys}
	for _, k := range keys {
		if l := w.have.shared[k]; l != nil && l.owners > 0 && !l.present {
			p.addShared(l.SharedRule)
			p.added = append(p.added, l)
		}
	}
	return p
}

// addDeferred adds the rules that were deferred until all Services are installed: first the jumps to
// Services' chains, then, once nkp's chains are hooked, the rules that refuse the other ports of ClusterIPs.
func (w *worker) addDeferred(ctx context.Context) error {
	for _, t := range []rules.Table{rules.NAT, rules.Filter} {
		if t == rules.Filter && !w.have.hooked {
			continue
		}
		var keys []ruleKey
		for k := range w.have.deferred {
			if k.table == t {
				keys = append(keys, k)
			}
		}
		var parts []*deferredPart
		for some := range slices.Chunk(keys, w.limits.deferred) {
			parts = append(parts, w.deferredPart(t, some))
		}
		if err := w.commitDeferred(ctx, parts); err != nil {
			return err
		}
	}
	return nil
}

// commitDeferred commits parts in their order; while one commits, the next are parsed.
func (w *worker) commitDeferred(ctx context.Context, parts []*deferredPart) error {
	defer func() {
		for _, p := range parts {
			p.abandon()
		}
	}()
	for i, p := range parts {
		err := w.commitMeanwhile(ctx, &p.transaction, func() {
			if !w.limits.ahead {
				return
			}
			for _, next := range parts[i+1 : min(i+1+readAhead, len(parts))] {
				_ = next.begin(ctx, w.tables) // it begins again in its turn, which reports the error
			}
		})
		if err := w.deferredDone(ctx, p, err); err != nil {
			return err
		}
	}
	return nil
}

// deferredDone records the result of a part's transaction. If it was refused, its halves are tried, so that
// one rule does not block the others. The refused rule is logged, and retried in the next round.
func (w *worker) deferredDone(ctx context.Context, p *deferredPart, err error) error {
	switch {
	case err == nil:
		for _, l := range p.added {
			l.present = true
		}
		for _, k := range p.keys {
			delete(w.have.deferred, k)
		}
		return nil
	case ctx.Err() != nil || errors.Is(err, restore.ErrBusy):
		return err
	case len(p.keys) == 1:
		w.Log.Error("iptables refused a rule and will retry it; other rules are not affected",
			"chain", p.keys[0].chain, "rule", p.keys[0].rule, "error", err)
		w.Report(func(s *fallback.FamilyStatus) { s.Failed(err) })
		return nil
	}
	half := len(p.keys) / 2
	return w.commitDeferred(ctx,
		[]*deferredPart{w.deferredPart(p.table, p.keys[:half]), w.deferredPart(p.table, p.keys[half:])})
}
