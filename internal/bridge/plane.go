package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/node"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Hooks are called when something happens. None may be nil but those of dataplane.Hooks.
type Hooks struct {
	dataplane.Hooks
	Transaction func(dataplane.Transaction) // a transaction with the switch is over
	// Lost is called often. lost: the switch is not known to hold all but refused Services, in force.
	Lost     func(lost bool)
	FailOpen func(open bool) // whether ovs-vswitchd forwards past nkp's flows; called often
	// Stateful is called with what follows from a flow of others that uses conntrack, when one is found.
	Stateful func(text string)
	// ReservePorts keeps the kernel from giving ports to the node's own connections.
	ReservePorts func(lo, hi int) error
}

// Plane keeps one bridge in step with the model. Make it with New, run it once with Run; the other methods
// may be called from any goroutine while it runs.
type Plane struct {
	set      Settings
	hooks    Hooks
	log      *slog.Logger
	openflow string // where the switch is, for status

	in    *dataplane.Inbox
	db    *ovsdb.Client
	of    atomic.Pointer[ofctrl.Client] // nil until Run
	conns chan *ofctrl.Conn             // new connections, handed to the loop
	drift dataplane.Signal              // another controller changed groups or meters
	other dataplane.Signal              // what the flows of others in a table do has changed
	// network says that the node's network has changed in the kernel.
	network dataplane.Signal
	asks    chan func(context.Context) // questions, answered on the loop, with its context
	// looks are those that change nothing: they are also answered between two parts of an audit, which takes
	// a while at millions of flows.
	looks chan func(context.Context)

	alive   liveness
	rejects rejecter
	probing probing
	canary  *canary
	pings   atomic.Pointer[dataplane.Pings] // see Pings
	figures atomic.Pointer[Figures]
	counted *dataplane.Cache[map[k8s.PortName]k8s.Counters]
	usage   *dataplane.Cache[asked]
	// notes are portNotes.seen as of the last askSwitch. They do not change once they are here.
	notes atomic.Pointer[map[string][]string]
	drops dataplane.Drops // belongs to the loop, as does the next
	// dropsNext is the cookie from which dropsTurn goes on.
	dropsNext uint64

	// Only the loop uses the fields below.
	node     facts
	stale    staleUDP
	prog     programmer
	affinity affinity
	traffic  hostTraffic
	failOpen string // as of the last checkFailOpen
}

// New returns a Plane for the switch that db watches.
func New(set Settings, db *ovsdb.Client, hooks Hooks, log *slog.Logger) *Plane {
	hooks.Hooks = hooks.WithDefaults()

	p := &Plane{
		set: set, hooks: hooks, log: log, db: db,
		in:      dataplane.NewInbox(hooks.Queued),
		conns:   make(chan *ofctrl.Conn),
		drift:   dataplane.NewSignal(),
		other:   dataplane.NewSignal(),
		network: dataplane.NewSignal(),
		asks:    make(chan func(context.Context)),
		looks:   make(chan func(context.Context)),
		alive:   liveness{loop: dataplane.NewLoop("bridge")},
		counted: dataplane.NewCache[map[k8s.PortName]k8s.Counters](countersAge),
		usage:   dataplane.NewCache[asked](usageAge),
	}

	p.in.SetPortion(portion)
	p.rejects.layout = &p.set.Layout
	p.canary = newCanary(p)

	p.node = facts{
		set:          &p.set,
		db:           db,
		log:          log,
		reservePorts: hooks.ReservePorts,
		kernel:       kernel{hops: map[netip.Addr]flow.MAC{}},
	}
	p.node.kernel.endpoints = func(f func(netip.Addr)) {
		if c := p.prog.compiler; c != nil {
			c.Endpoints(f)
		}
	}

	p.stale = staleUDP{set: &p.set, db: db, hooks: &p.hooks, log: log}
	p.prog = programmer{
		set: &p.set, hooks: &p.hooks, log: log, alive: &p.alive, node: &p.node, stale: &p.stale,
		later:   p.in.Return,
		surplus: map[flow.Key]*flow.Flow{},
		refused: dataplane.NewRefusals[k8s.PortName]("the switch", log, p.hooks.Refused),
	}
	p.stale.settled = p.prog.settled

	p.affinity = affinity{set: &p.set, log: log}
	p.traffic = hostTraffic{set: &p.set, log: log}
	return p
}

// Loops returns the plane's loops, which record what its goroutines work on and since when.
func (p *Plane) Loops() []*dataplane.Loop { return []*dataplane.Loop{p.alive.loop} }

// Update hands over the model's changes; the first call must pass all of the model. It never blocks, and does
// not keep the model itself.
func (p *Plane) Update(m *k8s.Model, c k8s.Changes) { p.in.Put(m, c) }

// Run blocks until the context ends, and then returns nil; flows stay on the switch. Any other return is a
// permanent error: retrying cannot help.
func (p *Plane) Run(ctx context.Context) error {
	text, err := p.set.OpenFlowTarget()
	if err != nil {
		return err
	}

	p.openflow = text
	target, err := ofctrl.ParseTarget(text)
	if err != nil {
		return err
	}

	client := ofctrl.NewClient(target, ofctrl.ClientOptions{
		Options: ofctrl.Options{
			Bridge: p.set.Bridge,
			TLS:    p.set.TLS,
			Log:    p.log,
			OnPacketIn: func(in *ofctrl.PacketIn) {
				if l := &p.set.Layout; !p.canary.take(l, in) && !p.probing.take(l, in) {
					p.rejects.packetIn(p.conn(), in)
				}
			},
			OnAnswer:  p.alive.progress,
			OnOthers:  p.other.Notify,
			OnForward: p.drift.Notify,
		},
		OnAbsent: p.alive.absent,
		OnConnect: func(ctx context.Context, c *ofctrl.Conn) error {
			select {
			case p.conns <- c:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	})
	p.of.Store(client)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return client.Run(ctx) })
	g.Go(func() error { return p.loop(ctx) })
	g.Go(func() error { node.Watch(ctx, p.network.Notify, p.log); return nil })
	g.Go(func() error { p.canary.Run(ctx); return nil })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// loop owns the plane's state and hands each event to the part that it is for. It ends with the context.
func (p *Plane) loop(ctx context.Context) error {
	g := &p.prog

	audit := time.NewTimer(p.set.AuditPeriod)
	defer audit.Stop()
	count := time.NewTicker(p.set.CountPeriod)
	defer count.Stop()
	defer p.alive.loop.Rest()

	for {
		if len(p.stale.rest.free) > 0 {
			p.alive.work("releasing ids of Services that are gone")
			g.releaseIDs(ctx)
		}
		p.report()
		due := p.due()
		p.alive.rest()

		select {
		case <-ctx.Done():
			return nil
		case <-due.forget:
			p.alive.work("deleting stale UDP conntrack entries")
			p.stale.run(ctx, g.conn, g.compiler)
		case <-due.surplus:
			p.alive.work("deleting flows that should not be there")
			g.deleteSurplus(ctx)
		case <-due.rested:
		case <-due.again:
			p.alive.work("following the flows of others in table 0")
			p.followOthers(ctx)
		case <-due.network:
			p.alive.work("reading the node's network")
			p.lookAtNetwork(ctx)
		case <-p.in.Signal:
			p.alive.work("programming changes")
			if err := p.takeUpdate(ctx); err != nil {
				return err
			}
		case <-p.db.Changed():
			p.alive.work("applying changes of the switch's database")
			p.checkFailOpen(ctx)
			p.reconfigure(ctx)
		case conn := <-p.conns:
			p.alive.work("bringing the switch in step after connecting")
			g.connected(ctx, conn)
			p.countPins(ctx)
			g.readBack(ctx)
			p.checkTraffic()
			p.node.ask()
		case <-due.gone:
			p.alive.work("reconnecting")
			p.log.Warn("connection to the switch lost; installed flows stay; reconnecting",
				"error", g.conn.Err())
			g.disconnected(g.conn.Err())
		case <-p.drift:
			p.alive.work("reading the switch back after another controller's change")
			g.readBack(ctx)
		case <-p.other:
			p.alive.work("following the flows of others in table 0")
			p.followOthers(ctx)
		case <-count.C:
			p.alive.work("counting flows")
			p.countFlows(ctx)
		case <-audit.C:
			p.alive.work("reading the switch back")
			begun := time.Now()
			p.stale.beforeAudit()
			meanwhile := func() { p.takeWaiting(ctx); p.answerLooks(ctx) }
			g.audit(ctx, meanwhile)
			p.followOthers(ctx)
			g.lookBeyond(ctx, meanwhile)
			audit.Reset(max(p.set.AuditPeriod, auditPause*time.Since(begun)))
		case <-due.retry:
			p.alive.work("trying refused Services again")
			g.sync(ctx)
		case f := <-p.asks:
			p.alive.work("answering a question")
			f(ctx)
		case f := <-p.looks:
			p.alive.work("answering a question")
			f(ctx)
		}
	}
}

// auditPause is how many times as long as an audit took the loop rests before the next, at least: Open
// vSwitch is busy with it, and takes no changes from others meanwhile.
const auditPause = 9

// dueEvents are the events of loop that depend on the plane's state. A nil channel is not waited for.
type dueEvents struct {
	gone    <-chan struct{}  // the connection to the switch has ended
	network dataplane.Signal // the node's network has changed
	rested  <-chan time.Time // the network may be read again
	again   <-chan time.Time // the flows of others in table 0 are followed again
	retry   <-chan time.Time // refused Services are tried again
	forget  <-chan time.Time // stale UDP conntrack entries are deleted
	surplus <-chan time.Time // flows that should not be there are deleted
}

// due returns the events that loop waits for in the plane's present state.
func (p *Plane) due() (e dueEvents) {
	g := &p.prog

	e.network = p.network
	if wait := time.Until(p.node.rest); wait > 0 {
		e.network, e.rested = nil, time.After(wait)
	}
	if p.node.held {
		e.again = time.After(time.Until(p.node.returned.Add(returnPause)))
	}

	if g.conn != nil {
		e.gone = g.conn.Done()
		if t := g.refused.Next(); !t.IsZero() {
			e.retry = time.After(max(0, time.Until(t)))
		}
	}

	if g.pending != nil {
		if t, ok := p.stale.next(); ok {
			e.forget = time.After(max(0, time.Until(t)))
		}
		if g.left() > 0 {
			e.surplus = time.After(0)
		}
	}
	return e
}

// countFlows reads the counters that the loop checks every CountPeriod, after the node's network.
func (p *Plane) countFlows(ctx context.Context) {
	p.lookAtNetwork(ctx)
	p.checkFailOpen(ctx)
	p.countPins(ctx)
	if err := p.countDrops(ctx); err != nil && ctx.Err() == nil {
		p.log.Debug("cannot read the counters of dropped packets", "error", err)
		p.prog.stats.Failed(err)
	}
	p.prog.checkCount(ctx)
}

// report tells how far the loop is.
func (p *Plane) report() {
	if p.prog.inStep() {
		p.canary.ready.Store(p.prog.conn)
		p.in.Settled()
		p.in.WhileIdle(func() { p.hooks.InStep(dataplane.Families...) })
		p.in.WhileDivided(p.hooks.InStepBut)
	}
	p.publish()
	p.hooks.Lost(!p.prog.inStep() || p.in.Divided() || p.failOpen != "")
	p.hooks.FailOpen(p.failOpen != "")
}

// takeWaiting programs the changes that wait, if any do, amid longer work.
func (p *Plane) takeWaiting(ctx context.Context) {
	if p.in.Idle() {
		return
	}
	if err := p.takeUpdate(ctx); err != nil { // only the first update can fail
		p.log.Error("cannot program changes", "error", err)
	}
	p.report()
}

// maxLooks bounds the looks that are answered at once, so that those who never cease to ask hold up no change.
const maxLooks = 16

// answerLooks answers looks that wait, amid longer work.
func (p *Plane) answerLooks(ctx context.Context) {
	for range maxLooks {
		select {
		case f := <-p.looks:
			f(ctx)
		default:
			return
		}
	}
}

// takeUpdate brings the switch in step with what is new in the model.
func (p *Plane) takeUpdate(ctx context.Context) error {
	u := p.in.Take()
	if u == nil {
		return nil
	}
	p.node.model = u.Facts
	if p.prog.compiler == nil {
		err := p.prog.load(ctx, u.Ports)
		if err == nil {
			p.reconfigure(ctx) // the endpoints are known now
		}
		return err
	}
	if u.Node {
		p.reconfigure(ctx)
	}
	p.prog.update(ctx, u.Ports, u.Arrived)
	p.node.resolve(u.Ports)

	isExternal := func(f k8s.Frontend) bool { return f.Type == k8s.ExternalIP || f.Type == k8s.LoadBalancer }
	for _, sp := range u.Ports {
		if sp == nil || slices.ContainsFunc(sp.Frontends, isExternal) {
			p.checkTraffic()
			break
		}
	}
	return nil
}

// reconfigure applies changes of the node and the switch.
func (p *Plane) reconfigure(ctx context.Context) {
	if p.prog.compiler == nil || !p.db.Switch().Exists {
		// Nothing is known of a missing bridge. Its last facts apply when it returns, until newer ones come.
		return
	}
	if err := p.prog.reconfigure(ctx); err != nil {
		p.log.Error("cannot apply the node's new configuration; the previous one stays in force",
			"error", err)
		return
	}
	if p.prog.inStep() { // a request that the bridge loses is repeated after a second only
		p.node.ask()
	}
	p.checkTraffic()
}

// lookAtNetwork reads the node's network from the kernel and applies what has changed.
func (p *Plane) lookAtNetwork(ctx context.Context) {
	begun := time.Now()
	if !p.node.look() && begun.Before(p.node.renew) {
		if p.prog.inStep() {
			p.node.ask()
		}
		return
	}

	p.reconfigure(ctx)
	took := time.Since(begun)
	p.node.rest, p.node.renew = begun.Add((1+lookRest)*took), begun.Add((1+renewRest)*took)
}

// followOthers reconfigures the pipeline if the flows of others in table 0 do anything else than before.
func (p *Plane) followOthers(ctx context.Context) {
	if p.prog.conn == nil {
		p.node.held = false // the read-back over the next connection looks again
		return
	}
	changed := p.node.seeOthers(p.prog.conn, p.prog.unread)
	if changed {
		p.reconfigure(ctx)
	}

	decide := changed && p.node.others == flow.OthersDecide
	if decide || p.prog.beyond.stateful == nil && p.prog.conn != nil && p.prog.conn.Tracks(0) {
		p.prog.lookBeyond(ctx, func() { p.takeWaiting(ctx) })
	}
}

// checkTraffic keeps the routes for the node's own traffic.
func (p *Plane) checkTraffic() {
	if c := p.prog.compiler; c != nil && p.prog.permitted && p.db.Switch().Exists {
		cfg := c.Config()
		at := &p.node.kernel
		p.traffic.check(&cfg, at.network, at.external(c, &cfg), at.least)
	}
}

// countPins counts the clients of session affinity.
func (p *Plane) countPins(ctx context.Context) {
	if p.prog.conn == nil || !p.prog.permitted {
		return
	}
	if err := p.affinity.count(ctx, p.prog.conn, p.prog.compiler); err != nil && ctx.Err() == nil {
		p.log.Warn("cannot count the clients of session affinity", "error", err)
		p.prog.stats.Failed(err)
	}
}

// ask runs f, a look, on the loop and waits for it.
func (p *Plane) ask(ctx context.Context, f func()) error {
	return p.askLoop(ctx, p.looks, func(context.Context) { f() })
}

// askLoop is ask for an f that needs the loop's context: what it starts to program must not end with the
// question. way is looks or asks.
func (p *Plane) askLoop(
	ctx context.Context, way chan<- func(context.Context),
	f func(loop context.Context),
) error {
	done := make(chan struct{})
	select {
	case way <- func(loop context.Context) { defer close(done); f(loop) }:
	case <-ctx.Done():
		return fmt.Errorf("the data plane is busy: %w", ctx.Err())
	}
	<-done
	return nil
}

// Diff reads the switch back and compares it with what should be there; "" means equal. It changes nothing.
// It fails within seconds if the switch does not answer at all.
func (p *Plane) Diff(ctx context.Context) (string, error) {
	if err := p.Answers(ctx); err != nil {
		return "", err
	}
	d, err := p.Differences(ctx)
	if err != nil {
		return "", err
	}
	return d.Text(), nil
}

// Differences is like Diff and returns the flows and groups.
func (p *Plane) Differences(ctx context.Context) (d Differences, err error) {
	askErr := p.askLoop(ctx, p.asks, func(loop context.Context) {
		// The first update is the loop's, because its failure ends Run.
		for p.prog.compiler != nil && err == nil && !p.in.Idle() {
			err = p.takeUpdate(loop)
		}
		p.followOthers(loop)
		if err == nil {
			d, err = p.differences(ctx)
		}
	})
	return d, errors.Join(askErr, err)
}

func (p *Plane) differences(ctx context.Context) (d Differences, err error) {
	switch {
	case p.prog.compiler == nil:
		return d, errors.New("the agent's source has not synced yet")
	case p.prog.conn == nil:
		return d, p.notConnected()
	}
	d.Own, err = p.prog.diff(ctx)
	p.checkFailOpen(ctx)
	d.Foreign, d.FailOpen = p.prog.foreign, p.failOpen
	return d, err
}
