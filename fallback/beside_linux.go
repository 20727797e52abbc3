package fallback

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/fallback/xtables"
)

// Available returns why iptables cannot be used on this node, by what is installed; nil: it can. It runs no program.
func Available(backend string) error { return xtables.Installed(xtables.Backend(backend)) }

// Occupied reports whether chains of Services are there already: kube-proxy's, or nkp's own of an earlier run. An error means
// that the tables could not be looked at.
func Occupied(ctx context.Context) (bool, error) { return xtables.Has(ctx, "nat", rules.Services) }
