package live

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// view is one comparison: the paths that the packet can take through the switch, and the findings.
type view struct {
	*Switch
	*trace.Live
	r *trace.Result
	// inPort is the number of the port by which the packet enters, or LOCAL.
	inPort string
	// ports are the datapath's numbers of the bridge's ports, by their OpenFlow numbers.
	ports map[uint32]string
	walks []*walk // at least one; those of all endpoints begin alike
	// differences are the switch's, before the packet was followed.
	differences *Differences
	// doubt is set if something may keep the packet, or its answer, from arriving, although the switch sends
	// it out.
	doubt bool
}

// narrate adds a step for each flow that the packet matched up to the choice of an endpoint.
func (v *view) narrate(ctx context.Context) {
	w := v.walks[0]
	n := len(w.hits)
	if w.group != 0 {
		n = w.before
	}
	for i := range w.hits[:n] {
		v.Step("%s", v.describe(ctx, &w.hits[i]))
	}
}

// describe returns what a step says of a flow.
func (v *view) describe(ctx context.Context, h *hit) string {
	match := cmp.Or(h.match, "anything else")
	switch id, ours := v.Config.Layout.PortOfCookie(h.cookie); {
	case h.none:
		return fmt.Sprintf("table %d: no flow matches", h.table)
	case !ours:
		return fmt.Sprintf("table %d: %s (a flow that is not nkp's, cookie %#x)", h.table, match, h.cookie)
	case id == 0:
		return fmt.Sprintf("table %d: %s", h.table, match)
	default:
		return fmt.Sprintf("table %d: %s, of %s", h.table, match, v.name(ctx, id))
	}
}

func (s *Switch) name(ctx context.Context, id uint32) string {
	if n, ok := s.Owner(ctx, id); ok {
		return n.String()
	}
	return fmt.Sprintf("an unknown Service port (id %d)", id)
}

// judge reports what the switch does with the packet, and compares that with the model.
func (v *view) judge(ctx context.Context, q trace.Question) error {
	w := v.walks[0]
	mark := pipeline.ReadMark(w.reg1)
	if mark.Service {
		if err := v.judgeDelivery(ctx, w, mark, q); err != nil {
			return err
		}
	}

	v.Verdict = v.verdict()
	anew := v.Verdict != trace.Deliver && v.choosesAnew()
	if anew {
		v.Verdict = trace.Uncertain
		v.Differ("the endpoint that session affinity chooses now does not get the packet; " +
			"nkp changes the choice of clients without a pin every few seconds")
	}

	switch v.Verdict {
	case trace.Reject:
		v.Step("refused: the packet goes to nkp, which answers it")
	case trace.Drop:
		v.Step("dropped")
	case trace.Untouched:
		v.Step("left alone")
	}

	switch {
	case v.Verdict == v.r.Verdict:
	case v.Verdict == trace.Mixed:
		v.Differ("the switch delivers packets to some endpoints only, the model says %s", v.r.Verdict)
	case v.Verdict != trace.Uncertain:
		v.Differ("the switch says %s, the model %s", v.Verdict, v.r.Verdict)
	}

	v.addEndpointPaths(ctx)
	v.reportMatchedForeign()
	v.reportDifferences(ctx, q)

	if v.doubt && v.Verdict == trace.Deliver {
		v.Verdict = trace.Uncertain
	}
	if v.Verdict == trace.Uncertain && !anew {
		v.Differ("the packet leaves the switch, but whether it and its answer arrive is not certain")
	}

	return nil
}

// choosesAnew reports whether the packet's endpoint is one of several, and chosen by session affinity's seed.
func (v *view) choosesAnew() bool {
	return v.r.Verdict == trace.Deliver && len(v.r.Endpoints) > 1 &&
		slices.ContainsFunc(v.walks, func(w *walk) bool {
			return slices.ContainsFunc(w.hits, func(h hit) bool {
				return h.table == int(v.Config.Layout.SeedTable())
			})
		})
}

// verdict returns the verdict over all paths: Mixed or Uncertain if they differ.
func (v *view) verdict() trace.Verdict {
	lost := func(verdict trace.Verdict) bool { return verdict == trace.Drop || verdict == trace.Reject }
	var all trace.Verdict
	for _, w := range v.walks {
		switch one, _ := v.outcome(w); {
		case all == "" || one == all:
			all = one
		case lost(all) && lost(one):
			all = trace.Drop // nothing arrives
		case lost(all) && one == trace.Deliver || all == trace.Deliver && lost(one):
			return trace.Mixed
		default:
			all = trace.Uncertain
		}
	}
	return all
}

// outcome returns the verdict for one path, and the reason if the packet is dropped there or the verdict is
// uncertain.
func (v *view) outcome(w *walk) (verdict trace.Verdict, why string) {
	last := w.final(v.Config.Layout.CounterTable())
	_, ours := v.Config.Layout.PortOfCookie(last.cookie)
	ports := w.ports()

	switch {
	case w.forked:
		return trace.Uncertain, "a flow sends copies of the packet on different paths"
	case w.refused() && ours && last.table == int(v.Config.Layout.RejectTable()):
		return trace.Reject, ""
	case w.refused():
		return trace.Uncertain, "it goes to a controller: " + last.String()
	case len(ports) > 0 && w.endpoint.IsValid():
		if pod, here := v.pod(w.endpoint.Addr()); here && !ours && v.missed(last, ports, pod) {
			return trace.Uncertain, fmt.Sprintf("it leaves by the datapath's port %s, "+
				"not by that of the endpoint, OpenFlow port %d: %s",
				strings.Join(ports, ", "), pod.OFPort, v.foreignFlowText(last))
		}
		return trace.Deliver, ""
	case len(ports) > 0 && pipeline.ReadMark(w.reg1).Service:
		return trace.Uncertain, "it leaves without translation"
	case len(ports) > 0:
		return trace.Untouched, ""
	case last.none:
		return trace.Drop, fmt.Sprintf("no flow of table %d matches", last.table)
	case w.last.empty != 0:
		return trace.Drop, fmt.Sprintf("group %d has no bucket, or one that does nothing", w.last.empty)
	case w.last.skipped != "":
		return trace.Drop, fmt.Sprintf("ovs-vswitchd says \"%s\" of the port in %s", w.last.skipped, last)
	case len(last.actions) == 0:
		return trace.Drop, fmt.Sprintf("ovs-vswitchd executes no action of the flow %s, "+
			"as for a port that may not receive: look at port %s (ovs-ofctl mod-port, STP)",
			last.key(), v.inPort)
	case last.normal():
		return trace.Uncertain, "the switch has learned that the packet's Ethernet address is where it " +
			"comes from"
	case !ours:
		return trace.Drop, v.foreignFlowText(last)
	}
	return trace.Drop, "by nkp's flow " + last.String()
}

// missed reports whether a foreign flow, which decided by which of the datapath's ports a packet to a pod
// leaves, left the pod's out. Where the flow leaves that to MAC learning, several ports may be the pod's (a
// bond). Without local delivery the packet comes to the pod by the router.
func (v *view) missed(h *hit, ports []string, pod pipeline.Pod) bool {
	if h.normal() || !v.Config.LocalDelivery && slices.Contains(ports, v.ports[v.Config.Uplink]) {
		return false
	}
	number, known := v.ports[pod.OFPort]
	return known && !slices.Contains(ports, number)
}

// foreignFlowText describes a foreign flow, and what to do about it.
func (s *Switch) foreignFlowText(h *hit) string {
	if h.priority > math.MaxUint16 {
		return fmt.Sprintf("by a flow of ovs-vswitchd's own, which OpenFlow can neither list nor delete: %s",
			h)
	}
	return fmt.Sprintf("by another owner's flow: %s. nkp leaves flows of others alone: "+
		"find the owner by the cookie (ovs-ofctl -O OpenFlow15 dump-flows %s 'cookie=%#x/-1'), "+
		"or delete it: "+
		"ovs-ofctl -O OpenFlow15 --strict del-flows %s '%s'", h, s.Bridge, h.cookie, s.Bridge, h.key())
}

// maxPaths bounds how many paths are described one by one.
const maxPaths = 5

// addEndpointPaths adds a step for each path after the choice of an endpoint, and a difference where the
// packet is dropped or may not arrive. Endpoints whose paths are equal share a step.
func (v *view) addEndpointPaths(ctx context.Context) {
	type tail struct {
		text, why string
		verdict   trace.Verdict
	}

	var order []tail
	to := map[tail][]string{}
	for _, w := range v.walks {
		var t tail
		t.verdict, t.why = v.outcome(w)
		if w.group != 0 {
			var steps []string
			for i := w.before; i < len(w.hits); i++ {
				steps = append(steps, v.describe(ctx, &w.hits[i]))
			}
			if ports := w.ports(); len(ports) > 0 {
				steps = append(steps, "out by the datapath's port "+strings.Join(ports, ", "))
			}
			t.text = strings.Join(steps, "; ")
		}

		if to[t] == nil {
			order = append(order, t)
		}

		at := "the group's bucket"
		if w.endpoint.IsValid() {
			at = w.endpoint.String()
		}
		if !slices.Contains(to[t], at) {
			to[t] = append(to[t], at)
		}
	}

	for i, t := range order {
		if i == maxPaths {
			v.Step("and %d more paths", len(order)-i)
			break
		}
		if t.text != "" {
			v.Step("to %s: %s", brief(to[t]), t.text)
		}
		byOther := strings.Contains(t.why, "another owner")
		switch {
		case t.why == "":
		case t.verdict == trace.Drop && v.r.Verdict == trace.Drop && !byOther:
			v.Step("dropped %s", t.why)
		case t.verdict == trace.Drop && t.text != "":
			v.Differ("the switch drops packets to %s: %s", brief(to[t]), t.why)
		case t.verdict == trace.Drop:
			v.Differ("the switch drops the packet: %s", t.why)
		case t.text != "":
			v.Differ("packets to %s may not arrive: %s", brief(to[t]), t.why)
		default:
			v.Differ("the packet may not arrive: %s", t.why)
		}
	}
}

// reportMatchedForeign reports the foreign flows that the packet matched in nkp's tables, except those that
// dropped it, which addEndpointPaths reports.
func (v *view) reportMatchedForeign() {
	var told []string
	for _, w := range v.walks {
		_, why := v.outcome(w)
		for i := range w.hits {
			h := &w.hits[i]
			_, ours := v.Config.Layout.PortOfCookie(h.cookie)
			inTables := slices.Contains(v.Config.Layout.Tables(), uint8(h.table))
			if ours || h.none || h.passed || !inTables {
				continue
			}
			text := v.foreignFlowText(h)
			if slices.Contains(told, text) || why == text {
				continue
			}
			told = append(told, text)
			if h.table != int(v.Config.Layout.CounterTable()) || len(h.actions) != 1 ||
				h.actions[0] != "drop" { // else it only keeps packets from being counted
				v.doubt = v.doubt || w.endpoint.IsValid()
			}
			v.Differ("table %d: the packet is diverted %s", h.table, text)
		}
	}
}

// judgeDelivery compares the Service, the candidates and masquerading.
func (v *view) judgeDelivery(ctx context.Context, w *walk, mark pipeline.Mark, q trace.Question) error {
	switch name, known := v.Owner(ctx, mark.Port); {
	case !known:
		v.Differ("on the switch the packet is for an unknown Service port (id %d)", mark.Port)
		v.doubt = true
	case name != v.r.Port && v.r.Verdict == trace.Deliver:
		v.Differ("on the switch the packet is for %s, in the model for %s", name, v.r.Port)
		v.doubt = true
	}

	if v.r.Chosen != nil && v.r.Verdict == trace.Deliver {
		v.judgeChosen(w, q)
		return nil
	}

	st, err := v.Installed(ctx, mark.Port)
	if err != nil {
		return fmt.Errorf("cannot read the groups of the Service port: %w", err)
	}
	var texts []string
	for _, at := range v.Config.Layout.InstalledEndpoints(st, mark.Port, mark.Local) {
		texts = append(texts, at.String())
	}
	for _, w := range v.walks {
		if at := w.endpoint.String(); w.endpoint.IsValid() && !slices.Contains(texts, at) {
			texts = append(texts, at)
		}
	}
	slices.Sort(texts)

	switch {
	case w.group != 0 && len(texts) > 0:
		v.Step("group %d: one of %s", w.group, brief(texts))
	case w.endpoint.IsValid():
		v.Step("this packet goes to %s", w.endpoint)
	default:
		v.Step("no endpoint can be chosen: the group is empty or missing")
	}

	// Masquerading is impossible where the node's address is not on the bridge.
	masquerade := mark.Masquerade && !v.Config.Elsewhere(k8s.FamilyOf(q.To.Addr()))
	if masquerade {
		v.Step("to be masqueraded")
	}

	if v.r.Verdict != trace.Deliver {
		return nil
	}

	if missing := without(v.r.Endpoints, texts); len(missing) > 0 {
		v.Differ("the switch lacks the endpoint %s", brief(missing))
	}
	if extra := without(texts, v.r.Endpoints); len(extra) > 0 {
		v.Differ("the switch still has the endpoint %s, which is no candidate", brief(extra))
		v.doubt = true
	}
	if want := v.r.Masquerade == trace.Always; want != masquerade {
		v.Differ("masquerade: %t on the switch, %s in the model", masquerade, v.r.Masquerade)
		v.doubt = true
	}
	return nil
}

// judgeChosen compares the endpoint where the client's port alone selects it.
func (v *view) judgeChosen(w *walk, q trace.Question) {
	port := cmp.Or(q.From.Port(), defaultSourcePort)
	switch want := v.r.Chosen(port); {
	case !w.endpoint.IsValid():
		v.Step("no endpoint is chosen")
	case w.endpoint != want:
		v.Differ("on the switch client port %d leads to %s, in the model to %s", port, w.endpoint, want)
		v.doubt = true
	default:
		v.Step("client port %d leads to %s", port, w.endpoint)
	}
}

// maxDiffering bounds how many flows and groups are named.
const maxDiffering = 5

// reportDifferences reports the flows and groups that packets of the connection or their answers can match,
// and that are missing on the switch, differ or are unwanted.
func (v *view) reportDifferences(ctx context.Context, q trace.Question) {
	d := v.differences
	concerned := v.concern(ctx, q)

	var lines []string
	for _, g := range d.Own.SetGroups {
		if id := v.Config.Layout.GroupID(g.ID); concerned.port(id) {
			lines = append(lines, fmt.Sprintf("%s: group missing or different on the switch: %s",
				v.owner(ctx, id), g))
		}
	}
	for _, f := range d.Own.SetFlows {
		if id, _ := v.Config.Layout.PortOfCookie(f.Cookie); concerned.flow(f, id) {
			lines = append(lines, fmt.Sprintf("%s: flow missing or different on the switch: %s",
				v.owner(ctx, id), f))
		}
	}
	for _, f := range d.Own.DelFlows {
		if id, _ := v.Config.Layout.PortOfCookie(f.Cookie); concerned.flow(f, id) {
			lines = append(lines, fmt.Sprintf("%s: unwanted flow on the switch: %s", v.owner(ctx, id), f))
		}
	}

	for i, line := range lines {
		if i == maxDiffering {
			v.Differ("and %d more flows or groups", len(lines)-i)
			break
		}
		v.Differ("%s", line)
	}

	if len(lines) > 0 {
		v.doubt = true
		v.Differ("another program has changed the switch, or nkp has not programmed it yet: " +
			"\"nkp diff\" shows all differences, and the running agent repairs them within --audit-period")
	}
	if d.FailOpen != "" {
		v.doubt = true
		v.Differ("%s", d.FailOpen)
	}

	v.reportOtherForeign(d, concerned)
}

// owner returns, in words, the Service port that a flow or group of nkp's belongs to.
func (v *view) owner(ctx context.Context, id uint32) string {
	if id == 0 {
		return "what all Services share"
	}
	return v.name(ctx, id)
}

// passesBy reports whether no packet of the connection can match a flow of the table where packets enter the
// bridge: the flow is for tracked packets, or for those from the port of a pod that is none of the
// connection's ends.
func (v *view) passesBy(f *flow.Flow, c *concern) bool {
	pods, end := false, false // of the flow's port
	for _, p := range v.Config.Pods {
		if p.OFPort == f.Match.InPort {
			pods, end = true, end || slices.Contains(c.addrs, p.IP)
		}
	}
	return v.Config.Layout.Shared(f.Table) && (!pipeline.Enters(&f.Match) || pods && !end)
}

// reportOtherForeign reports foreign flows that the packet did not match, but other packets of its connection
// may.
func (v *view) reportOtherForeign(d *Differences, c *concern) {
	n := 0
	for _, f := range d.Foreign {
		met := func(w *walk) bool { return w.met(f) }
		if !c.flow(f, 0) || v.passesBy(f, c) || slices.ContainsFunc(v.walks, met) {
			continue
		}
		v.doubt = true
		if n++; n <= maxDiffering {
			v.Differ("other packets of the connection may match another owner's flow: %s", f)
		}
	}
	if n > maxDiffering {
		v.Differ("and %d more flows of other owners", n-maxDiffering)
	}
	if d.More > 0 {
		v.doubt = true
		v.Differ("nkp's tables hold %d more flows of other owners, too many to compare", d.More)
	}
}
