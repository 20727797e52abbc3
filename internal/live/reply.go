package live

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// replyStates are what conntrack sets for an answer, once for each pass through it.
var replyStates = slices.Repeat([]string{"--ct-next", "trk,est,rpl"}, 4)

// reply has the switch trace the answer of each endpoint that the packet's walks lead to. Answers that are
// lost are differences of r.Live. Where the answer was asked for, r.Reply.Live has all of the comparison with
// the model's explanation. list holds the existing connections.
func (v *view) reply(ctx context.Context, q trace.Question, list []dpctl.Connection) error {
	l := trace.NewLive()
	n := 0
	var done []netip.AddrPort
	for _, w := range v.walks {
		if !w.endpoint.IsValid() || len(w.ports()) == 0 || slices.Contains(done, w.endpoint) {
			continue
		}
		if done = append(done, w.endpoint); len(done) > maxPaths {
			continue
		}
		arrives, err := v.replyFrom(ctx, l, q, w)
		if err != nil && v.r.Reply == nil && ctx.Err() == nil { // it was not asked for
			v.Step("whether the answer of %s comes back is not known: %v", w.endpoint, err)
			continue
		}
		if err != nil {
			return err
		}
		if arrives {
			n++
		}
	}

	for _, lost := range l.Differences {
		v.Differ("%s", lost)
		if v.Verdict == trace.Deliver {
			v.Verdict = trace.Uncertain
		}
	}
	if v.r.Reply == nil {
		return nil
	}
	l.Verdict = v.r.Reply.Verdict
	v.r.Reply.Live = l

	if len(done) > maxPaths {
		l.Step("and the answers of %d more endpoints", len(done)-maxPaths)
	}

	switch tried := min(len(done), maxPaths); {
	case tried == 0 && v.r.Verdict == trace.Deliver:
		l.Verdict = trace.Drop
		l.Differ("there is no answer, because the packet reaches no endpoint")
	case tried > 0 && n == 0:
		l.Verdict = trace.Drop
	case n < tried:
		l.Verdict = trace.Mixed
	}

	// ofproto/trace keeps the endpoint's address, so that flows that match the frontend's are not met.
	if v.doubt && l.Verdict == trace.Deliver {
		l.Verdict = trace.Uncertain
		l.Differ("the answer leaves the switch, but whether it arrives is not certain: " +
			"see what does not agree on the packet's way")
	}

	addReplySteps(l, list)
	return nil
}

// replyFrom traces the answer of the endpoint of w. It reports whether the answer leaves the switch.
// ofproto/trace does not undo translations. So it traces the answer to a masqueraded connection as it comes,
// to the node, and a second time as it is after its destination was restored; the flows after that do not
// depend on how it came.
func (v *view) replyFrom(
	ctx context.Context,
	l *trace.Live,
	q trace.Question,
	w *walk,
) (arrives bool, err error) {
	mark := pipeline.ReadMark(w.reg1)
	back := trace.Question{
		From:     w.endpoint,
		To:       netip.AddrPortFrom(q.From.Addr(), cmp.Or(q.From.Port(), defaultSourcePort)),
		Protocol: q.Protocol,
	}
	ends := []trace.Question{back}
	seen := v.nodeIP(q.From.Addr())
	masqueraded := seen.IsValid() && mark.Masquerade && !v.Config.Elsewhere(k8s.FamilyOf(seen))
	if masqueraded && !slices.Contains(v.Config.LocalIPs, w.endpoint.Addr()) {
		back.To = netip.AddrPortFrom(seen, back.To.Port())
		if ends = append([]trace.Question{back}, ends...); seen == q.From.Addr() {
			ends = ends[:1]
		}
	}

	for i, one := range ends {
		source := k8s.Pod
		if slices.Contains(v.Config.LocalIPs, one.From.Addr()) {
			source = k8s.ThisNode
		}

		p, err := v.enter(one, &trace.Result{Source: source})
		if err != nil {
			return false, err
		}

		p.flags, p.mark = flow.TCPSyn|flow.TCPAck, w.reg1
		text, err := v.Daemon.Trace(ctx, append([]string{v.Bridge, p.flowText(one, 1)}, replyStates...)...)
		if err != nil {
			return false, err
		}
		y, err := parseWalk(text, v.Config.Layout.ChoosesByHash)
		if err != nil {
			return false, err
		}

		translates := i < len(ends)-1
		if translates {
			at := slices.IndexFunc(y.hits, func(h hit) bool {
				return h.table == int(v.Config.Layout.UnSNATTable())
			})
			if at >= 0 {
				l.Step("from %s to %s: %s; conntrack restores %s",
					one.From, one.To.Addr(), v.describeAll(ctx, y.hits[:at]), q.From.Addr())
				continue
			}
		}

		ports := y.ports()
		if len(ports) > 0 && !translates {
			l.Step("from %s to %s: %s; out by the datapath's port %s",
				one.From, one.To.Addr(), v.describeAll(ctx, y.hits), strings.Join(ports, ", "))
			return true, nil
		}

		l.Step("from %s to %s: %s", one.From, one.To.Addr(), v.describeAll(ctx, y.hits))
		why := "it is not brought back to " + q.From.Addr().String() +
			", as which the connection was masqueraded"
		if last := y.final(v.Config.Layout.CounterTable()); len(ports) == 0 {
			if _, ours := v.Config.Layout.PortOfCookie(last.cookie); ours || last.none {
				why = "at " + last.String()
			} else {
				why = v.foreignFlowText(last)
			}
		}
		l.Differ("the answer of %s is lost: %s", one.From, why)
		return false, nil
	}
	return false, nil
}

// describeAll joins the descriptions of flows.
func (v *view) describeAll(ctx context.Context, hits []hit) string {
	var list []string
	for i := range hits {
		list = append(list, v.describe(ctx, &hits[i]))
	}
	return strings.Join(list, "; ")
}

// nodeIP returns the address that nkp masquerades a client's connection as; the zero Addr: none.
func (v *view) nodeIP(client netip.Addr) netip.Addr {
	return k8s.FamilyOf(client).First(v.Config.NodeIPs)
}

// addReplySteps adds a step for each existing connection: what conntrack does to its answers.
func addReplySteps(l *trace.Live, list []dpctl.Connection) {
	failingFirst(list)
	n := 0
	for i := range list {
		c := &list[i]
		if c.Endpoint == c.Frontend {
			continue
		}
		if n++; n <= maxConnections {
			l.Step("an existing connection (%s): an answer from %s to %s becomes one from %s to %s%s",
				c, c.Endpoint, c.Seen, c.Frontend, c.Client, answer(c))
		}
	}
	if n > maxConnections {
		l.Step("and %d more existing connections", n-maxConnections)
	}
}
