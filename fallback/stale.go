package fallback

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// A UDP client that goes on sending keeps its connection, and would go on being sent to an endpoint that is gone: UDP has no end
// of connection. Such connections are deleted.

// maxStale bounds the Service ports whose connections wait to be deleted, which grow in number only while that fails.
const maxStale = 50_000

// staleUDP names the frontends of a UDP Service port whose connections must be looked at, and for each the endpoints that its
// connections may keep. A frontend without address is a NodePort.
type staleUDP map[netip.AddrPort][]netip.AddrPort

// staleForgetter deletes stale UDP connections once the rules are in. It belongs to the worker's goroutine.
type staleForgetter struct {
	kernel  *committer
	forget  func(*staleSet) (int, error) // nil in tests
	waiting map[k8s.PortName]staleUDP    // connections to look at
	pause   time.Duration                // after a failure
	next    time.Time                    // when to try again; zero: at once
}

// note records which connections an update may leave behind. A frontend that the Service port has lost keeps no endpoint,
// unless another Service port has got it.
func (f *staleForgetter) note(n k8s.PortName, before, after item) {
	if n.Protocol != "UDP" {
		return
	}
	s := f.waiting[n]
	if s == nil && len(f.waiting) >= maxStale {
		f.kernel.log.Error("UDP connections to endpoints that are gone stay until their clients pause: too many Services wait for their connections to be deleted",
			"service", n, "waiting", len(f.waiting))
		return
	}
	if s == nil {
		s = staleUDP{}
		f.waiting[n] = s
	}
	for frontend := range s {
		s[frontend] = nil
	}
	note := func(it item, keep bool) {
		if it.port == nil {
			return
		}
		for _, frontend := range it.port.Frontends {
			if frontend.ShadowedBy != "" {
				continue
			}
			at := netip.AddrPortFrom(frontend.Address, frontend.Port)
			s[at] = nil
			if keep {
				s[at] = it.port.Serving
			}
		}
	}
	note(before, false)
	note(after, true)
}

// run deletes the connections that were noted. It comes after the rules, or a client would at once have the same
// connection again. What cannot be deleted is tried again with pauses.
func (f *staleForgetter) run(nodeAddrs []netip.Addr) {
	start := time.Now()
	if len(f.waiting) == 0 || f.forget == nil || start.Before(f.next) {
		return
	}
	n, err := f.forget(newStaleSet(f.waiting, nodeAddrs))
	f.kernel.opts.Hooks.Forgot(f.kernel.family, n, time.Since(start))
	if err != nil {
		f.pause = min(max(2*f.pause, retryMin), retryMax)
		f.next = time.Now().Add(f.pause)
		f.kernel.log.Warn("cannot delete all UDP connections to endpoints that are gone; trying again", "in", f.pause, "services", len(f.waiting), "error", err)
	} else {
		clear(f.waiting)
		f.pause, f.next = 0, time.Time{}
	}
	if n > 0 {
		f.kernel.log.Info("forgot UDP connections to endpoints that are gone", "connections", n)
	}
	f.kernel.report(func(s *FamilyStatus) {
		s.Forgotten += n
		if s.LastForgetError = ""; err != nil {
			s.LastForgetError = err.Error()
		}
	})
}

// staleSet tells which connections to forget.
type staleSet struct {
	at    map[netip.AddrPort][]netip.AddrPort // frontend -> endpoints that may stay
	ports map[uint16][]netip.AddrPort         // NodePort -> the same
	node  map[netip.Addr]bool                 // where NodePorts are
}

func newStaleSet(stale map[k8s.PortName]staleUDP, node []netip.Addr) *staleSet {
	s := &staleSet{at: map[netip.AddrPort][]netip.AddrPort{}, ports: map[uint16][]netip.AddrPort{}, node: map[netip.Addr]bool{}}
	for _, ip := range node {
		s.node[ip] = true
	}
	for _, frontends := range stale {
		for f, serving := range frontends {
			if f.Addr().IsValid() {
				s.at[f] = slices.Concat(s.at[f], serving)
			} else {
				s.ports[f.Port()] = slices.Concat(s.ports[f.Port()], serving)
			}
		}
	}
	return s
}

// stale reports whether to forget a connection.
func (s *staleSet) stale(c *dpctl.Connection) bool {
	return c.Protocol == "UDP" && s.match(c.Frontend, c.Endpoint)
}

// match reports whether to forget a connection with that first destination which is answered by that endpoint.
func (s *staleSet) match(to, by netip.AddrPort) bool {
	serving, ok := s.at[to]
	if !ok && (s.node[to.Addr()] || to.Addr().IsLoopback()) {
		serving, ok = s.ports[to.Port()]
	}
	return ok && !slices.Contains(serving, by)
}
