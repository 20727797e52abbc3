//go:build linux

package xtables

import "context"

// Has reports whether a table of any back end and family has the chain.
func Has(ctx context.Context, table, chain string) bool {
	return has(ctx, NFT, table, chain) || has(ctx, Legacy, table, chain)
}
