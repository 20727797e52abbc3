package live

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// Tables are the node's nftables, of all owners.
type Tables struct {
	// Follow returns the paths that a packet can take through them, and its steps.
	Follow func(rules.Packet) ([]rules.Path, []string, error)
	// Diff returns how nkp's own chains, and the elements of the packet's Service port, differ from the
	// desired ones.
	Diff func() ([]string, error)
	// Legacy returns which of the base chains of iptables (legacy), which are no nftables, drops what none of
	// its rules accepts; "": none. rules are those of the tables in use, as Rules.Tables; none if it drops
	// all.
	Legacy func(chains ...string) (drops string, rules map[string]map[string][]string, err error)
	// Node and Detector are the model's.
	Node     k8s.Node
	Detector k8s.Detector
	// PodDevice is the bridge's device, by which packets of its pods come in; "": there is no bridge.
	PodDevice string
	// Connections calls do with each connection that the kernel tracks, until it returns an error.
	Connections func(do func(*dpctl.Connection) error) error
}

// Compare follows the packet through the chains of all owners, and compares that with the model's answer, in
// r.Live.
func (s *Tables) Compare(q trace.Question, r *trace.Result) error {
	p := s.packet(q, r)
	paths, steps, err := s.Follow(p)
	if err != nil {
		return err
	}

	l := trace.NewLive()
	r.Live = l
	l.Step("nftables: %s", q)
	l.Steps = append(l.Steps, steps...)

	judgePaths(l, r, paths)
	mayDrop, err := s.legacy(l, q, &p, paths)
	if err != nil {
		return err
	}

	if list := deliveries(paths); len(list) > 0 {
		judgeDelivery(l, r, q.From.Addr(), list)
	}

	if err := s.differences(l); err != nil {
		return err
	}

	addKernelConnections("nftables", s.Connections, q, r)
	if r.Verdict == trace.Deliver {
		return s.answers(q, r, paths, mayDrop)
	}
	return nil
}

// judgePaths compares the verdict over all paths with what the model says, and names the chains that end
// them.
func judgePaths(l *trace.Live, r *trace.Result, paths []rules.Path) {
	switch l.Verdict = verdictOf(paths); {
	case l.Verdict == trace.Uncertain:
		l.Differ("what becomes of the packet is not certain: the model says %s", r.Verdict)
	case l.Verdict != r.Verdict:
		l.Differ("the rules say %s, the model %s", l.Verdict, r.Verdict)
	default:
		return
	}
	for _, w := range paths {
		if w.At != "" {
			l.Differ("%s %s", w.At, whatEnds[w.Verdict])
		}
	}
}

// follow is Follow where the kernel may have no nf_tables, which pass everything then.
func (s *Tables) follow(p rules.Packet) (paths []rules.Path, steps []string, err error) {
	paths, steps, err = s.Follow(p)
	if !errors.Is(err, errors.ErrUnsupported) {
		return paths, steps, err
	}
	switch {
	case p.Reply != nil:
		return []rules.Path{{Endpoint: p.To}}, nil, nil
	case p.IPTables != nil && len(p.IPTables.Paths) > 0:
		return p.IPTables.Paths, nil, nil
	}
	return []rules.Path{{Verdict: rules.Accepted}}, nil, nil
}

// followForeign adds to r.Live what the tables of other programs do with a packet that iptables serves as
// p.IPTables says. nat are their rules in iptables' table nat that the packet may come to. It returns the
// paths that the packet can take, and the result of legacy.
func (s *Tables) followForeign(
	p rules.Packet, nat map[string][]string, q trace.Question, r *trace.Result,
) (paths []rules.Path, mayDrop bool, err error) {
	paths, steps, err := s.follow(p)
	if err != nil {
		return nil, false, err
	}

	l := r.Live
	l.Steps = append(l.Steps, steps...)
	own := func(w rules.Path) bool { return strings.Contains(w.At, ", chain "+servicesPrefix) }
	decided := func(w rules.Path) bool {
		return w.At != "" || w.Endpoint.IsValid() && len(p.IPTables.Paths) == 0
	}
	if others := slices.DeleteFunc(slices.Clone(paths), own); slices.ContainsFunc(others, decided) {
		judgePaths(l, r, others)
	}

	for i, text := range interfering(
		map[string]map[string][]string{"nat": nat}, []string{"PREROUTING", "OUTPUT"}, headers(q, nil),
	) {
		l.Verdict = trace.Uncertain
		if i == maxDifferences {
			l.Differ("and more rules of iptables")
			break
		}
		l.Differ("a rule of iptables may lead the packet elsewhere: %s", text)
	}

	mayDrop, err = s.legacy(l, q, &p, paths)
	return paths, mayDrop, err
}

// deliveries returns the paths that end at an endpoint.
func deliveries(paths []rules.Path) (list []rules.Path) {
	for _, w := range paths {
		if w.Verdict == rules.Accepted && w.Endpoint.IsValid() {
			list = append(list, w)
		}
	}
	return list
}

// CompareOwn adds to r.Live what the tables do with a packet of the node's own that a bridge translates, and
// with the answer, which comes in by the bridge's device.
func (s *Tables) CompareOwn(device string, q trace.Question, r *trace.Result) error {
	p := s.packet(q, r)
	answer := rules.Packet{
		Protocol: q.Protocol,
		From:     q.To,
		To:       client(q),
		Device:   device,
		Local:    s.Node.Local,
		Reply:    &rules.Reply{Service: q.To},
	}
	var out []rules.Path

	for _, way := range []struct {
		what, lost string
		packet     rules.Packet
	}{
		{"the packet leaves the node", "before the packet leaves the node", p},
		{"the answer comes to the node", "of the answer", answer},
	} {
		paths, steps, err := s.follow(way.packet)
		if err != nil {
			r.Doubt(fmt.Sprintf("the node's nftables cannot be read: %v", err))
			return nil
		}

		for _, step := range steps {
			r.Live.Step("%s: %s", way.what, step)
		}

		for _, w := range paths {
			switch {
			case w.At != "":
				r.Live.Differ("%s: %s %s", way.lost, w.At, whatEnds[w.Verdict])
			case w.Endpoint.IsValid() && way.packet.Reply == nil:
				r.Live.Differ("%s the node's nftables translate its destination to %s", way.lost, w.Endpoint)
			default:
				continue
			}
			if r.Live.Verdict == trace.Deliver {
				r.Live.Verdict = trace.Uncertain
			}
		}

		if v := verdictOf(paths); v == trace.Drop || v == trace.Reject {
			r.Live.Verdict = v
		}
		if way.packet.Reply == nil {
			out = paths
		}
	}

	verdict := r.Live.Verdict
	if _, err := s.legacy(r.Live, q, &p, out); err != nil {
		r.Doubt(fmt.Sprintf("the node's iptables (legacy) cannot be read: %v", err))
	} else if verdict != trace.Deliver {
		r.Live.Verdict = verdict
	}
	return nil
}

// answers follows the answers of the endpoints on the paths, maxPaths at most. They are part of r.Live, and
// of r.Reply.Live if that is asked for. mayDrop is the result of legacy.
func (s *Tables) answers(q trace.Question, r *trace.Result, paths []rules.Path, mayDrop bool) error {
	l := trace.NewLive()
	var done []netip.AddrPort
	arrived := 0

	for _, w := range paths {
		delivered := w.Verdict == rules.Accepted && w.Endpoint.IsValid()
		if !delivered || slices.Contains(done, w.Endpoint) || len(done) == maxPaths {
			continue
		}
		done = append(done, w.Endpoint)

		back, steps, err := s.follow(rules.Packet{
			Protocol: q.Protocol, From: w.Endpoint, To: client(q), Local: s.Node.Local,
			Reply:    &rules.Reply{Service: q.To, Masquerade: w.Masquerade},
			FromNode: slices.Contains(s.Node.Local, w.Endpoint.Addr()),
		})
		if err != nil {
			return err
		}
		for _, step := range steps {
			l.Step("the answer of %s: %s", w.Endpoint, step)
		}

		lost := "is lost"
		switch verdictOf(back) {
		case trace.Deliver:
			arrived++
			continue
		case trace.Uncertain:
			l.Verdict, lost = trace.Uncertain, "may be lost"
		}
		for _, b := range back {
			if b.At != "" {
				l.Differ("the answer of %s %s: %s %s", w.Endpoint, lost, b.At, whatEnds[b.Verdict])
			}
		}
	}

	switch {
	case l.Verdict != "":
	case arrived == len(done):
		l.Verdict = trace.Deliver
	case arrived == 0:
		l.Verdict = trace.Drop
	default:
		l.Verdict = trace.Mixed
	}

	if !l.Agrees && r.Live.Verdict == trace.Deliver {
		r.Live.Verdict = trace.Uncertain
	}
	for _, d := range l.Differences {
		r.Live.Differ("%s", d)
	}

	if y := r.Reply; y != nil {
		y.Live.Steps = append(y.Live.Steps, l.Steps...)
		y.Live.Verdict, y.Live.Agrees, y.Live.Differences = l.Verdict, l.Agrees, l.Differences
		if mayDrop && l.Verdict != trace.Drop {
			y.Live.Verdict = trace.Uncertain
			y.Live.Differ("rules of iptables (legacy) may keep the answer from arriving: " +
				"the packet's differences name them")
		}
	}
	return nil
}

// NotForwarded returns which chain ends the path of a packet to an endpoint, whichever of some clients sends
// it; "": none, or that depends on what is not known.
func (s *Tables) NotForwarded(p rules.Packet, clients []netip.Addr) (at string, err error) {
	for _, c := range clients {
		p.From = netip.AddrPortFrom(c, defaultSourcePort)
		paths, _, err := s.follow(p)
		if err != nil {
			return "", err
		}
		for _, w := range paths {
			if w.Verdict != rules.Dropped && w.Verdict != rules.Rejected {
				return "", nil
			}
			at = w.At + " " + whatEnds[w.Verdict]
		}
	}
	return at, nil
}

// whatEnds describes what a chain does with a packet whose path ends there.
var whatEnds = map[rules.Verdict]string{
	rules.Dropped:  "drops it",
	rules.Rejected: "refuses it",
	rules.Unknown:  "decides by what nkp does not evaluate",
}

// packet returns the first packet of the connection.
func (s *Tables) packet(q trace.Question, r *trace.Result) rules.Packet {
	p := rules.Packet{
		Protocol: q.Protocol,
		From:     client(q),
		To:       q.To,
		FromNode: r.Source == k8s.ThisNode,
		Device:   q.In,
		Local:    s.Node.Local,
	}
	pods := s.Detector.Bridge
	if s.Detector.InterfacePrefix != "" {
		pods = s.Detector.InterfacePrefix + "*"
	}
	switch {
	case p.Device != "":
	case r.Source == k8s.Pod && pods != "":
		p.Device = pods
	default:
		for _, d := range []string{pods, s.PodDevice} {
			if d != "" {
				p.NotDevices = append(p.NotDevices, d)
			}
		}
	}
	return p
}

// client returns the client's address and port, which is one of many if the question leaves it open.
func client(q trace.Question) netip.AddrPort {
	return netip.AddrPortFrom(q.From.Addr(), cmp.Or(q.From.Port(), defaultSourcePort))
}

// verdictOf returns the verdict over all paths that a packet can take.
func verdictOf(paths []rules.Path) (all trace.Verdict) {
	lost := func(v trace.Verdict) bool { return v == trace.Drop || v == trace.Reject }
	doubt, mixed := false, false

	for _, w := range paths {
		one := map[rules.Verdict]trace.Verdict{
			rules.Accepted: trace.Untouched,
			rules.Dropped:  trace.Drop,
			rules.Rejected: trace.Reject,
			rules.Unknown:  trace.Uncertain,
		}[w.Verdict]
		if w.Verdict == rules.Accepted && w.Endpoint.IsValid() {
			one = trace.Deliver
		}
		doubt = doubt || w.Doubt

		switch {
		case all == "" || all == one:
			all = one
		case lost(all) && lost(one) && !doubt:
			all = trace.Drop // nothing arrives
		case lost(all) && one == trace.Deliver, all == trace.Deliver && lost(one):
			all, mixed = trace.Deliver, true
		default:
			return trace.Uncertain
		}
	}

	switch {
	case all == "" || mixed && doubt:
		return trace.Uncertain
	case mixed:
		return trace.Mixed
	}
	return all
}

// legacy adds what the rules of iptables (legacy) may do with the packet and its answers. mayDrop reports
// whether one may drop them.
func (s *Tables) legacy(
	l *trace.Live,
	q trace.Question,
	p *rules.Packet,
	paths []rules.Path,
) (mayDrop bool, err error) {
	var chains []string
	add := func(c string) {
		if !slices.Contains(chains, c) {
			chains = append(chains, c)
		}
	}

	for _, w := range paths {
		to := p.To.Addr()
		if w.Endpoint.IsValid() {
			to = w.Endpoint.Addr()
		}
		switch {
		case w.Verdict != rules.Accepted:
			continue
		case p.FromNode:
			add("OUTPUT")
		}
		switch {
		case p.IsLocal(to):
			add("INPUT")
		case !p.FromNode:
			add("FORWARD")
		}
	}

	if len(chains) == 0 {
		return false, nil
	}
	if slices.Contains(chains, "INPUT") || slices.Contains(chains, "OUTPUT") { // the answers' way
		add("INPUT")
		add("OUTPUT")
	}

	drops, rules, err := s.Legacy(chains...)
	if err != nil {
		return false, err
	}
	if p.IPTables != nil {
		for table, chains := range rules {
			withoutServices(chains, table == "nat" && len(p.IPTables.Paths) > 0)
		}
	}

	if drops != "" {
		mayDrop = true
		l.Differ("%s: whether one accepts the packet is not certain", drops)
	}

	for i, text := range interfering(rules, append(chains, "PREROUTING", "POSTROUTING"), headers(q, paths)) {
		mayDrop = true
		if i == maxDifferences {
			l.Differ("and more rules of iptables (legacy)")
			break
		}
		l.Differ("a rule of iptables (legacy) may keep the packet or its answers from arriving: %s", text)
	}

	if mayDrop {
		l.Verdict = trace.Uncertain
	}
	return mayDrop, nil
}

// maxDifferences bounds the differences that are named.
const maxDifferences = 5

// differences adds how nkp's own objects differ from the desired ones.
func (s *Tables) differences(l *trace.Live) error {
	lines, err := s.Diff()
	if err != nil {
		return err
	}
	for i, line := range lines {
		if i == maxDifferences {
			l.Differ("and %d more differences in nkp's table: \"nkp diff\" shows all", len(lines)-i)
			break
		}
		what, is := strings.CutPrefix(line, "+ ")
		if is {
			l.Differ("missing or different in nkp's table: %s", what)
		} else {
			l.Differ("in nkp's table, but not nkp's: %s", strings.TrimPrefix(line, "- "))
		}
	}
	return nil
}
