package live

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// Rules are the node's iptables of one family: table -> chain -> rules without "-A CHAIN", as iptables-save
// prints them.
type Rules struct {
	Tables map[string]map[string][]string
	// Node and Detector are the model's.
	Node     k8s.Node
	Detector k8s.Detector
	// Connections calls do with each connection that the kernel tracks, until it returns an error; nil: it
	// cannot be asked.
	Connections func(do func(*dpctl.Connection) error) error
	// Others are the rules of other programs, without Diff and Connections.
	Others *Tables
}

// servicesPrefix begins the names of the chains that Services are served by.
const servicesPrefix = "KUBE-"

// walker is a packet on its way through chains.
type walker struct {
	*Rules
	protocol k8s.Protocol
	src      netip.Addr
	dst      netip.AddrPort
	device   string // it came in by; "": unknown, or none

	steps   []string
	seen    map[string]bool // steps that were noted
	service string          // the first Service whose chain it came to, as the rule's comment names it
}

// Compare follows the packet through the chains that lead to Services, and compares that with the model's
// answer, in r.Live. What rules of others do with the packet it asks Others.
func (s *Rules) Compare(q trace.Question, r *trace.Result) error {
	w := &walker{
		Rules:    s,
		protocol: q.Protocol,
		src:      q.From.Addr(),
		dst:      q.To,
		device:   q.In,
		seen:     map[string]bool{},
	}
	if w.device == "" && r.Source == k8s.Pod {
		w.device = cmp.Or(s.Detector.Bridge, s.Detector.InterfacePrefix)
	}

	l := trace.NewLive()
	r.Live = l
	l.Step("iptables: %s", q)
	paths := w.nat(r.Source == k8s.ThisNode)
	verdict := trace.Deliver
	if len(paths) == 0 {
		verdict = w.filter(r.Source == k8s.ThisNode)
	}
	l.Steps = append(l.Steps, w.steps...)

	if l.Verdict = verdict; verdict != r.Verdict {
		l.Differ("the rules say %s, the model %s", verdict, r.Verdict)
	}

	passed, mayDrop, err := s.followForeign(q, r, paths)
	if err != nil {
		return err
	}
	if list := deliveries(passed); len(list) > 0 {
		if r.Verdict == trace.Deliver && w.service != "" && w.service != r.Service {
			l.Differ("the rules have the packet for %s, the model for %s", w.service, r.Service)
		}
		judgeDelivery(l, r, q.From.Addr(), list)
	}
	addKernelConnections("iptables", s.Connections, q, r)
	if r.Verdict == trace.Deliver {
		return s.Others.answers(q, r, passed, mayDrop)
	}
	return nil
}

// followForeign compares what the rules of other programs do with a packet that Services' chains translate
// to one of the endpoints of paths, if any. It returns as Tables.followForeign does.
func (s *Rules) followForeign(
	q trace.Question, r *trace.Result, paths []rules.Path,
) (passed []rules.Path, mayDrop bool, err error) {
	p := s.Others.packet(q, r)
	p.IPTables = &rules.IPTables{Mark: s.mark(), Paths: paths}
	nat := maps.Clone(s.Tables["nat"])
	withoutServices(nat, len(paths) > 0)
	return s.Others.followForeign(p, nat, q, r)
}

// mark returns the mark of packets that are to be masqueraded; 0: there is none.
func (s *Rules) mark() uint32 {
	for _, text := range s.Tables["nat"]["KUBE-MARK-MASQ"] {
		r := newRule(text)
		value, _, _ := strings.Cut(r.option("--set-xmark"), "/")
		if n, err := strconv.ParseUint(value, 0, 32); err == nil {
			return uint32(n)
		}
	}
	return 0
}

// withoutServices deletes the rules by which chains of a table lead to those of Services. With translated,
// the packet does not come to what follows.
func withoutServices(chains map[string][]string, translated bool) {
	for name, list := range chains {
		var kept []string
		for _, text := range list {
			r := newRule(text)
			if !strings.HasPrefix(r.target, servicesPrefix) {
				kept = append(kept, text)
			} else if translated && r.target == "KUBE-SERVICES" {
				break
			}
		}
		chains[name] = kept
	}
}

// addKernelConnections adds what connection tracking has of existing connections, and does to answers. each
// calls its argument for each connection; nil: it cannot be asked.
func addKernelConnections(
	plane string,
	each func(func(*dpctl.Connection) error) error,
	q trace.Question,
	r *trace.Result,
) {
	if r.Reply != nil {
		r.Reply.Live = trace.NewLive()
		r.Reply.Live.Verdict = r.Reply.Verdict
		r.Reply.Live.Step("%s: the kernel translates answers by the conntrack entry; "+
			"chains of type nat do not see them", plane)
	}
	if each == nil {
		return
	}
	list, outcomes, err := matchingConnections(each, q, r)
	if err != nil && !errors.Is(err, conntrack.ErrInterrupted) { // nearly all of them were seen
		r.Live.Step("existing connections cannot be looked up: %v", err)
		return
	}
	addOutcomes(r.Live, r, outcomes)
	addConnections(r.Live, r, list)
	if r.Reply != nil {
		addReplySteps(r.Reply.Live, list)
	}
}

// isLocal is the kernel's address type LOCAL.
func (w *walker) isLocal(ip netip.Addr) bool {
	return ip.IsLoopback() || slices.Contains(w.Node.Local, ip)
}

// nat returns the translations that the packet may meet.
func (w *walker) nat(fromNode bool) []rules.Path {
	base := "PREROUTING"
	if fromNode {
		base = "OUTPUT"
	}
	return deliveries(w.base("nat", base))
}

// filter returns the verdict of the filter table on a packet that was not translated.
func (w *walker) filter(fromNode bool) trace.Verdict {
	var bases []string
	toNode := w.isLocal(w.dst.Addr())
	switch {
	case fromNode && toNode:
		bases = []string{"OUTPUT", "INPUT"}
	case fromNode:
		bases = []string{"OUTPUT"}
	case toNode:
		bases = []string{"INPUT"}
	default:
		bases = []string{"FORWARD"}
	}

	for _, base := range bases {
		if ended := w.base("filter", base); len(ended) > 0 {
			return verdictOf(ended[:1])
		}
	}

	w.step("no rule of a Service's matches")
	return trace.Untouched
}

// base follows the rules of a built-in chain that jump to Kubernetes' chains, up to the first whose chains
// end the packet's path.
func (w *walker) base(table, chain string) []rules.Path {
	for _, text := range w.Tables[table][chain] {
		r := newRule(text)
		if !strings.HasPrefix(r.target, servicesPrefix) || r.holds(w, false) == no {
			continue
		}
		if ended, _ := w.chain(table, r.target, false, 0); len(ended) > 0 {
			return ended
		}
	}
	return nil
}

// maxDepth bounds how deep chains may call each other; Services' go four deep.
const maxDepth = 16

// chain follows a chain. It returns the outcomes that end in it, and the marks that a packet may have when it
// leaves it.
func (w *walker) chain(table, name string, marked bool, depth int) (ended []rules.Path, leaves []bool) {
	if depth > maxDepth {
		return nil, []bool{marked}
	}

	marks := []bool{marked}
	for _, text := range w.Tables[table][name] {
		r := newRule(text)
		var next []bool
		for _, m := range marks {
			t := r.holds(w, m)
			if t != yes {
				next = addMark(next, m)
			}
			if t == no {
				continue
			}
			e, passed, left := w.jump(table, name, &r, m, depth)
			ended = append(ended, e...)
			for _, p := range passed {
				next = addMark(next, p)
			}
			for _, p := range left {
				leaves = addMark(leaves, p)
			}
		}

		if marks = next; len(marks) == 0 {
			return ended, leaves
		}
	}

	for _, m := range marks {
		leaves = addMark(leaves, m)
	}
	return ended, leaves
}

// targetVerdicts are the targets that end a packet's path.
var targetVerdicts = map[string]rules.Verdict{
	"ACCEPT": rules.Accepted, "DROP": rules.Dropped, "REJECT": rules.Rejected,
}

// jump executes a rule's target. It returns the outcomes that end there, the marks with which the packet goes
// on to the next rule, and those with which it leaves the chain.
func (w *walker) jump(
	table, chain string,
	r *rule,
	marked bool,
	depth int,
) (ended []rules.Path, next, left []bool) {
	switch r.target {
	case "":
		return nil, []bool{marked}, nil
	case "RETURN":
		return nil, nil, []bool{marked}
	case "MARK":
		clears := strings.HasPrefix(r.option("--set-xmark"), "0x0/")
		return nil, []bool{!clears}, nil
	case "DNAT":
		endpoint, err := netip.ParseAddrPort(r.option("--to-destination"))
		if err != nil {
			return nil, []bool{marked}, nil // a whole range, which no Service has
		}
		return []rules.Path{{Endpoint: endpoint, Masquerade: marked}}, nil, nil
	case "ACCEPT", "DROP", "REJECT":
		w.step("%s %s: %s", table, chain, r.text)
		return []rules.Path{{Verdict: targetVerdicts[r.target]}}, nil, nil
	}

	if _, ok := w.Tables[table][r.target]; !ok {
		return nil, []bool{marked}, nil // a target that decides nothing: LOG, CT, …
	}
	if !strings.HasPrefix(r.target, "KUBE-SEP-") && r.target != "KUBE-MARK-MASQ" {
		w.step("%s %s: %s", table, chain, r.text)
	}

	dispatches := table == "nat" && (chain == "KUBE-SERVICES" || chain == "KUBE-NODEPORTS")
	if w.service == "" && dispatches && r.target != "KUBE-NODEPORTS" {
		w.service, _, _ = strings.Cut(r.comment, " ")
	}
	ended, passed := w.chain(table, r.target, marked, depth+1)
	return ended, passed, nil
}

func addMark(list []bool, m bool) []bool {
	if slices.Contains(list, m) {
		return list
	}
	return append(list, m)
}

func (w *walker) step(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !w.seen[s] {
		w.seen[s] = true
		w.steps = append(w.steps, s)
	}
}

// judgeDelivery compares the endpoints and the masquerading of the paths that a client's packet can take with
// what the model says.
func judgeDelivery(l *trace.Live, r *trace.Result, client netip.Addr, paths []rules.Path) {
	var endpoints []string
	all, hairpin := true, false // whether all are masqueraded, and the client's own endpoint is
	for _, w := range paths {
		endpoints = append(endpoints, w.Endpoint.String())
		all = all && w.Masquerade
		hairpin = hairpin || w.Masquerade && w.Endpoint.Addr() == client
	}

	masquerade := trace.Never
	switch {
	// Both words fit if the client is the only endpoint.
	case hairpin && (!all || r.Masquerade == trace.Hairpin):
		masquerade = trace.Hairpin
	case all:
		masquerade = trace.Always
	}

	slices.Sort(endpoints)
	endpoints = slices.Compact(endpoints)
	l.Step("one of %s, masquerade %s", brief(endpoints), masquerade)

	if r.Verdict != trace.Deliver {
		return
	}

	if missing := without(r.Endpoints, endpoints); len(missing) > 0 {
		l.Differ("the rules lack the endpoint %s", brief(missing))
	}
	if extra := without(endpoints, r.Endpoints); len(extra) > 0 {
		l.Differ("the rules still have the endpoint %s, which is no candidate", brief(extra))
	}
	if masquerade != r.Masquerade {
		l.Differ("the rules say masquerade %s, the model %s", masquerade, r.Masquerade)
	}
}
