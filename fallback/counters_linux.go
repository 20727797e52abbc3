package fallback

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// listRules returns a lister of the rules of a family. It does not share Tables with the worker, which may be writing.
func listRules(ctx context.Context, backend string, f k8s.Family) (lister, error) {
	t, err := restore.Open(ctx, restore.Backend(backend), f)
	if err != nil {
		return nil, err
	}
	return func(table rules.Table, chain string) ([]string, error) {
		return t.Counters(ctx, string(table), chain)
	}, nil
}
