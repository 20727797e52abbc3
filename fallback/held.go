package fallback

import (
	"context"
	"errors"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/fallback/xtables"
)

// heldPart is rules of shared chains that were held, and the transaction that gives them.
type heldPart struct {
	transaction
	keys  []linkKey
	given []*link
}

func (w *worker) heldPart(t rules.Table, keys []linkKey) *heldPart {
	p := &heldPart{transaction: transaction{input: newInput(t)}, keys: keys}
	for _, k := range keys {
		if l := w.links[k]; l != nil && l.owners > 0 && !l.present {
			p.link(l.Link)
			p.given = append(p.given, l)
		}
	}
	return p
}

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
		var parts []*heldPart
		for some := range slices.Chunk(keys, w.limits.held) {
			parts = append(parts, w.heldPart(t, some))
		}
		if err := w.giveParts(ctx, parts); err != nil {
			return err
		}
	}
	return nil
}

// giveParts commits parts in their order; while one commits, the next are read.
func (w *worker) giveParts(ctx context.Context, parts []*heldPart) error {
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
			for _, next := range parts[i+1 : min(i+1+lead, len(parts))] {
				_ = next.begin(ctx, w.tables) // its turn will come, and tell
			}
		})
		if err := w.gave(ctx, p, err); err != nil {
			return err
		}
	}
	return nil
}

// gave notes how the transaction of a part ended. If it was refused, halves are tried, so that one rule does not hold up the
// others; that one is named, and tried again with the next round.
func (w *worker) gave(ctx context.Context, p *heldPart, err error) error {
	switch {
	case err == nil:
		for _, l := range p.given {
			l.present = true
		}
		for _, k := range p.keys {
			delete(w.held, k)
		}
		return nil
	case ctx.Err() != nil || errors.Is(err, xtables.ErrBusy):
		return err
	case len(p.keys) == 1:
		w.log.Error("iptables refuses a rule; the others go on", "chain", p.keys[0].chain, "rule", p.keys[0].rule, "error", err)
		w.report(func(s *FamilyStatus) { s.Failures++; s.LastError = err.Error() })
		return nil
	}
	half := len(p.keys) / 2
	return w.giveParts(ctx, []*heldPart{w.heldPart(p.table, p.keys[:half]), w.heldPart(p.table, p.keys[half:])})
}
