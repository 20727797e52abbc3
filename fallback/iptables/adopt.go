package iptables

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// adopt reads back the installed rules and starts from them: matching rules stay untouched, others are
// replaced in place, and unwanted ones are deleted when everything else is installed.
func (w *worker) adopt(ctx context.Context) error {
	s, err := w.readBack(ctx)
	if err != nil {
		return fmt.Errorf("read back the installed rules: %w", err)
	}
	w.have.reset()
	s.eachShared(w.want.fixed, w.have.shared.addInstalled)
	for name, d := range s.own {
		w.have.chains[name] = chain{digest: d}
	}
	missing, _ := hookDiff(&w.want.fixed, s)
	w.have.hooked = len(missing) == 0
	w.allDirty()
	w.Log.Info("read back the installed rules",
		"serviceChains", len(s.own), "sharedRules", len(w.have.shared), "hooked", w.have.hooked)
	return nil
}

// installFixed creates missing fixed chains, those that do not depend on Services, and rewrites changed ones.
// rules.Canary is kube-proxy's empty chain, whose absence shows that a table was flushed: no canary packet.
func (w *worker) installFixed(ctx context.Context) error {
	mangle := newInput(rules.Mangle)
	if _, ok, err := w.tables.Rules(ctx, string(rules.Mangle), rules.Canary); err != nil {
		return err
	} else if !ok {
		mangle.chain(rules.Canary)
	}

	ins := []*input{mangle}
	for _, t := range []rules.Table{rules.Filter, rules.NAT} {
		in := newInput(t)
		for _, name := range append([]string{rules.Canary}, w.want.fixed.Shared[t]...) {
			if _, ok, err := w.tables.Rules(ctx, string(t), name); err != nil {
				return err
			} else if !ok {
				in.chain(name)
			}
		}

		for _, c := range w.want.fixed.Chains[t] {
			have, ok, err := rulesOf(ctx, w.tables, t, c.Name)
			if err != nil {
				return err
			}
			if ok && digest(have) == digest(c.Rules) {
				continue
			}
			in.chain(c.Name)
			for _, r := range c.Rules {
				in.append(c.Name, r)
			}
		}
		ins = append(ins, in)
	}

	for _, in := range ins {
		if err := w.restore(ctx, in); err != nil {
			return fmt.Errorf("table %s, the chains that all Services share: %w", in.table, err)
		}
	}
	return nil
}

// complete does the work that must follow all Services: it adds missing hooks and the rules for packets that
// match no Service, and removes unwanted rules.
func (w *worker) complete(ctx context.Context) error {
	if err := w.hook(ctx); err != nil {
		return err
	}
	if err := w.addDeferred(ctx); err != nil {
		return err
	}
	last := slices.Concat(w.want.fixed.SharedRules, w.want.fixed.Last)
	c := &change{shared: delta{}}
	c.shared.count(w.have.last, -1)
	c.shared.count(last, +1)
	if err := w.commit(ctx, c); err != nil {
		return err
	}
	w.have.last = last
	if err := w.sweep(ctx); err != nil {
		return err
	}
	w.due = nothing
	if w.CheckAt.IsZero() {
		w.CheckAt = time.Now().Add(w.Opts.SyncPeriod)
	}
	return nil
}

// sweep removes unwanted rules of shared chains, and marks unreferenced Services' chains for deletion. It
// keeps all rules and chains of refused Services.
func (w *worker) sweep(ctx context.Context) error {
	kept := map[ruleKey]bool{}
	keptChains := map[string]bool{}
	for _, r := range w.Refused.All() {
		s := compile(w.want.compiler, r.Port, w.want.items[r.Port])
		for _, l := range s.SharedRules {
			kept[keyOf(l)] = true
		}
		for _, c := range s.Chains {
			keptChains[c.Name] = true
		}
	}

	for _, t := range []rules.Table{rules.NAT, rules.Filter} {
		in := newInput(t)
		var gone []ruleKey
		for k, l := range w.have.shared {
			if k.table == t && l.present && !kept[k] && l.owners <= 0 {
				in.delete(l.Chain, l.Rule)
				gone = append(gone, k)
			}
		}

		if err := w.restore(ctx, in); err != nil {
			w.due = fullReadBack
			return fmt.Errorf("table %s, delete unwanted rules: %w", t, err)
		}
		for _, k := range gone {
			delete(w.have.shared, k)
		}
	}

	for name, c := range w.have.chains {
		if !c.used && !keptChains[name] {
			w.have.garbage[name] = true
		}
	}
	return nil
}
