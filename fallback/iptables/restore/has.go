//go:build linux

package restore

import (
	"context"
	"errors"
)

// Has reports whether a table of any back end and family has the chain. The error wraps ErrBusy, or is the
// context's.
func Has(ctx context.Context, table, chain string) (bool, error) {
	nft, err1 := has(ctx, NFT, table, chain)
	legacy, err2 := has(ctx, Legacy, table, chain)
	if nft || legacy {
		return true, nil
	}
	return false, errors.Join(err1, err2)
}
