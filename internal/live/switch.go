package live

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/internal/appctl"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Switch examines a bridge that nkp programs, over ovs-vswitchd's control socket and over OpenFlow.
type Switch struct {
	Tracker dpctl.Tracker // its control socket is ovs-vswitchd's, for all questions
	Bridge  string
	Config  pipeline.Config
	// Port gives the OpenFlow number of a port by its name.
	Port func(name string) (number uint32, ok bool)
	// Owner names the Service port that has an id.
	Owner func(ctx context.Context, id uint32) (k8s.PortName, bool)
	// Installed reads the flows and groups of the Service port that has an id.
	Installed func(ctx context.Context, id uint32) (*flow.State, error)
	// Differs returns a line for each of a Service port's own flows and groups that is missing ("+ ...") or should not be there
	// ("- ..."); nil: no comparison is available.
	Differs func(ctx context.Context, name k8s.PortName) ([]string, error)
}

// Nothing is the comparison for a packet that comes to nothing that nkp installs.
func Nothing() *trace.Live {
	l := trace.NewLive()
	l.Step("the packet comes to nothing that nkp installs")
	return l
}

// Gone is the comparison for a packet that should come to a bridge which is not there.
func Gone(why string) *trace.Live {
	l := trace.NewLive()
	l.Differ("%s: nothing of nkp's sees the packet", why)
	return l
}

// Compare asks the switch what it does with the packet, and compares that with the model's answer, in r.Live.
func (s *Switch) Compare(ctx context.Context, q trace.Question, r *trace.Result) error {
	p, err := s.enter(q, r)
	if err != nil {
		return err
	}
	text, err := appctl.Call(ctx, s.Tracker.Control, "ofproto/trace", s.Bridge, p.flowText(q))
	if err != nil {
		return err
	}
	w, err := parseWalk(text, s.Config.Layout.ChoosesByHash)
	if err != nil {
		return err
	}
	l := trace.NewLive()
	r.Live = l
	l.Step("bridge %s, by port %s: %s", s.Bridge, p.inPort, q)
	s.narrate(ctx, l, w)
	if err := s.judge(ctx, l, w, r); err != nil {
		return err
	}
	s.connections(ctx, l, q, r)
	return nil
}

// enter returns where and with which Ethernet addresses the packet enters the bridge.
func (s *Switch) enter(q trace.Question, r *trace.Result) (packet, error) {
	cfg, gateway := &s.Config, s.Config.GatewayMAC
	if gateway.IsZero() {
		gateway = anyMAC
	}
	p := packet{src: anyMAC.String(), dst: gateway.String()}
	pod, known := s.pod(q.From.Addr())
	switch {
	case q.In == "LOCAL" || q.In == "" && r.Source == trace.Node:
		p.inPort = "LOCAL"
		if !cfg.NodeMAC.IsZero() {
			p.src, p.dst = cfg.NodeMAC.String(), pipeline.NextHopMAC.String()
		}
	case q.In != "":
		n, ok := s.Port(q.In)
		if !ok {
			return p, fmt.Errorf("bridge %s has no port %s (--in)", s.Bridge, q.In)
		}
		p.inPort = fmt.Sprint(n)
		if n == cfg.Uplink {
			p.fromUplink(cfg, gateway)
		}
	case known:
		p.inPort, p.src = fmt.Sprint(pod.OFPort), pod.MAC.String()
	case cfg.Uplink != 0:
		p.inPort = fmt.Sprint(cfg.Uplink)
		p.fromUplink(cfg, gateway)
	default:
		return p, fmt.Errorf("cannot determine the port of bridge %s by which a packet from %s enters: pass --in PORT", s.Bridge, q.From.Addr())
	}
	if known && r.Source != trace.Node && q.In == "" {
		p.src = pod.MAC.String()
	}
	return p, nil
}

// anyMAC stands for a station whose address is not known, and does not matter. Locally administered.
var anyMAC = flow.MAC{0x02, 0, 0, 0, 0xfe, 0xfe}

// fromUplink addresses a packet from the router to the node.
func (p *packet) fromUplink(cfg *pipeline.Config, gateway flow.MAC) {
	p.src, p.dst = gateway.String(), anyMAC.String()
	if !cfg.NodeMAC.IsZero() {
		p.dst = cfg.NodeMAC.String()
	}
}

func (s *Switch) pod(ip netip.Addr) (pipeline.Pod, bool) {
	i := slices.IndexFunc(s.Config.Pods, func(p pipeline.Pod) bool { return p.IP == ip })
	if i < 0 {
		return pipeline.Pod{}, false
	}
	return s.Config.Pods[i], true
}

// narrate adds a step for each flow that the packet matched.
func (s *Switch) narrate(ctx context.Context, l *trace.Live, w *walk) {
	for _, h := range w.hits {
		match := h.match
		if match == "" {
			match = "anything else"
		}
		switch id, ours := s.Config.Layout.PortOfCookie(h.cookie); {
		case h.none:
			l.Step("table %d: no flow matches", h.table)
		case !ours:
			l.Step("table %d: %s (a flow that is not nkp's, cookie %#x)", h.table, match, h.cookie)
		case id == 0:
			l.Step("table %d: %s", h.table, match)
		default:
			l.Step("table %d: %s, of %s", h.table, match, s.name(ctx, id))
		}
	}
}

func (s *Switch) name(ctx context.Context, id uint32) string {
	if n, ok := s.Owner(ctx, id); ok {
		return n.String()
	}
	return fmt.Sprintf("an unknown Service port (id %d)", id)
}

// judge reports what the switch does with the packet, and compares.
func (s *Switch) judge(ctx context.Context, l *trace.Live, w *walk, r *trace.Result) error {
	mark := pipeline.ReadMark(w.reg1)
	verdict := trace.Untouched
	switch {
	case w.refused && s.met(w, s.Config.Layout.RejectTable()):
		verdict = trace.Reject
		l.Step("refused: the packet goes to nkp, which answers it")
	case w.dropped && s.ours(w):
		verdict = trace.Drop
		l.Step("dropped")
	case mark.Service:
		verdict = trace.Deliver
	case w.dropped:
		l.Step("dropped, by no flow of nkp's")
		l.Differ("the switch drops the packet before it comes to nkp's flows")
		return nil
	default:
		l.Step("left alone")
	}
	if verdict != r.Verdict {
		l.Differ("the switch says %s, the model %s", verdict, r.Verdict)
		s.whatDiffers(ctx, l, r.Port)
	}
	if verdict != trace.Deliver {
		return nil
	}
	name, known := s.Owner(ctx, mark.Port)
	switch {
	case !known:
		l.Differ("the switch has the packet for an unknown Service port (id %d)", mark.Port)
	case name != r.Port && r.Verdict == trace.Deliver:
		l.Differ("the switch has the packet for %s, the model for %s", name, r.Port)
	}
	return s.judgeDelivery(ctx, l, w, r, mark)
}

// whatDiffers names what of the Service port is not on the switch as it should be.
func (s *Switch) whatDiffers(ctx context.Context, l *trace.Live, name k8s.PortName) {
	var lines []string
	if s.Differs != nil && name != (k8s.PortName{}) {
		var err error
		if lines, err = s.Differs(ctx, name); err != nil {
			l.Step("the Service's flows cannot be compared: %v", err)
		}
	}
	for i, line := range lines {
		if i == maxDiffering {
			l.Differ("and %d more flows or groups of %s", len(lines)-i, name)
			break
		}
		if wanted, ok := strings.CutPrefix(line, "+ "); ok {
			l.Differ("the switch lacks of %s: %s", name, wanted)
		} else {
			l.Differ("the switch has an unwanted object of %s: %s", name, strings.TrimPrefix(line, "- "))
		}
	}
	l.Differ("another program has changed the switch, or nkp has not programmed it yet: \"nkp diff\" shows all differences, and the running agent repairs them within --audit-period")
}

// maxDiffering bounds how many flows and groups are named.
const maxDiffering = 5

// judgeDelivery compares candidates and masquerading.
func (s *Switch) judgeDelivery(ctx context.Context, l *trace.Live, w *walk, r *trace.Result, mark pipeline.Mark) error {
	st, err := s.Installed(ctx, mark.Port)
	if err != nil {
		return fmt.Errorf("cannot read the groups of the Service port: %w", err)
	}
	found := s.Config.Layout.InstalledEndpoints(st, mark.Port, mark.Local)
	texts := make([]string, len(found))
	for i, at := range found {
		texts[i] = at.String()
	}
	slices.Sort(texts)
	switch {
	case w.endpoint.IsValid():
		l.Step("this packet goes to %s", w.endpoint)
		if !slices.Contains(texts, w.endpoint.String()) {
			texts = append(texts, w.endpoint.String())
		}
	case len(texts) == 0:
		l.Step("no endpoint can be chosen: the group is empty or missing")
	default:
		l.Step("group %d: one of %s", w.group, brief(texts))
	}
	masquerade := mark.Masquerade && !s.Config.NodeElsewhere // impossible where the node's address is not on the bridge
	if masquerade {
		l.Step("to be masqueraded")
	}
	if r.Verdict != trace.Deliver {
		return nil
	}
	if missing := without(r.Endpoints, texts); len(missing) > 0 {
		l.Differ("the switch lacks the endpoint %s", brief(missing))
	}
	if extra := without(texts, r.Endpoints); len(extra) > 0 {
		l.Differ("the switch still has the endpoint %s, which is no candidate", brief(extra))
	}
	if want := r.Masquerade == trace.Always; want != masquerade {
		l.Differ("the switch says masquerade %t, the model %s", masquerade, r.Masquerade)
	}
	return nil
}

// met reports whether the packet came to a table.
func (s *Switch) met(w *walk, table uint8) bool {
	return slices.ContainsFunc(w.hits, func(h hit) bool { return h.table == int(table) })
}

// ours reports whether the packet's last flow is nkp's.
func (s *Switch) ours(w *walk) bool {
	last := w.hits[len(w.hits)-1]
	_, ours := s.Config.Layout.PortOfCookie(last.cookie)
	return ours && !last.none
}

// connections tells of the connections that exist already.
func (s *Switch) connections(ctx context.Context, l *trace.Live, q trace.Question, r *trace.Result) {
	zone := func(zone uint16) func(func(*dpctl.Connection) error) error {
		return func(do func(*dpctl.Connection) error) error { return s.Tracker.Each(ctx, zone, do) }
	}
	list, err := those(zone(s.Config.Layout.ZoneDNAT), func(c *dpctl.Connection) bool { return about(c, q) })
	if err == nil && len(list) > 0 {
		var masqueraded []dpctl.Connection
		masqueraded, err = those(zone(s.Config.Layout.ZoneSNAT), func(c *dpctl.Connection) bool { return c.Client.Addr() == q.From.Addr() })
		noteMasquerade(list, masqueraded)
	}
	if err != nil {
		l.Step("existing connections cannot be looked up: %v", err)
		return
	}
	noteConnections(l, q, r, list)
}

// without returns what is in a and not in b.
func without(a, b []string) (list []string) {
	for _, s := range a {
		if !slices.Contains(b, s) {
			list = append(list, s)
		}
	}
	return list
}

// brief joins a list for a sentence, cut if it is long.
func brief(list []string) string {
	const most = 10
	if len(list) > most {
		return strings.Join(list[:most], ", ") + fmt.Sprintf(" and %d more", len(list)-most)
	}
	return strings.Join(list, ", ")
}
