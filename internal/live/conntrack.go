package live

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/trace"
)

// matchesQuestion reports whether a connection matches the question. If the question leaves the client's port
// open, any port matches.
func matchesQuestion(c *dpctl.Connection, q trace.Question) bool {
	return c.Protocol == q.Protocol && c.Frontend == q.To && c.Client.Addr() == q.From.Addr() &&
		(q.From.Port() == 0 || c.Client.Port() == q.From.Port())
}

// matchingConnections returns the connections listed by each that the question is about, and what the
// result's endpoints did with all clients'.
func matchingConnections(each func(func(*dpctl.Connection) error) error, q trace.Question, r *trace.Result) (
	list []dpctl.Connection, outcomes map[netip.AddrPort]*dpctl.Outcomes, err error) {
	outcomes = map[netip.AddrPort]*dpctl.Outcomes{}
	for _, text := range r.Endpoints {
		at, _ := netip.ParseAddrPort(text)
		outcomes[at] = &dpctl.Outcomes{}
	}
	err = each(func(c *dpctl.Connection) error {
		if o := outcomes[c.Endpoint]; o != nil {
			o.Add(c)
		}
		if matchesQuestion(c, q) {
			list = append(list, *c)
		}
		return nil
	})
	return list, outcomes, err
}

// setSeen sets Seen to the address that the endpoints see. A translated connection has a second entry,
// with the same client, in a zone of its own.
func setSeen(list, masqueraded []dpctl.Connection) {
	for i := range list {
		for j := range masqueraded {
			c, m := &list[i], &masqueraded[j]
			if m.Protocol == c.Protocol && m.Client == c.Client && m.Frontend == c.Endpoint {
				c.Seen = m.Seen
			}
		}
	}
}

// maxConnections bounds how many connections are named one by one.
const maxConnections = 5

// answer describes what the endpoint did, for a connection that was not established; "" for any other. The
// states are Open vSwitch's (lib/ct-dpif.h, CT_DPIF_TCP_STATES). Its userspace datapath has TIME_WAIT for a
// connection that was reset later, too.
func answer(c *dpctl.Connection) string {
	switch {
	case c.Refused:
		return "; the endpoint refused it"
	case c.State == "SYN_SENT", c.Protocol == "UDP" && c.Unanswered:
		return "; the endpoint has not answered it"
	case c.State == "CLOSED":
		return "; it was reset"
	}
	return ""
}

// failingFirst sorts connections: failed ones first, then by state, then the most recently used ones first.
func failingFirst(list []dpctl.Connection) {
	slices.SortStableFunc(list, func(a, b dpctl.Connection) int {
		fine := func(c *dpctl.Connection) int {
			if answer(c) != "" {
				return 0
			}
			return 1
		}
		return cmp.Or(fine(&a)-fine(&b), cmp.Compare(a.State, b.State), cmp.Compare(b.Expires, a.Expires))
	})
}

// addOutcomes adds a step and a doubt for each candidate endpoint with many failed connections, from any
// client. That it does not answer UDP may be normal, and is no doubt.
func addOutcomes(l *trace.Live, r *trace.Result, outcomes map[netip.AddrPort]*dpctl.Outcomes) {
	for _, text := range r.Endpoints {
		at, _ := netip.ParseAddrPort(text)
		if o := outcomes[at]; o != nil && o.Problem(time.Now()) != "" {
			l.Step("endpoint %s: %s", at, o.Problem(time.Now()))
			if r.Verdict == trace.Deliver {
				l.Doubt("endpoint %s: %s", at, o.Problem(time.Now()))
			}
		}
		if o := outcomes[at]; o != nil && r.Verdict == trace.Deliver && o.Silence(time.Now()) != "" {
			l.Unknown = append(l.Unknown, fmt.Sprintf("whether %s answers: %s", at, o.Silence(time.Now())))
		}
	}
}

// addConnections adds a step for each connection that exists already: where it goes. It adds a doubt if an
// endpoint answered none of the client's.
func addConnections(l *trace.Live, r *trace.Result, list []dpctl.Connection) {
	failingFirst(list)

	answered := map[netip.AddrPort]bool{}
	for i := range list {
		if c := &list[i]; outcomeOf(c) == trace.Answered {
			answered[c.Endpoint] = true
		}
	}

	for i := range list[:min(len(list), maxConnections)] {
		c := &list[i]
		seen := ""
		if c.Seen.IsValid() && c.Seen != c.Client.Addr() {
			seen = fmt.Sprintf(", masqueraded as %s", c.Seen)
		}
		still := answer(c)
		isCandidate := slices.Contains(r.Endpoints, c.Endpoint.String())
		if r.Verdict == trace.Deliver && !isCandidate && c.Endpoint != c.Frontend {
			still = "; it stays there although new connections do not go there any more" + still
		}

		o := outcomeOf(c)
		failing := o == trace.Unanswered || o == trace.Refused
		if r.Verdict == trace.Deliver && isCandidate && failing && !answered[c.Endpoint] {
			answered[c.Endpoint] = true // one is enough
			l.Doubt("an existing connection (%s) to %s%s", c, c.Endpoint, answer(c))
		}

		if c.Endpoint == c.Frontend {
			l.Step("an existing connection (%s): not translated, since it was opened%s", c, seen)
			continue
		}
		l.Step("an existing connection (%s): goes to %s since it was opened%s%s", c, c.Endpoint, seen, still)
	}

	if more := len(list) - maxConnections; more > 0 {
		l.Step("and %d more existing connections", more)
	}
}

// usage adds a step about the limits of the conntrack table, and a difference if a new connection does not
// fit.
func (s *Switch) usage(ctx context.Context, l *trace.Live, r *trace.Result) {
	if r.Verdict != trace.Deliver {
		return
	}
	u := s.Usage(ctx)
	l.Step("conntrack: %s", &u)
	for _, f := range u.Fills() {
		if f.Full() && (f.Zone != s.Config.Layout.ZoneSNAT || r.Masquerade != trace.Never) {
			l.Differ("%s: full, so that a new connection fails", &f)
			if l.Verdict == trace.Deliver {
				l.Verdict = trace.Uncertain // existing connections go on
			}
		}
	}
}
