//go:build linux

package nftables

import (
	"fmt"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
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

// Cleanup deletes nkp's tables, and unsets route_localnet if nkp has set it for them, unless take, if not
// nil, reports that iptables serves from now on and protects 127.0.0.0/8. It returns the number of tables. No
// other table is touched.
func Cleanup(take func() (bool, error)) (n int, err error) {
	conn, err := netlink.Open()
	if err != nil {
		return 0, err
	}
	defer conn.Close()

	for _, f := range dataplane.Families {
		t, err := conn.ReadChains(f)
		if err != nil {
			return n, err
		}

		if f == k8s.IPv4 {
			if _, err := fallback.ReleaseLocalnet(take); err != nil {
				return n, fmt.Errorf("%w; table %s, which protects 127.0.0.0/8 from the network, stays",
					err, rules.TableName)
			}
		}
		if t == nil {
			continue
		}

		b := netlink.NewBatch(f)
		b.DeleteTable(rules.TableName)
		if err := conn.Commit(b); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
