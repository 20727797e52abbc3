package fallback

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/fallback/xtables"
)

// Available tells why iptables cannot be used on this node; nil: it can.
func Available(ctx context.Context, backend string) error {
	_, err := xtables.Choose(ctx, xtables.Backend(backend))
	return err
}

// Occupied reports whether chains of Services are there already: kube-proxy's, or nkp's own of an earlier run.
func Occupied(ctx context.Context) bool { return xtables.Has(ctx, "nat", rules.Services) }
