package iptables

import (
	"context"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
)

// tables is the part of package restore that a worker uses.
type tables interface {
	// Restore commits input for iptables-restore to one table, wholly or not at all.
	Restore(ctx context.Context, input []byte) error
	// Begin starts a transaction that is committed later.
	Begin(ctx context.Context, input []byte) (restore.Transaction, error)
	// Rules returns the rules of one chain; ok is false if there is no such chain.
	Rules(ctx context.Context, table, chain string) (list []string, ok bool, err error)
	// Save calls f for each chain (with rule "") and rule of a table.
	Save(ctx context.Context, table string, f func(chain, rule string)) error
	// ChainNames returns the chains of a table.
	ChainNames(ctx context.Context, table string) ([]string, error)
}

// rulesOf returns the rules of one chain; ok is false if there is no such chain.
func rulesOf(
	ctx context.Context, t tables, table rules.Table, chain string,
) (list []rules.Rule, ok bool, err error) {
	texts, ok, err := t.Rules(ctx, string(table), chain)
	for _, r := range texts {
		list = append(list, rules.Rule(r))
	}
	return list, ok, err
}

// limits fit transactions to the back end.
type limits struct {
	// chains is how many chains one transaction writes or deletes. The time of iptables-nft grows with the
	// square of it, but the kernel visits all chains of the network namespace twice at each commit. Legacy
	// replaces the whole table with each transaction, so that few transactions are best.
	chains int
	// live is the same while Services are in force: the kernel then follows all jumps of the table at each
	// commit (0.3 s for 110,000 chains), so that somewhat fewer transactions are better.
	live int
	// deferred is how many deferred rules one transaction adds to a shared chain: for 10,000, four take two
	// thirds of the time of one.
	deferred int
	// save is the number of chains above which a table is not read back rule by rule: the time of
	// iptables-nft-save grows with the square of it (1.8.9: 1.5 s for 11,000 chains, 2 min for 110,000).
	save int
	// ahead reports whether iptables-restore may read one transaction while another commits. Legacy's may
	// not: it holds the lock.
	ahead bool
}

var (
	nftLimits    = limits{chains: 1800, live: 3000, deferred: 2500, save: 8000, ahead: true}
	legacyLimits = limits{chains: 200_000, live: 200_000, deferred: 2500, save: 10_000_000}
)

// restore commits one transaction.
func (w *worker) restore(ctx context.Context, in *input) error {
	if in.empty() {
		return nil
	}
	start := time.Now()
	err := w.tables.Restore(ctx, in.bytes())
	return w.committed(in, time.Since(start), err)
}

// committed records the result of a transaction.
func (w *worker) committed(in *input, took time.Duration, err error) error {
	w.took = took
	w.Runs++
	if err == nil {
		w.Log.Debug("committed", "table", in.table, "chains", in.declared, "rules", in.rules, "took", took)
	}
	return w.Committed(dataplane.Restore{
		Backend: w.backend,
		Table:   string(in.table),
		Rules:   in.rules,
		Took:    took,
		Err:     err,
	})
}
