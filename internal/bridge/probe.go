package bridge

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ofctrl/reject"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// probeLifetime is how long the flows of a probe stay on the switch if nothing deletes them.
const probeLifetime = 2 * time.Second

// Probing is a probe that is under way. There is one at a time.
type Probing struct {
	// Heard receives what comes of the probe's packet.
	Heard <-chan ProbeAnswer

	plane *Plane
	conn  *ofctrl.Conn
	probe pipeline.Probe
	flows []*flow.Flow
	heard chan ProbeAnswer
	seq   uint32         // of the first TCP segment
	sent  reject.Segment // by Send
}

// ProbeAnswer is what comes of a probe's packet.
type ProbeAnswer struct {
	Refused bool
	ByNkp   bool // the pipeline refuses it
	// Router is the sender of an ICMP error; the zero Addr: the endpoint itself answers.
	Router netip.Addr
	InPort uint32 // by which the answer came, unless ByNkp
	MAC    flow.MAC
	At     time.Time
}

// BeginProbe installs the flows that keep a probe apart from others' connections, and waits until they are in
// force in the datapath. The caller must call End.
func (p *Plane) BeginProbe(ctx context.Context, probe pipeline.Probe) (*Probing, error) {
	r := &Probing{plane: p, probe: probe, heard: make(chan ProbeAnswer, 8), seq: rand.Uint32()}
	r.Heard = r.heard
	id, conn, err := p.portID(ctx, probe.Port)
	if err != nil {
		return nil, err
	}
	r.conn, r.flows = conn, p.set.Layout.Probe(probe, id)
	if !p.probing.CompareAndSwap(nil, r) {
		return nil, errors.New("another probe is under way")
	}
	if err := r.inForce(ctx); err != nil {
		r.End()
		return nil, err
	}
	return r, nil
}

func (r *Probing) inForce(ctx context.Context) error {
	err := r.Renew(ctx)
	if err == nil {
		err = r.plane.daemon().Revalidated(ctx)
	}
	if err != nil {
		return err
	}
	return r.Renew(ctx) // they have the whole lifetime before them
}

// Renew keeps the flows for another probeLifetime.
func (r *Probing) Renew(ctx context.Context) error {
	return r.conn.AddTemporary(ctx, r.flows, probeLifetime)
}

// Lost is closed when the connection by which the answer would come has ended.
func (r *Probing) Lost() <-chan struct{} { return r.conn.Done() }

// Send has the bridge handle the probe's packet as if it had come by the probe's port.
func (r *Probing) Send(ctx context.Context, from, to flow.MAC) error {
	r.sent = reject.Segment{
		EthSrc: from, EthDst: to, TCP: r.probe.Port.Protocol == "TCP",
		From: r.probe.Client, To: r.probe.Frontend, Flags: reject.FlagSYN, Seq: r.seq,
	}
	return r.send(ctx)
}

func (r *Probing) send(ctx context.Context) error {
	return r.conn.PacketOut(ctx, r.probe.InPort, r.sent.Frame(), flow.Output{Port: flow.PortTable})
}

// Reset closes what an endpoint may have opened for a TCP probe. A port that is closed ignores it.
func (r *Probing) Reset(ctx context.Context) error {
	if !r.sent.TCP {
		return nil
	}
	if err := r.Renew(ctx); err != nil {
		return err
	}
	r.sent.Flags, r.sent.Seq = reject.FlagRST, r.seq+1
	return r.send(ctx)
}

// Refused leaves the probe's packet out of those that the Service port refused.
func (r *Probing) Refused(ctx context.Context) {
	_ = r.plane.ask(ctx, func() {
		r.plane.drops.Own(dataplane.DropKey{Port: r.probe.Port, Reason: k8s.DropNoEndpoint})
	})
}

// End deletes the flows, once the switch has added up what they have counted: what a cached flow counts
// later, it counts for the flows that are there then. End takes a moment at most: what cannot be deleted goes
// by itself.
func (r *Probing) End() {
	ctx, cancel := context.WithTimeout(context.Background(), probeLifetime)
	defer cancel()
	if err := r.inForce(ctx); err != nil {
		r.plane.log.Debug("packets of a probe may be counted", "error", err)
	}
	clear := &flow.Delta{Clear: []flow.Cookies{r.plane.set.Layout.ProbeCookies()}}
	if _, err := r.conn.Commit(ctx, clear); err != nil {
		r.plane.log.Debug("the flows of a probe are left to expire", "error", err)
	}
	r.plane.probing.Store(nil)
}

// probing holds the running probe.
type probing struct{ atomic.Pointer[Probing] }

// take reports whether a packet from the switch is a probe's, and not to be answered. It runs on the
// connection's packet-in goroutine.
func (p *probing) take(l *pipeline.Layout, in *ofctrl.PacketIn) bool {
	r, own := p.Load(), l.ProbeCookies()
	diverted := in.Cookie&own.Mask == own.Cookie
	if r == nil {
		return diverted
	}

	cookie, mask := l.StaticCookies()
	rejected := in.Table == l.RejectTable() && in.Cookie&mask == cookie
	if !diverted && !rejected {
		return false
	}

	s, err := reject.ReadSegment(in.Data)
	from, to := r.probe.Frontend, r.probe.Client
	if rejected || s.Unreachable.IsValid() { // the probe's own packet, here or quoted
		from, to = to, from
	}
	if err != nil || s.From != from || s.To != to || s.TCP != (r.probe.Port.Protocol == "TCP") {
		return diverted
	}

	a := ProbeAnswer{ByNkp: rejected, Router: s.Unreachable, InPort: in.InPort, MAC: s.EthSrc, At: time.Now()}
	if a.Router == r.probe.Frontend.Addr() { // the endpoint, as the client sees it
		a.Router = netip.Addr{}
	}

	const accepts = reject.FlagSYN | reject.FlagACK
	switch a.Refused = rejected || s.Unreachable.IsValid() || s.Flags&reject.FlagRST != 0; {
	case rejected || s.Unreachable.IsValid() || !s.TCP:
	case s.Ack != r.seq+1, !a.Refused && s.Flags&accepts != accepts: // about another connection
		return diverted
	}

	select {
	case r.heard <- a:
	default: // it is known already
	}
	return diverted || r.probe.Divert
}

// ForgetProbe deletes the conntrack entries of a probe's connection, by their exact tuples. endpoint is where
// it was sent; the zero AddrPort: nowhere that is known.
func (p *Plane) ForgetProbe(ctx context.Context, probe *pipeline.Probe, endpoint netip.AddrPort) error {
	conn := p.conn()
	if conn == nil {
		return p.notConnected()
	}

	l := &p.set.Layout
	one := dpctl.Connection{
		Protocol: probe.Port.Protocol,
		Client:   probe.Client,
		Frontend: probe.Frontend,
		Zone:     l.ZoneDNAT,
	}
	list := []dpctl.Connection{one}
	if endpoint.IsValid() {
		one.Frontend, one.Zone = endpoint, l.ZoneSNAT
		list = append(list, one)
	}

	return forget(ctx, conn, p.daemon(), list)
}
