package fallback

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// A UDP client that keeps sending keeps its conntrack entry alive, and with it the translation to an endpoint
// that is gone: UDP has no end of connection. nkp deletes such entries.
//
// TCP connections to removed endpoints are deleted where their Service asks for it
// (k8s.AnnotationRemovedEndpoints, closing.go); its rules reset what is left of them.
//
// A TCP client that asked before the rules of a frontend were there repeats its SYN, and conntrack, which
// knows the connection as one that is not translated, has NAT skipped for up to two minutes. nkp deletes
// these entries, too, so that the next SYN is translated.

// scanRest bounds the time of scans for removed endpoints to half of a core: after one that took t, the next
// waits as long.
const scanRest = 1

// maxStale bounds the Service ports with connections to delete. Their number grows only while deletion fails.
const maxStale = 50_000

// staleUDP maps each frontend of a UDP Service port whose connections must be checked to the endpoints that
// these connections may keep. A frontend without address is a NodePort.
type staleUDP map[netip.AddrPort][]netip.AddrPort

// StaleForgetter deletes stale connections once the rules are installed. It belongs to the worker's
// goroutine.
type StaleForgetter struct {
	worker  *Worker
	Forget  func(stale func(*dpctl.Connection) bool) (int, error) // nil in tests
	Wanted  func() iter.Seq[*k8s.ServicePort]                     // all that are to be programmed
	waiting map[k8s.PortName]staleUDP                             // connections to check
	closing closing
	pings   stalePings
	// TCP frontends have come since the last scan
	newTCP      bool
	newTCPAfter time.Time         // no scan for these alone before it
	pause       dataplane.Backoff // after a failure
	next        time.Time         // no scan before it, after a failure; zero: at once
	// rested is the earliest time of a scan for removed endpoints alone: removals in a row share scans
	rested time.Time
}

// Note records which connections may be stale after an update. If the Service port no longer has a frontend,
// connections to it may keep no endpoint, unless another Service port has that frontend now.
func (f *StaleForgetter) Note(n k8s.PortName, before, after *k8s.ServicePort) {
	if f.worker.Opts.AnswerPing {
		f.pings.note(before, after)
	}
	switch n.Protocol {
	case "TCP":
		f.newTCP = f.newTCP || hasNewFrontend(before, after)
		f.closing.note(n, before, after)
		return
	case "UDP":
	default:
		return
	}

	s := f.waiting[n]
	if s == nil && len(f.waiting) >= maxStale {
		f.worker.Log.Error("too many Services have UDP connections to delete: "+
			"connections of this one to endpoints that are gone stay until their clients pause",
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

	note := func(sp *k8s.ServicePort, keep bool) {
		if sp == nil {
			return
		}
		for _, frontend := range sp.Frontends {
			if frontend.ShadowedBy != "" {
				continue
			}
			at := netip.AddrPortFrom(frontend.Address, frontend.Port)
			s[at] = nil
			if keep {
				s[at] = sp.Serving
			}
		}
	}

	note(before, false)
	note(after, true)
}

// hasNewFrontend reports whether a Service port has a frontend that it did not have before.
func hasNewFrontend(before, after *k8s.ServicePort) bool {
	if before == nil || after == nil {
		return after != nil
	}
	type frontend struct {
		netip.AddrPort
		shadowedBy string
	}
	of := func(f *k8s.Frontend) frontend {
		return frontend{netip.AddrPortFrom(f.Address, f.Port), f.ShadowedBy}
	}
	were := make(map[frontend]bool, len(before.Frontends))
	for i := range before.Frontends {
		were[of(&before.Frontends[i])] = true
	}
	return slices.ContainsFunc(after.Frontends, func(a k8s.Frontend) bool { return !were[of(&a)] })
}

// Due returns when Run has something to do without a further change; zero: not.
func (f *StaleForgetter) Due() time.Time {
	switch {
	case len(f.waiting)+len(f.pings.of) > 0:
		return f.next
	case len(f.closing.ports) > 0:
		if f.rested.After(f.next) {
			return f.rested
		}
		return f.next
	case f.newTCP && f.newTCPAfter.After(f.next):
		return f.newTCPAfter
	case f.newTCP:
		return f.next
	}
	return time.Time{}
}

// unclosed returns whose connections to removed endpoints are still to be deleted; "": none are.
func (f *StaleForgetter) unclosed() string {
	if len(f.closing.ports) == 0 || f.Forget == nil {
		return ""
	}
	return fmt.Sprintf("%s: connections to removed endpoints of %s are still to be deleted",
		f.worker.Family, dataplane.Count(len(f.closing.ports), "Service port"))
}

// Run deletes the noted connections. It must run after the rules are installed: otherwise a client's next
// packet would create the same connection again. Failed deletions are retried with backoff.
func (f *StaleForgetter) Run() {
	f.closing.started = f.closing.started || f.worker.In.Idle()
	start := time.Now()
	scanTCP := f.newTCP && !start.Before(f.newTCPAfter)
	waiting := len(f.waiting)+len(f.pings.of) > 0 || len(f.closing.ports) > 0 && !start.Before(f.rested)
	if !waiting && !scanTCP || f.Forget == nil || start.Before(f.next) {
		return
	}

	set := newStaleSet(f.waiting)
	set.wanted, set.early, set.closing = f.Wanted(), f.newTCP, newClosingSet(f.closing.ports)
	set.pings = f.pings
	n, err := f.Forget(set.stale)
	if errors.Is(err, context.Canceled) {
		return // nkp ends
	}

	f.worker.Opts.Hooks.Forgot(f.worker.Family, n, time.Since(start))
	if err != nil {
		pause := f.pause.Failed()
		f.next = time.Now().Add(pause)
		f.worker.Log.Warn("cannot delete all stale connections; trying again",
			"in", pause, "services", len(f.waiting)+len(f.closing.ports), "error", err)
	} else {
		clear(f.waiting)
		clear(f.closing.ports)
		f.pings = stalePings{}
		f.newTCP = false
		f.pause, f.next, f.rested = 0, time.Time{}, time.Now().Add(scanRest*time.Since(start))
	}

	f.newTCPAfter = time.Now().Add(9 * time.Since(start)) // new Services take a tenth of a core at most
	if n > 0 {
		f.worker.Log.Info("deleted stale connections: UDP to endpoints that are gone, "+
			"TCP to removed endpoints that close them, and TCP from before the Service was served",
			"connections", n)
	}

	f.worker.Report(func(s *FamilyStatus) {
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
	// whether NodePorts are served at an address, once a connection has asked for it
	local map[netip.Addr]bool

	early   bool // early TCP connections are stale
	closing closingSet
	pings   stalePings
	wanted  iter.Seq[*k8s.ServicePort]
	served  map[netip.AddrPort]bool // their frontends, once a connection has asked for them
}

func newStaleSet(stale map[k8s.PortName]staleUDP) *staleSet {
	s := &staleSet{
		at:    map[netip.AddrPort][]netip.AddrPort{},
		ports: map[uint16][]netip.AddrPort{},
		local: map[netip.Addr]bool{},
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
	switch c.Protocol {
	case "UDP":
		return s.match(c.Frontend, c.Endpoint)
	case "TCP":
		if c.Endpoint == c.Frontend { // not translated
			return s.early && c.State == "SYN_SENT" && s.serves(c.Frontend)
		}
		return s.closes(c.Frontend, c.Endpoint)
	case conntrack.Ping:
		to, by := c.Frontend.Addr(), c.Endpoint.Addr()
		return to != by && (s.pings.of[to] || s.pings.all && s.servesNodePorts(by))
	}
	return false
}

// serves reports whether at is a TCP frontend other than a NodePort, which the node itself answers until
// there are rules.
func (s *staleSet) serves(at netip.AddrPort) bool {
	if s.served == nil { // most scans meet no early connection
		s.served = map[netip.AddrPort]bool{}
		for port := range s.wanted {
			if port.Name.Protocol != "TCP" {
				continue
			}
			for _, f := range port.Frontends {
				if f.ShadowedBy == "" {
					s.served[netip.AddrPortFrom(f.Address, f.Port)] = true
				}
			}
		}
	}
	return s.served[at]
}

// match reports whether to delete a connection that a client opened to the frontend to and the endpoint by
// answers.
func (s *staleSet) match(to, by netip.AddrPort) bool {
	serving, ok := s.at[to]
	if !ok {
		if serving, ok = s.ports[to.Port()]; ok {
			ok = s.servesNodePorts(to.Addr())
		}
	}
	return ok && !slices.Contains(serving, by)
}

// closes reports whether a client's connection to a frontend ends because its endpoint was removed. A
// frontend with an address takes precedence over NodePorts.
func (s *staleSet) closes(to, by netip.AddrPort) bool {
	if c := s.closing[to]; c != nil {
		return c.removed(by)
	}
	c := s.closing[netip.AddrPortFrom(netip.Addr{}, to.Port())]
	return c != nil && c.removed(by) && !s.serves(to) && s.servesNodePorts(to.Addr())
}

// servesNodePorts reports whether NodePorts are served at an address.
func (s *staleSet) servesNodePorts(a netip.Addr) bool {
	is, known := s.local[a]
	if !known {
		is = isLocal(a)
		s.local[a] = is
	}
	return is
}
