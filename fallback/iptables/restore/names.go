//go:build linux

package restore

import "context"

// ChainNames returns the names of all chains of a table. With nf_tables it asks the kernel itself:
// iptables-nft-save takes minutes to sort a hundred thousand chains.
func (t *Tables) ChainNames(ctx context.Context, table string) (names []string, err error) {
	if t.Backend == NFT {
		defer t.progress()
		chains, err := nftChains(t.Family, table)
		for _, c := range chains {
			names = append(names, c.name)
		}
		return names, err
	}
	err = t.Save(ctx, table, func(chain, rule string) {
		if rule == "" {
			names = append(names, chain)
		}
	})
	return names, err
}
