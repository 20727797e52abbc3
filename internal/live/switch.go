package live

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Switch examines a bridge that nkp programs, over ovs-vswitchd's control socket and over OpenFlow.
type Switch struct {
	Daemon dpctl.Daemon // its control socket is ovs-vswitchd's, for all questions
	Bridge string
	Config pipeline.Config
	// Port returns the OpenFlow number of a port by its name.
	Port func(name string) (number uint32, ok bool)
	// Owner names the Service port that has an id.
	Owner func(ctx context.Context, id uint32) (k8s.PortName, bool)
	// Installed reads the flows and groups of the Service port that has an id.
	Installed func(ctx context.Context, id uint32) (*flow.State, error)
	// Usage returns how full the datapath's conntrack table is.
	Usage func(ctx context.Context) dpctl.Usage
	// Packets returns the counters of a Service port; nil: they cannot be read. Only Sample calls it.
	Packets func(ctx context.Context, name k8s.PortName) (*trace.Packets, error)
	// Timeouts returns the timeouts that the database sets for nkp's connections; nil: they cannot be read.
	Timeouts func(ctx context.Context) (map[string]int, error)
	// Diff compares all of the bridge's flows and groups with the desired ones.
	Diff func(ctx context.Context) (*Differences, error)
	// Returns returns why a packet that nkp has passed on, sent from one of some addresses (nil: any), may
	// come back to nkp's flows; "": it does not.
	Returns func(ctx context.Context, sent []netip.Addr) (string, error)
}

// Nothing is the comparison for a packet that comes to nothing that nkp installs.
func Nothing() *trace.Live {
	l := trace.NewLive()
	l.Verdict = trace.Untouched
	l.Step("the packet comes to nothing that nkp installs")
	return l
}

// Userspace is the comparison for a connection that nkp itself accepts, or should.
func Userspace(r *trace.Result) *trace.Live {
	l := trace.NewLive()
	l.Verdict = r.Verdict
	switch {
	case r.Unheard != "":
		l.Differ("%s", r.Unheard)
	case r.Verdict == trace.Deliver:
		l.Unknown = append(l.Unknown, "whether an endpoint accepts nkp's own connection: connect to see")
	}
	return l
}

// Gone is the comparison for a packet that should come to a bridge which is not there.
func Gone(why string) *trace.Live {
	l := trace.NewLive()
	l.Verdict = trace.Untouched
	l.Differ("%s: nothing of nkp's sees the packet", why)
	return l
}

// Silent is the comparison where the switch does not answer.
func Silent(why string) *trace.Live {
	l := trace.NewLive()
	l.Verdict = trace.Uncertain
	l.Differ("%s: what becomes of the packet there is not known", why)
	return l
}

// Compare asks the switch what it does with the packet, and compares that with the model's answer, in r.Live.
func (s *Switch) Compare(ctx context.Context, q trace.Question, r *trace.Result) error {
	p, err := s.enter(q, r)
	if err != nil {
		return err
	}

	l := trace.NewLive()
	r.Live = l
	l.Step("bridge %s, by port %s: %s", s.Bridge, p.inPort, q)

	d, err := s.Diff(ctx)
	if s.mayLoop(ctx, l, s.sources(q, r, d), d, err) {
		s.usage(ctx, l, r)
		s.connections(ctx, l, q, r)
		return nil
	}

	walks, left, err := s.follow(ctx, p, q)
	if err != nil {
		return err
	}

	ports, err := s.Daemon.PortNumbers(ctx, s.Bridge)
	if err != nil {
		return err
	}

	v := &view{Switch: s, Live: l, r: r, inPort: p.inPort, ports: ports, walks: walks, differences: d}
	v.narrate(ctx)
	if left > 0 {
		l.Step("followed for %d values of the datapath's hash, of %d", len(walks), len(walks)+left)
	}

	if err := v.judge(ctx, q); err != nil {
		return err
	}

	s.usage(ctx, l, r)
	list := s.connections(ctx, l, q, r)
	switch {
	case r.Relayed:
		l.Step("the answer is not followed: it does not come through this node")
	case r.Chosen != nil && q.From.Port() == 0: // the packet may go to another node
		l.Step("the answer is not followed, because the client's port decides whether it comes through " +
			"this node: name one (--from IP:PORT)")
	default:
		if err := v.reply(ctx, q, list); err != nil {
			return err
		}
	}
	v.neighbours(ctx, q)
	return nil
}

// mayLoop reports whether the packet must not be followed, and why: ofproto/trace has no limit for packets
// that come back from conntrack (Open vSwitch: ofproto/ofproto-dpif-trace.c, ofproto_trace). A flow that
// leads back makes it run without end, in ovs-vswitchd's main thread, until memory is exhausted. sent are the
// source addresses that the packet can have on its way.
func (s *Switch) mayLoop(
	ctx context.Context, l *trace.Live, sent []netip.Addr, d *Differences, err error,
) bool {
	const unfollowed = "the packet is not followed: ovs-vswitchd could follow it without end " +
		"(ofproto/trace), and hang"

	if err != nil {
		l.Differ("%s, and the installed flows cannot be checked: %v", unfollowed, err)
	} else {
		for _, f := range slices.Concat(d.Foreign, d.Own.Replaced, d.Own.DelFlows) {
			if s.Config.Layout.MayReturn(f) {
				l.Differ("%s. A flow that is not nkp's, or not as nkp wants it, "+
					"may lead back to an earlier table: %s", unfollowed, f)
				break
			}
		}
		if l.Agrees && d.More > 0 {
			l.Differ("%s. nkp's tables hold %d more flows of other owners, too many to check",
				unfollowed, d.More)
		}
	}

	if l.Agrees {
		why, err := s.Returns(ctx, sent)
		switch {
		case err != nil:
			l.Differ("%s, and the flows of others cannot be checked: %v", unfollowed, err)
		case why != "":
			l.Differ("%s. %s", unfollowed, why)
		}
	}

	if !l.Agrees {
		l.Verdict = trace.Uncertain
	}
	return !l.Agrees
}

// sources returns the source addresses that the packet and its answer can have on their way; nil: any,
// because nkp's own flows are not as they should be.
func (s *Switch) sources(q trace.Question, r *trace.Result, d *Differences) []netip.Addr {
	if d == nil || !d.Own.Empty() {
		return nil
	}
	sent := slices.Concat([]netip.Addr{q.From.Addr(), q.To.Addr()}, s.Config.LocalIPs, s.Config.NodeIPs,
		s.Config.HairpinIPs)
	for _, text := range r.Endpoints {
		e, err := netip.ParseAddrPort(text)
		if err != nil {
			return nil
		}
		sent = append(sent, e.Addr())
	}
	return sent
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
	case q.In == "LOCAL" || q.In == "" && r.Source == k8s.ThisNode:
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
		return p, fmt.Errorf("cannot determine the port of bridge %s by which a packet from %s enters: "+
			"pass --in PORT", s.Bridge, q.From.Addr())
	}

	if known && r.Source != k8s.ThisNode && q.In == "" {
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

// lister returns the method that lists connections, with details unless there are too many; and how many
// there are, 0 if the datapath does not say.
func (s *Switch) lister(
	ctx context.Context,
) (each func(context.Context, uint16, func(*dpctl.Connection) error) error, n int) {
	n, err := s.Daemon.Count(ctx)
	if err == nil && n > dpctl.MaxDetailed {
		return s.Daemon.Each, n
	}
	return s.Daemon.EachDetailed, n
}

// connections adds steps about the connections that exist already, and returns them.
func (s *Switch) connections(
	ctx context.Context,
	l *trace.Live,
	q trace.Question,
	r *trace.Result,
) []dpctl.Connection {
	each, n := s.lister(ctx)
	if n > dpctl.MaxDetailed {
		l.Step("the conntrack table has %d entries, over the limit of %d for details: "+
			"refused connections are not recognized", n, dpctl.MaxDetailed)
	}

	zone := func(zone uint16) func(func(*dpctl.Connection) error) error {
		return func(do func(*dpctl.Connection) error) error { return each(ctx, zone, do) }
	}

	other := s.Timeouts == nil
	if !other {
		timeouts, _ := s.Timeouts(ctx) // an old database has none
		_, other = timeouts["udp_multiple"]
	}
	list, outcomes, err := matchingConnections(func(do func(*dpctl.Connection) error) error {
		return each(ctx, s.Config.Layout.ZoneDNAT, func(c *dpctl.Connection) error {
			c.Unanswered = c.Unanswered && !other // see Connection.Unanswered
			return do(c)
		})
	}, q, r)
	if err == nil && len(list) > 0 {
		var masqueraded []dpctl.Connection
		err = zone(s.Config.Layout.ZoneSNAT)(func(c *dpctl.Connection) error {
			if c.Client.Addr() == q.From.Addr() {
				masqueraded = append(masqueraded, *c)
			}
			return nil
		})
		setSeen(list, masqueraded)
	}

	if err != nil {
		l.Step("existing connections cannot be looked up: %v", err)
		return nil
	}

	addOutcomes(l, r, outcomes)
	addConnections(l, r, list)
	return list
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
