//go:build linux

package nftables

import (
	"slices"

	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// closeLocalnet has route_localnet unset if nkp has set it and the chain that protects 127.0.0.0/8 is missing
// or not wanted. t is the installed table; nil: none.
func (w *worker) closeLocalnet(t *netlink.Table, fixed *rules.Fixed) {
	at := slices.IndexFunc(fixed.Chains, func(c rules.Chain) bool { return c.Name == rules.LocalnetGuard })
	guarded := false
	if at >= 0 && t != nil {
		has, hook, same := t.HasChain(&fixed.Chains[at])
		guarded = has && hook && same
	}
	w.Localnet.Close(at >= 0, guarded)
}

// openLocalnet has route_localnet set if that is wanted. The table must be installed.
func (w *worker) openLocalnet() {
	if w.Opts.LocalhostNodePorts {
		w.Localnet.Open()
	}
}

// TakeLocalnet reports whether nkp's table protects 127.0.0.0/8, so that route_localnet stays set for it.
func TakeLocalnet() (bool, error) {
	conn, err := netlink.Open()
	if err != nil {
		return false, nil // there is no nf_tables, and so no table
	}
	defer conn.Close()
	t, err := conn.ReadChains(k8s.IPv4)
	return err == nil && t != nil && slices.Contains(t.ChainNames(), rules.LocalnetGuard), nil
}
