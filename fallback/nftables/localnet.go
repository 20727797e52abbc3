//go:build linux

package nftables

import (
	"slices"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// The worker maintains the sysctl route_localnet, which NodePorts at 127.0.0.1 need. It is set only while the chain that protects
// 127.0.0.0/8 from the network is installed. The empty chain rules.LocalnetMarker records that nkp has set it.

// beforeLocalnet unsets route_localnet if nkp has set it and the chain that protects 127.0.0.0/8 is missing or not wanted. t is the
// installed table; nil: none.
func (w *worker) beforeLocalnet(t *netlink.Table, fixed *rules.Fixed) error {
	l := &w.localnet
	if l.Setting == nil {
		return nil
	}
	if t != nil {
		l.IsSet = l.IsSet || slices.Contains(t.ChainNames(), rules.LocalnetMarker)
	}
	at := slices.IndexFunc(fixed.Chains, func(c rules.Chain) bool { return c.Name == rules.LocalnetGuard })
	guarded := false
	if at >= 0 && t != nil {
		has, hook, same := t.HasChain(&fixed.Chains[at])
		guarded = has && hook && same
	}
	if !l.IsSet || guarded {
		return nil
	}
	if err := l.Set(false); err != nil {
		l.CannotSet(fallback.Unguarded, err)
		return nil
	}
	l.IsSet = false
	if at >= 0 || t == nil || !slices.Contains(t.ChainNames(), rules.LocalnetMarker) {
		return nil
	}
	b := netlink.NewBatch(w.Family)
	b.DeleteChain(rules.LocalnetMarker)
	return w.commit(b)
}

// keepLocalnet sets route_localnet once the table is installed, and before that adds the chain that records it.
func (w *worker) keepLocalnet() error {
	l := &w.localnet
	if l.Setting == nil || !w.Opts.LocalhostNodePorts {
		return nil
	}
	if on, _ := l.On(); on { // if it cannot be read, it cannot be written either
		return nil
	}
	if err := l.Set(false); err != nil { // tests whether it can be written
		l.CannotSet(fallback.NoLocalhost, err)
		return nil
	}
	b := netlink.NewBatch(w.Family)
	b.AddChain(&rules.Chain{Name: rules.LocalnetMarker})
	if err := w.commit(b); err != nil {
		return err
	}
	if err := l.Set(true); err != nil {
		l.CannotSet(fallback.NoLocalhost, err)
		return nil
	}
	l.IsSet = true
	return nil
}

// TakeLocalnet records in nkp's table that nkp has set route_localnet, if the table protects 127.0.0.0/8, and reports whether it does.
func TakeLocalnet() (bool, error) {
	conn, err := netlink.Open()
	if err != nil {
		return false, nil // there is no nf_tables, and so no table
	}
	defer conn.Close()
	t, err := conn.ReadChains(k8s.IPv4)
	if err != nil || t == nil || !slices.Contains(t.ChainNames(), rules.LocalnetGuard) {
		return false, nil
	}
	b := netlink.NewBatch(k8s.IPv4)
	b.AddChain(&rules.Chain{Name: rules.LocalnetMarker})
	return true, conn.Commit(b)
}
