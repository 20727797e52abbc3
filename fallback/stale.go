package fallback

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// staleUDP names the connections of a UDP Service port that lead nowhere any more: UDP has no end of connection, and a
// client that goes on sending would go on being sent there.
type staleUDP struct {
	frontends []netip.AddrPort // it has or had; without address: a NodePort
	now       []netip.AddrPort // those it has
	serving   []netip.AddrPort // connections from those with these stay
}

// noteStale notes which connections an update may leave behind.
func (w *worker) noteStale(n k8s.PortName, before, after item) {
	if n.Protocol != "UDP" {
		return
	}
	s := w.stale[n]
	s.now, s.serving = nil, nil
	for _, it := range []item{before, after} {
		if it.port == nil {
			continue
		}
		for _, f := range it.port.Frontends {
			at := netip.AddrPortFrom(f.Address, f.Port)
			if f.ShadowedBy != "" {
				continue
			}
			if !slices.Contains(s.frontends, at) {
				s.frontends = append(s.frontends, at)
			}
			if it.port == after.port {
				s.now = append(s.now, at)
			}
		}
	}
	if after.port != nil {
		s.serving = after.port.Serving
	}
	w.stale[n] = s
}

// forgetStale deletes the connections that were noted. It comes after the rules, or a client would at once have the same
// connection again.
func (w *worker) forgetStale() {
	if len(w.stale) == 0 || w.forget == nil {
		return
	}
	list := make([]staleUDP, 0, len(w.stale))
	for _, s := range w.stale {
		list = append(list, s)
	}
	clear(w.stale)
	start := time.Now()
	n, err := w.forget(newStaleSet(list, w.nodeAddrs))
	if w.opts.Hooks.Forgot != nil {
		w.opts.Hooks.Forgot(w.family, n, time.Since(start))
	}
	if err != nil {
		w.log.Warn("cannot forget UDP connections to endpoints that are gone; they end when their clients pause", "error", err)
	}
	if n > 0 {
		w.log.Info("forgot UDP connections to endpoints that are gone", "connections", n)
	}
	w.report(func(s *FamilyStatus) { s.Forgotten += n })
}

// staleSet tells which connections to forget.
type staleSet struct {
	at    map[netip.AddrPort][]netip.AddrPort // frontend -> endpoints that may stay
	ports map[uint16][]netip.AddrPort         // NodePort -> the same
	node  map[netip.Addr]bool                 // where NodePorts are
}

func newStaleSet(list []staleUDP, node []netip.Addr) *staleSet {
	s := &staleSet{at: map[netip.AddrPort][]netip.AddrPort{}, ports: map[uint16][]netip.AddrPort{}, node: map[netip.Addr]bool{}}
	for _, ip := range node {
		s.node[ip] = true
	}
	add := func(frontends, serving []netip.AddrPort) {
		for _, f := range frontends {
			if f.Addr().IsValid() {
				s.at[f] = serving
			} else {
				s.ports[f.Port()] = serving
			}
		}
	}
	for _, e := range list {
		add(e.frontends, nil)
	}
	for _, e := range list { // what one Service gave up another may have
		add(e.now, e.serving)
	}
	return s
}

// match reports whether to forget a connection with that first destination which is answered by that endpoint.
func (s *staleSet) match(to, by netip.AddrPort) bool {
	serving, ok := s.at[to]
	if !ok && (s.node[to.Addr()] || to.Addr().IsLoopback()) {
		serving, ok = s.ports[to.Port()]
	}
	return ok && !slices.Contains(serving, by)
}
