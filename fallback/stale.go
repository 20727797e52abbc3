package fallback

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// A UDP client that keeps sending keeps its conntrack entry alive, and with it the translation to an endpoint that is gone: UDP
// has no end of connection. nkp deletes such entries.

// maxStale bounds the Service ports with connections to delete. Their number grows only while deletion fails.
const maxStale = 50_000

// staleUDP maps each frontend of a UDP Service port whose connections must be checked to the endpoints that these connections
// may keep. A frontend without address is a NodePort.
type staleUDP map[netip.AddrPort][]netip.AddrPort

// staleForgetter deletes stale UDP connections once the rules are installed. It belongs to the worker's goroutine.
type staleForgetter struct {
	kernel  *committer
	forget  func(*staleSet) (int, error) // nil in tests
	waiting map[k8s.PortName]staleUDP    // connections to check
	pause   time.Duration                // after a failure
	next    time.Time                    // earliest retry; zero: at once
}

// note records which connections may be stale after an update. If the Service port no longer has a frontend, connections to it
// may keep no endpoint, unless another Service port has that frontend now.
func (f *staleForgetter) note(n k8s.PortName, before, after item) {
	if n.Protocol != "UDP" {
		return
	}
	s := f.waiting[n]
	if s == nil && len(f.waiting) >= maxStale {
		f.kernel.log.Error("too many Services have UDP connections to delete: connections of this one to endpoints that are gone stay until their clients pause",
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

// run deletes the noted connections. It must run after the rules are installed: otherwise a client's next packet would create
// the same connection again. Failed deletions are retried with backoff.
func (f *staleForgetter) run(nodeAddrs []netip.Addr) {
	start := time.Now()
	if len(f.waiting) == 0 || f.forget == nil || start.Before(f.next) {
		return
	}
	n, err := f.forget(newStaleSet(f.waiting, nodeAddrs))
	f.kernel.opts.Hooks.Forgot(f.kernel.family, n, time.Since(start))
	if err != nil {
		f.pause = backOff(f.pause)
		f.next = time.Now().Add(f.pause)
		f.kernel.log.Warn("cannot delete all UDP connections to endpoints that are gone; trying again", "in", f.pause, "services", len(f.waiting), "error", err)
	} else {
		clear(f.waiting)
		f.pause, f.next = 0, time.Time{}
	}
	if n > 0 {
		f.kernel.log.Info("deleted UDP connections to endpoints that are gone", "connections", n)
	}
	f.kernel.report(func(s *FamilyStatus) {
		s.Forgotten += n
		if s.LastForgetError = ""; err != nil {
			s.LastForgetError = err.Error()
		}
	})
}

// staleSet determines which connections to delete.
type staleSet struct {
	at    map[netip.AddrPort][]netip.AddrPort // frontend -> endpoints that may stay
	ports map[uint16][]netip.AddrPort         // NodePort -> the same
	node  map[netip.Addr]bool                 // addresses that serve NodePorts
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

// stale reports whether to delete a connection.
func (s *staleSet) stale(c *dpctl.Connection) bool {
	return c.Protocol == "UDP" && s.match(c.Frontend, c.Endpoint)
}

// match reports whether to delete a connection that a client opened to the frontend to and the endpoint by answers.
func (s *staleSet) match(to, by netip.AddrPort) bool {
	serving, ok := s.at[to]
	if !ok && (s.node[to.Addr()] || to.Addr().IsLoopback()) {
		serving, ok = s.ports[to.Port()]
	}
	return ok && !slices.Contains(serving, by)
}
