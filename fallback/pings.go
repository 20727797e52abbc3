package fallback

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// stalePings are the pings whose conntrack entries are to be deleted: table nat sees the first of them only,
// so that a client that goes on would be answered for ever. One that still is to be answered gets a new entry
// by its next ping.
type stalePings struct {
	of map[netip.Addr]bool // addresses of Services
	// all: those of all addresses that lead to an address of the node; it is not known whose these were
	all bool
}

// note records the addresses of a Service port that changes, if that can change who gets an answer.
func (p *stalePings) note(before, after *k8s.ServicePort) {
	if before == nil || after != nil && samePings(before, after) {
		return
	}
	if len(p.of) >= maxStale {
		p.all = true
		return
	}
	if p.of == nil {
		p.of = map[netip.Addr]bool{}
	}
	for i := range before.Frontends {
		if f := &before.Frontends[i]; f.Type != k8s.NodePort {
			p.of[f.Address] = true
		}
	}
}

// samePings reports whether a Service port answers the same clients at the same addresses.
func samePings(a, b *k8s.ServicePort) bool {
	return (len(a.ClusterEndpoints) == 0) == (len(b.ClusterEndpoints) == 0) &&
		(len(a.LocalEndpoints) == 0) == (len(b.LocalEndpoints) == 0) &&
		slices.EqualFunc(a.Frontends, b.Frontends, func(f, g k8s.Frontend) bool {
			return f.Address == g.Address && f.Policy == g.Policy && f.ShadowedBy == g.ShadowedBy &&
				slices.Equal(f.SourceRanges, g.SourceRanges)
		})
}
