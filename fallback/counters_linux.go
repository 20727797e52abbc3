package fallback

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/k8s"
)

// listNAT returns what lists table nat of a family; it is not the worker's, which may be writing.
func listNAT(ctx context.Context, backend string, f k8s.Family) (lister, error) {
	t, err := xtables.Open(ctx, xtables.Backend(backend), f)
	if err != nil {
		return nil, err
	}
	return func(chain string) ([]string, error) {
		return t.Counters(ctx, string(rules.NAT), chain)
	}, nil
}
