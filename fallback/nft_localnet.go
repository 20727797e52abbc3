//go:build linux

package fallback

import (
	"log/slog"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	nft "github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// nftLocalnet maintains the sysctl route_localnet, which NodePorts at 127.0.0.1 need. It is set only while the chain that protects
// 127.0.0.0/8 from the network is installed. The empty chain nft.LocalnetMarker records that nkp has set it.
type nftLocalnet struct {
	setting setting // nil for IPv6
	log     *slog.Logger
	set     bool   // nkp has set it
	said    string // the last warning
}

func (l *nftLocalnet) cannotSet(text string, err error) {
	if l.said != text {
		l.log.Warn(text, "error", err)
	}
	l.said = text
}

// beforeLocalnet unsets route_localnet if nkp has set it and the chain that protects 127.0.0.0/8 is missing or not wanted. t is the
// installed table; nil: none.
func (w *nftWorker) beforeLocalnet(t *netlink.Table, fixed *nft.Fixed) error {
	l := &w.localnet
	if l.setting == nil {
		return nil
	}
	if t != nil {
		l.set = l.set || slices.Contains(t.ChainNames(), nft.LocalnetMarker)
	}
	at := slices.IndexFunc(fixed.Chains, func(c nft.Chain) bool { return c.Name == nft.LocalnetGuard })
	guarded := false
	if at >= 0 && t != nil {
		has, hook, rules := t.HasChain(&fixed.Chains[at])
		guarded = has && hook && rules
	}
	if !l.set || guarded {
		return nil
	}
	if err := l.setting.set(false); err != nil {
		l.cannotSet(unguarded, err)
		return nil
	}
	l.set = false
	if at >= 0 || t == nil || !slices.Contains(t.ChainNames(), nft.LocalnetMarker) {
		return nil
	}
	b := netlink.NewBatch(w.family)
	b.DeleteChain(nft.LocalnetMarker)
	return w.commit(b)
}

// keepLocalnet sets route_localnet once the table is installed, and before that adds the chain that records it.
func (w *nftWorker) keepLocalnet() error {
	l := &w.localnet
	if l.setting == nil || !w.opts.LocalhostNodePorts {
		return nil
	}
	if on, _ := l.setting.on(); on { // if it cannot be read, it cannot be written either
		return nil
	}
	if err := l.setting.set(false); err != nil { // tests whether it can be written
		l.cannotSet(noLocalhost, err)
		return nil
	}
	b := netlink.NewBatch(w.family)
	b.AddChain(&nft.Chain{Name: nft.LocalnetMarker})
	if err := w.commit(b); err != nil {
		return err
	}
	if err := l.setting.set(true); err != nil {
		l.cannotSet(noLocalhost, err)
		return nil
	}
	l.set = true
	return nil
}

// takeLocalnet records in nkp's table that nkp has set route_localnet, if the table protects 127.0.0.0/8, and reports whether it does.
func takeLocalnet() (bool, error) {
	conn, err := netlink.Open()
	if err != nil {
		return false, nil // there is no nf_tables, and so no table
	}
	defer conn.Close()
	t, err := conn.ReadChains(k8s.IPv4)
	if err != nil || t == nil || !slices.Contains(t.ChainNames(), nft.LocalnetGuard) {
		return false, nil
	}
	b := netlink.NewBatch(k8s.IPv4)
	b.AddChain(&nft.Chain{Name: nft.LocalnetMarker})
	return true, conn.Commit(b)
}
