package fallback

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// Available returns an error if iptables cannot be used on this node because programs are not installed. It runs none.
func Available(backend string) error { return restore.Installed(restore.Backend(backend)) }

// Occupied reports whether chains of Services exist already: kube-proxy's, or nkp's own of an earlier run. An error means that
// the tables could not be read.
func Occupied(ctx context.Context) (bool, error) { return restore.Has(ctx, "nat", rules.Services) }
