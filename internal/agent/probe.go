package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// probePause is the least time between a probe and the next.
const probePause = time.Second

// serveProbe answers POST /v1/trace/probe, with the parameters of GET /v1/trace: the one request that sends
// something.
func (a *Agent) serveProbe(w http.ResponseWriter, r *http.Request) {
	if !a.probing.TryLock() {
		http.Error(w,
			"another probe is under way, or has ended less than a second ago: wait, then try again",
			http.StatusTooManyRequests)
		return
	}
	defer func() { time.AfterFunc(probePause, a.probing.Unlock) }()
	a.serveTrace(w, r)
}

// prober sends one probe. What it may leave behind is gone when run returns.
type prober struct {
	*trace.Probe
	q trace.Question
	r *trace.Result
	// eachConnection lists the connections of the conntrack table that has the probe's, deleteEntry deletes
	// the probe's own.
	eachConnection func(context.Context, func(*dpctl.Connection) error) error
	deleteEntry    func(ctx context.Context, endpoint netip.AddrPort) error
	// link is the bridge that the packet crosses; nil: none of nkp's. port is where a pod's packet enters;
	// nil: the packet is the node's own.
	link func(context.Context, pipeline.Probe) (*bridge.Probing, error)
	port *ovsdb.Port
	// foreignFlows reports that flows of others decide on an answer that nkp has translated.
	foreignFlows bool
	// router is the MAC that a pod's packet is sent to.
	router flow.MAC
	// answerLost is why an answer could not be received; nil: it could.
	answerLost error
	// egress returns how a packet to an endpoint leaves the bridge; "": not known.
	egress func(ctx context.Context, endpoint netip.AddrPort) string
	// count returns what the switch has counted, whyLost what is known of why an endpoint did not answer
	// since; nil: no switch.
	count   func(context.Context) bridge.Counted
	whyLost func(ctx context.Context, before bridge.Counted, endpoint, client netip.Addr, answers bool) string
}

// probe sends the packet of a question, and describes in r.Probe what became of it. An error says why it was
// not sent.
func (s *Settings) probe(
	ctx context.Context, now *planes, m *k8s.Model, q trace.Question, r *trace.Result,
) error {
	p := &prober{Probe: &trace.Probe{Steps: []string{}}, q: q, r: r}
	db := now.switchNow()
	onBridge := db != nil &&
		(now.fallback == nil || OnBridge(now.fallback.Detail().Scope, now.bridge.NodeBeside(m), db, m, q, r))
	sp, atPort := m.Ports[r.Port], false // not every pod is recognized by its address
	if db != nil {
		_, atPort = db.PortByIP(q.From.Addr())
	}

	switch {
	case r.Service == "" || r.Unserved || sp == nil:
		return errors.New(
			"not probed: nothing of nkp's handles this packet, so that a probe would not test it")
	case r.Userspace:
		return errors.New(
			"not probed: nkp itself accepts connections there, so that a probe would test no rule; " +
				"connect to it, and see nkp_localhost_nodeport_connections_total")
	case q.Protocol == "SCTP":
		return errors.New("not probed: nkp sends no SCTP; probe a TCP or UDP port of the Service")
	case r.Source == k8s.Outside && !atPort:
		return fmt.Errorf(
			"not probed: %s is neither this node nor a pod here, and a packet with its address can only be "+
				"sent there; use --live, and --follow while that client tries",
			q.From.Addr())
	case r.Chosen != nil:
		return fmt.Errorf(
			"not probed: on its way to %s the packet is not translated here, nor is the answer (annotation "+
				"%s): a client has to try",
			r.Service, k8s.AnnotationConsistent)
	case q.In != "":
		return errors.New("not probed: a probe enters where its source is; leave out --in")
	case db != nil && !db.Exists && onBridge:
		return errors.New("not probed: " + bridge.Gone(db))
	case !onBridge && now.fallback == nil:
		return errors.New(
			"not probed: HNS neither counts nor forgets a single connection, so that a probe would leave " +
				"traces")
	case !onBridge && r.Source != k8s.ThisNode:
		return fmt.Errorf(
			"not probed: in mode %s a pod's packet can only be sent inside of the pod's network namespace; "+
				"probe from this node (--from %s), or run a client in the pod",
			now.fallback.Name(), nodeAddress(&m.Node, q))
	case !onBridge && sp.AffinitySeconds > 0:
		return fmt.Errorf(
			"not probed: %s has session affinity, and in mode %s a probe would bind this node to an endpoint",
			r.Service, now.fallback.Name())
	}

	var err error
	if onBridge {
		err = s.throughBridge(ctx, now, db, p)
	} else {
		family := k8s.FamilyOf(q.To.Addr())
		p.eachConnection = func(ctx context.Context, do func(*dpctl.Connection) error) error {
			return conntrack.Each(ctx, family, 0, do)
		}
		p.deleteEntry = func(ctx context.Context, _ netip.AddrPort) error {
			_, err := conntrack.Forget(ctx, family, 0, p.own)
			return err
		}
		p.egress = func(context.Context, netip.AddrPort) string { return "" }
	}
	if err != nil {
		return fmt.Errorf("not probed: %w", err)
	}

	if err := p.run(ctx); err != nil {
		return fmt.Errorf("not probed: %w", err)
	}
	p.Judge(r)
	r.Probe = p.Probe
	return nil
}

// nodeAddress returns the node's address of the question's family, for advice.
func nodeAddress(node *k8s.Node, q trace.Question) string {
	if ip := k8s.FamilyOf(q.To.Addr()).First(node.IPs); ip.IsValid() {
		return ip.String()
	}
	return "NODE-ADDRESS"
}

// throughBridge prepares a probe that crosses the bridge.
func (s *Settings) throughBridge(ctx context.Context, now *planes, db *ovsdb.Switch, p *prober) error {
	if err := now.bridge.Answers(ctx); err != nil {
		return err
	}
	sw, err := s.bridgeOf(ctx, now, db)
	if err != nil {
		return err
	}

	p.eachConnection, p.link = now.bridge.Connections, now.bridge.BeginProbe
	p.count, p.whyLost = now.bridge.Counted, now.bridge.WhyLost
	p.egress = func(ctx context.Context, endpoint netip.AddrPort) string {
		return sw.Leaving(ctx, p.q, p.r, endpoint)
	}
	p.deleteEntry = func(ctx context.Context, endpoint netip.AddrPort) error {
		return now.bridge.ForgetProbe(ctx, p.pipeline(flow.PortLocal), endpoint)
	}

	if p.r.Source == k8s.ThisNode {
		return nil
	}
	port, ok := db.PortByIP(p.q.From.Addr())
	if ok {
		var macs []net.HardwareAddr // the database may have that of the port's other end
		err := sw.Daemon.Learned(ctx, s.Bridge, func(n uint32, mac net.HardwareAddr) {
			if n == port.OFPort {
				macs = append(macs, slices.Clone(mac))
			}
		})
		if err == nil && len(macs) == 1 {
			port.MAC, port.FarMAC = macs[0], false
		}
	}

	switch local := func(text string) bool {
		at, err := netip.ParseAddrPort(text)
		return err == nil && slices.ContainsFunc(sw.Config.Pods, func(p pipeline.Pod) bool {
			return p.IP == at.Addr()
		})
	}; {
	case !ok || port.OFPort == 0:
		return fmt.Errorf(
			"no port of bridge %s has the pod's address %s (external_ids:ip_addresses): its packet can "+
				"only be sent on its own node, or in its network namespace",
			s.Bridge, p.q.From.Addr())
	case len(port.MAC) != 6 || port.FarMAC: // the bridge would learn a MAC that no pod has
		return fmt.Errorf(
			"the MAC of the pod at port %s is not known: the database has none (external_ids:attached-mac), "+
				"nor has the bridge learned one there; try again when the pod has sent a packet",
			port.Name)
	case len(port.Trunks) > 0:
		return fmt.Errorf("port %s is a trunk: which VLAN the pod at it sends in is not known", port.Name)
	case !sw.Config.GatewayMAC.IsZero():
		p.router = sw.Config.GatewayMAC
	case !sw.Config.NodeMAC.IsZero():
		p.router = sw.Config.NodeMAC // the node is the pods' router
	case sw.Config.LocalDelivery &&
		!slices.ContainsFunc(p.r.Endpoints, func(e string) bool { return !local(e) }):
		p.router = pipeline.NextHopMAC // the bridge replaces it
	default:
		return errors.New("the MAC of the pods' router is not known: run nkp with --gateway-mac MAC")
	}

	p.port, p.foreignFlows = &port, sw.Config.OthersDecide() && !sw.Config.LocalDelivery
	return nil
}

// pipeline returns the probe for the pipeline.
func (p *prober) pipeline(inPort uint32) *pipeline.Probe {
	return &pipeline.Probe{Port: p.r.Port, Client: p.q.From,
		Frontend: p.q.To, InPort: inPort, Divert: p.port != nil}
}

// own reports whether a connection is the probe's.
func (p *prober) own(c *dpctl.Connection) bool {
	return c.Protocol == p.q.Protocol && c.Client == p.q.From && c.Frontend == p.q.To
}

// entry returns the probe's conntrack entry; nil: there is none.
func (p *prober) entry(ctx context.Context) (found *dpctl.Connection, err error) {
	err = p.eachConnection(ctx, func(c *dpctl.Connection) error {
		if p.own(c) {
			copied := *c
			found = &copied
		}
		return nil
	})
	return found, err
}

// Source ports of probes, above those of Linux' own connections (net.ipv4.ip_local_port_range: 32768-60999).
const probePortFirst, probePortLast = 61000, 65535

// choosePort gives the question a source port with which the client has no connection.
func (p *prober) choosePort(ctx context.Context) error {
	taken := map[uint16]bool{}
	err := p.eachConnection(ctx, func(c *dpctl.Connection) error {
		if c.Client.Addr() == p.q.From.Addr() {
			taken[c.Client.Port()] = true
		}
		return nil
	})
	if want := p.q.From.Port(); err != nil || want != 0 {
		if err == nil && taken[want] {
			err = fmt.Errorf("%s has a connection from port %d already; leave the port out",
				p.q.From.Addr(), want)
		}
		return err
	}
	n := probePortLast - probePortFirst + 1
	for i, first := 0, rand.IntN(n); i < n; i++ {
		if port := uint16(probePortFirst + (first+i)%n); !taken[port] {
			p.q.From = netip.AddrPortFrom(p.q.From.Addr(), port)
			return nil
		}
	}
	return fmt.Errorf("%s has connections from all ports from %d to %d",
		p.q.From.Addr(), probePortFirst, probePortLast)
}

// probeEnd bounds what follows the answer: closing the connection and deleting its conntrack entry.
const probeEnd = 5 * time.Second

// run sends the packet, waits for what comes of it, and takes back what it left.
func (p *prober) run(ctx context.Context) error {
	if err := p.choosePort(ctx); err != nil {
		return err
	}
	inPort := flow.PortLocal
	if p.port != nil {
		inPort = p.port.OFPort
	}
	var link *bridge.Probing
	if p.link != nil {
		var err error
		if link, err = p.link(ctx, *p.pipeline(inPort)); err != nil {
			return err
		}
		defer link.End()
	}
	var counted bridge.Counted
	if p.count != nil {
		counted = p.count(ctx)
	}
	var closeConn func(context.Context)
	var err error
	if p.port != nil {
		closeConn, err = p.packetOut(ctx, link)
	} else {
		closeConn, err = p.dial(ctx, link)
	}
	if err != nil {
		return err
	}

	// From here on the caller may be gone: what the probe left must go all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeEnd)
	defer cancel()
	entry, err := p.entry(ctx)
	if err != nil {
		p.Step("the conntrack table cannot be listed: %v", err)
	}
	var endpoint netip.AddrPort
	if entry != nil && entry.Endpoint != entry.Frontend {
		endpoint = entry.Endpoint
		p.Endpoint = endpoint.String()
		p.Step("conntrack sends it on to %s", endpoint)
	}
	if p.By == "" && p.OnWay == "" && (p.Outcome == trace.Answered || p.Outcome == trace.Refused) {
		p.By = p.Endpoint
	}
	p.NoEntry = entry == nil && err == nil && p.link != nil
	if p.Outcome != trace.Answered && p.Outcome != trace.Refused && endpoint.IsValid() {
		p.LastSeen = p.egress(ctx, endpoint)
	}
	if p.Outcome != trace.Answered && p.Outcome != trace.Refused && p.LastSeen != "" {
		switch tcp := p.q.Protocol == "TCP"; {
		case tcp && entry.State != "SYN_SENT":
			p.Cause = fmt.Sprintf("conntrack has seen the answer (%s), which was lost on its way back to %s",
				entry.State, p.q.From.Addr())
		default:
			p.Cause = p.whyLost(ctx, counted, endpoint.Addr(), p.q.From.Addr(), tcp)
		}
	}
	if p.By == trace.ByNkp && link != nil {
		link.Refused(ctx)
	}
	closeConn(ctx)
	p.awaitClosed(ctx, entry)
	if err := p.deleteEntry(ctx, endpoint); err != nil {
		p.Step("the probe's conntrack entry is left to expire: %v", err)
	}
	p.notPassed()
	return p.answerLost
}

// awaitClosed waits until conntrack has seen that the probe's TCP connection is closed, so that its entry is
// not deleted under the last packet: on the kernel datapath the switch may still work on that.
func (p *prober) awaitClosed(ctx context.Context, entry *dpctl.Connection) {
	open := []string{"SYN_SENT", "SYN_RECV", "ESTABLISHED"}
	const most = 7 // polls, within 1.3 s: a handler thread of a busy switch may have the packet
	for i := 0; i < most && entry != nil && slices.Contains(open, entry.State); i++ {
		var err error
		if entry, err = p.entry(ctx); err != nil {
			return
		}
		if entry != nil && slices.Contains(open, entry.State) {
			time.Sleep(time.Duration(10<<i) * time.Millisecond)
		}
	}
}

// setOutcome records the outcome of an answer.
func (p *prober) setOutcome(outcome trace.Outcome, by string, after time.Duration) {
	p.Outcome, p.By, p.Milliseconds = outcome, by, float64(after.Microseconds())/1000
}

// unanswered returns the outcome without an answer.
func (p *prober) unanswered() trace.Outcome {
	if p.q.Protocol == "TCP" {
		return trace.Unanswered
	}
	return trace.Unknown
}

// probeWait is how long a probe waits for an answer.
const probeWait = trace.ProbeSeconds * time.Second

// packetOut sends the packet by the pod's port and waits for the answer, which the bridge diverts to nkp.
func (p *prober) packetOut(
	ctx context.Context, link *bridge.Probing,
) (closeConn func(context.Context), err error) {
	begun := time.Now()
	if err := link.Send(ctx, flow.MAC(p.port.MAC), p.router); err != nil {
		return nil, err
	}
	p.Step("sent at port %s (%d), from MAC %s to MAC %s: %s",
		p.port.Name, p.port.OFPort, p.port.MAC, p.router, p.q)

	timeout := time.NewTimer(probeWait)
	defer timeout.Stop()
	select {
	case in := <-link.Heard:
		p.setAnswer(&in, in.At.Sub(begun))
	case <-link.Lost():
		p.answerLost = errors.New(
			"the connection to the switch broke after the packet was sent, and with it went the answer, if " +
				"there was one; try again")
	case <-timeout.C:
		p.Outcome = p.unanswered()
	case <-ctx.Done():
		p.Outcome = p.unanswered()
	}

	return func(ctx context.Context) {
		if p.Outcome == trace.Refused {
			return
		}
		if err := link.Reset(ctx); err != nil { // also if the answer was lost, or is late
			p.Step("the connection cannot be closed at the endpoint: %v", err)
		}
	}, nil
}

// setAnswer records the answer.
func (p *prober) setAnswer(in *bridge.ProbeAnswer, after time.Duration) {
	outcome, by := trace.Answered, ""
	if in.Refused {
		outcome = trace.Refused
	}
	if in.ByNkp {
		by = trace.ByNkp
	} else if p.Step("the answer came in by port %d from MAC %s", in.InPort, in.MAC); in.Router.IsValid() {
		by = in.Router.String()
	}
	p.setOutcome(outcome, by, after)
}

// dial opens a connection by a socket of this node.
func (p *prober) dial(
	ctx context.Context, link *bridge.Probing,
) (closeConn func(context.Context), err error) {
	network := "tcp"
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(p.q.From), Timeout: probeWait}
	if p.q.Protocol == "UDP" {
		network, d.LocalAddr = "udp", net.UDPAddrFromAddrPort(p.q.From)
	}

	p.Step("sent by a socket of this node: %s", p.q)
	begun := time.Now()
	// what is sent is waited for
	conn, err := d.DialContext(context.WithoutCancel(ctx), network, p.q.To.String())
	if udp, ok := conn.(*net.UDPConn); ok && err == nil {
		_, _, err = udp.WriteMsgUDP(nil, nil, nil)
		if err == nil {
			_ = udp.SetReadDeadline(time.Now().Add(probeWait))
			_, err = udp.Read(make([]byte, 1))
		}
	}

	after, by := time.Since(begun), ""
	if link != nil {
		select {
		case in := <-link.Heard:
			if in.ByNkp {
				by = trace.ByNkp
			}
		default:
		}
	}

	switch timeout := net.Error(nil); {
	case err == nil:
		p.setOutcome(trace.Answered, "", after)
	case errors.Is(err, syscall.ECONNREFUSED):
		p.setOutcome(trace.Refused, cmp.Or(by, p.kernelRefuser()), after)
	// for want of a route or a neighbour, or by a router's word
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		var why syscall.Errno
		errors.As(err, &why)
		p.OnWay = why.Error()
		p.setOutcome(trace.Refused, by, after)
	case errors.As(err, &timeout) && timeout.Timeout():
		p.Outcome = p.unanswered()
	default:
		if conn != nil {
			conn.Close()
		}
		return nil, err
	}

	return func(context.Context) {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, which leaves nothing at either end
		}
		if conn != nil {
			conn.Close()
		}
	}, nil
}

// kernelRefuser returns who refused the node's packet if rules of nkp's did; "": somebody else.
func (p *prober) kernelRefuser() string {
	if p.r.Verdict == trace.Reject && p.link == nil {
		return trace.ByNkp
	}
	return ""
}

// notPassed adds a step about what the packet and its answer did not pass.
func (p *prober) notPassed() {
	if p.foreignFlows {
		p.Step(
			"not passed: the flows of others in table 0 that decide on the answer once nkp has translated " +
				"it (nkp trace --live --reply)")
	}
	switch {
	case p.port != nil:
		p.Step(
			"not passed: the pod's own network (its routes, filters and interface) and the last hop of the "+
				"answer from the bridge to the pod at port %s",
			p.port.Name)
	case p.link == nil:
		p.Step("counted like any connection of this node, in the counters of the data plane's rules")
	}
}
