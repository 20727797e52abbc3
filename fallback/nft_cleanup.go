//go:build linux

package fallback

import (
	"context"
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	nft "github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
)

// kubeProxyTable is the name of the tables that kube-proxy has in mode nftables, one in each family.
const kubeProxyTable = "kube-proxy"

// HasKubeProxyTables reports whether kube-proxy's mode nftables has left a table.
func HasKubeProxyTables() (has bool, err error) {
	conn, err := netlink.Open()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	for _, f := range dataplane.Families {
		if has, _, err = conn.HasTable(f, kubeProxyTable); has || err != nil {
			return has, err
		}
	}
	return false, nil
}

// RemoveKubeProxyTables deletes the tables of kube-proxy's mode nftables, and returns their number.
func RemoveKubeProxyTables() (n int, err error) {
	conn, err := netlink.Open()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	for _, f := range dataplane.Families {
		if has, _, err := conn.HasTable(f, kubeProxyTable); err != nil {
			return n, err
		} else if !has {
			continue
		}
		b := netlink.NewBatch(f)
		b.DeleteTable(kubeProxyTable)
		if err := conn.Commit(b); err != nil {
			return n, fmt.Errorf("delete table %s %s: %w", f, kubeProxyTable, err)
		}
		n++
	}
	return n, nil
}

// CleanupNFTables deletes nkp's tables, and unsets route_localnet if nkp has set it for them, unless the back end iptables serves from now on ("":
// none does) and protects 127.0.0.0/8: then it is the setting of that mode. It returns the number of tables. No other table is touched.
func CleanupNFTables(ctx context.Context, iptables string) (n int, err error) {
	conn, err := netlink.Open()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	for _, f := range dataplane.Families {
		t, err := conn.ReadChains(f)
		if err != nil {
			return n, err
		} else if t == nil {
			continue
		}
		if slices.Contains(t.ChainNames(), nft.LocalnetMarker) {
			given := false
			if iptables != "" {
				if given, err = giveLocalnet(ctx, iptables); err != nil {
					return n, err
				}
			}
			if !given {
				err = (routeLocalnet{}).set(false)
			}
			if err != nil {
				return n, fmt.Errorf("%w; table %s, which protects 127.0.0.0/8 from the network, stays", err, nft.TableName)
			}
		}
		b := netlink.NewBatch(f)
		b.DeleteTable(nft.TableName)
		if err := conn.Commit(b); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
