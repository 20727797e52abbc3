package bridge

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// programmer brings the switch in step with the compiler: it sends Deltas, keeps what the switch still has to accept, and reads
// the switch back. It belongs to the loop.
type programmer struct {
	set   *Settings
	hooks *Hooks
	log   *slog.Logger
	alive *liveness
	node  *node
	stale *staleUDP

	compiler *pipeline.Compiler // nil until the first Update
	conn     *ofctrl.Conn       // nil while there is none
	// pending is what the switch still has to accept. It is nil until the switch was read back over conn, and empty nearly
	// always: not nil implies that there are a compiler and a connection.
	pending  *flow.Delta
	surplus  map[flow.Key]*flow.Flow           // flows that should not be there, beyond what pending deletes
	behind   bool                              // pending holds more than what belongs to refused Service ports
	refused  *dataplane.Refusals[k8s.PortName] // by the switch; the zero PortName stands for what belongs to no Service
	fullSync bool                              // the transaction follows a read-back
	flows    int                               // on the switch, or flowsUnknown; set by the first read-back
	unread   map[uint8]int                     // tables with too many flows of others to look for conflicts, and how many
	stats    statistics
}

// connected takes up a new connection. The switch has to be read back then.
func (g *programmer) connected(ctx context.Context, conn *ofctrl.Conn) {
	if g.conn != nil { // the loop met the new connection before the end of the old one
		g.disconnected(g.conn.Err())
	}
	g.conn = conn
	g.stats.Connections++
	g.log.Info("connected to the switch", "bridge", g.set.Bridge)
	// The switch reports flows of other owners from now on, so that a transaction replaces none of them.
	if err := conn.Watch(ctx, g.set.Filter(), g.set.Layout.WatchedTables()); err != nil && ctx.Err() == nil && conn.Err() == nil {
		g.log.Warn("the switch does not report flows of other owners: one with the table, priority and match of nkp's is seen at the next audit only", "error", err)
	}
	g.meterFirst(ctx)
	g.stale.probe(ctx, conn)
}

// meterFirst puts the meter on a switch that nkp has just connected to, before anything is read or compared. After a
// restart of Open vSwitch its own scripts put back all flows of the bridge, those of all owners, in one bundle, but no meters:
// one flow of nkp's that names a missing meter would fail them all. An error here is met again, and handled, when everything is
// brought in step.
func (g *programmer) meterFirst(ctx context.Context) {
	if g.compiler == nil {
		return // nothing is known to have been installed
	}
	if meters := g.compiler.Meters(); len(meters) > 0 {
		if _, err := g.conn.Commit(ctx, &flow.Delta{SetMeters: meters}); err != nil {
			g.log.Debug("the meter is not there yet", "error", err)
		}
	}
}

// failed gives up the connection after an error. The client makes a new one.
func (g *programmer) failed(err error) {
	g.stats.failed(err)
	g.conn.Close()
	g.disconnected(err)
}

// disconnected forgets a connection that has ended, and what was known by it.
func (g *programmer) disconnected(err error) {
	g.alive.lost(err)
	g.stats.dropped += g.conn.PacketInDrops()
	if g.pending != nil {
		g.stale.pending.add(false, g.pending.FlushCT)
	}
	g.conn, g.pending = nil, nil
	clear(g.surplus)
}

// load compiles all Service ports for the first time.
func (g *programmer) load(ctx context.Context, ports map[k8s.PortName]*k8s.ServicePort) error {
	c, err := pipeline.NewCompiler(g.node.config())
	if err != nil {
		return err
	}
	c.Load(ports)
	g.compiler = c
	g.log.Info("compiled", "services", len(ports), "flows", c.Flows(), "groups", c.Groups())
	g.readBack(ctx)
	return nil
}

// update programs changed Service ports, nil for those that are gone, which arrived at a time.
func (g *programmer) update(ctx context.Context, ports map[k8s.PortName]*k8s.ServicePort, arrived time.Time) {
	for n := range ports {
		if g.refused.Has(n) { // a changed Service port is tried at once, and all of it: what it lacks is more than the change
			g.refused.Forget(n)
			g.behind = true
		}
	}
	d := g.compiler.Update(ports)
	g.push(ctx, d)
	if !d.Empty() && g.inForce(ports) {
		g.stats.programmed(time.Since(arrived))
	}
}

// reconfigure takes up the present configuration of node and switch.
func (g *programmer) reconfigure(ctx context.Context) error {
	d, err := g.compiler.Reconfigure(g.node.config())
	if err == nil {
		g.push(ctx, d)
	}
	return err
}

// inForce reports whether the switch has all it should have of these Service ports.
func (g *programmer) inForce(ports map[k8s.PortName]*k8s.ServicePort) bool {
	if !g.inStep() {
		return false
	}
	for n := range ports {
		if g.refused.Has(n) {
			return false
		}
	}
	return true
}

// inStep reports whether the switch has all it should have, but for Service ports that it refused.
func (g *programmer) inStep() bool { return g.pending != nil && !g.behind }

// maxRounds bounds how often one synchronisation starts over because the switch refused something: each round
// leaves out what was refused before. A switch that refuses a bundle when it is committed names only the first
// object, so that many bad ones would take many rounds: after these, each Service goes by itself.
const maxRounds = 4

// push sends a Delta of the compiler, together with what was pending before: nearly always nothing.
func (g *programmer) push(ctx context.Context, d *flow.Delta) {
	if d.Empty() || g.pending == nil {
		return // the read-back of the next connection finds out all there is to do
	}
	if !g.pending.Empty() {
		d = g.pending.Merge(d)
	}
	g.pending, g.behind = d, true
	g.sync(ctx)
}

// sync sends what is pending, and reports whether the switch took all of it. It does nothing without a connection or before the
// switch was read back.
func (g *programmer) sync(ctx context.Context) bool {
	for range maxRounds {
		if g.pending == nil {
			return false
		}
		now := time.Now()
		if d, rest := g.ready(now); d.Empty() || g.commit(ctx, d) {
			g.sent(rest, now)
			g.stale.run(ctx, g.conn, g.compiler)
			return true
		}
	}
	return g.syncEach(ctx)
}

// syncEach sends what is pending Service by Service, each in a transaction of its own, so that a refusal holds up its own
// Service only.
func (g *programmer) syncEach(ctx context.Context) bool {
	if g.pending == nil {
		return false
	}
	now := time.Now()
	d, rest := g.ready(now)
	parts := g.byOwner(d)
	g.log.Warn("the switch refuses too much: sending Service by Service", "parts", len(parts))
	done := true
	for _, part := range parts {
		if !g.commit(ctx, part) {
			rest = rest.Merge(part)
			done = false
		}
		if g.pending == nil {
			return false
		}
	}
	g.sent(rest, now)
	g.stale.run(ctx, g.conn, g.compiler)
	return done
}

// sent notes what is pending still: rest, which belongs to Service ports that wait, with the connections to forget then.
func (g *programmer) sent(rest *flow.Delta, now time.Time) {
	g.refused.ForgetIf(func(n k8s.PortName) bool { return !g.refused.Waits(n, now) }) // they were tried, and not refused again
	g.pending, g.behind, g.flows = rest, false, flowsUnknown
	if rest.Empty() && len(g.surplus) == 0 {
		g.flows = g.compiler.Flows()
	}
}

// commit sends one Delta as one transaction. If the switch refuses objects, their owners wait and commit returns false. A
// connection that fails is closed: the client makes a new one and everything is read back.
func (g *programmer) commit(ctx context.Context, d *flow.Delta) bool {
	for _, f := range d.SetFlows {
		delete(g.surplus, f.Key) // it takes the place of what was to go
	}
	res, err := g.conn.Commit(ctx, d)
	var tx *ofctrl.TxError
	switch {
	case err == nil:
		g.measured(d, res, 0, false)
	case errors.As(err, &tx) && tx.Installed():
		g.measured(d, res, 0, false)
		g.log.Warn("switch is in step, but not every meter was deleted", "error", err)
		g.stats.failed(err)
	case errors.As(err, &tx) && len(tx.Rejected) > 0:
		g.stats.failed(err)
		g.measured(d, res, len(tx.Rejected)+tx.More, false)
		g.noteRefused(tx.Rejected)
		return false
	default:
		if ctx.Err() == nil {
			g.log.Error("transaction failed; connecting anew", "error", err)
		}
		g.measured(d, res, 0, true)
		g.failed(err)
		return false
	}
	g.stale.pending.add(false, d.FlushCT)
	g.stats.synced(res, len(d.SetFlows)+len(d.DelFlows)+len(d.SetGroups)+len(d.DelGroups))
	g.log.Debug("switch is in step", "flows", len(d.SetFlows), "deleted", len(d.DelFlows), "groups", len(d.SetGroups),
		"deletedGroups", len(d.DelGroups), "took", res.Duration)
	return true
}

// measured calls the hooks for a transaction that is over.
func (g *programmer) measured(d *flow.Delta, res ofctrl.Result, refused int, failed bool) {
	g.hooks.Transaction(dataplane.Transaction{
		Flows: len(d.SetFlows) + len(d.DelFlows), Groups: len(d.SetGroups) + len(d.DelGroups),
		Refused: refused, Failed: failed, Took: res.Duration,
	})
	if refused == 0 && !failed {
		g.hooks.Synced(dataplane.Sync{Families: g.familiesOf(d), Full: g.fullSync, Took: res.Duration})
	}
}

// familiesOf returns the families that a Delta touches: both, if it touches what belongs to neither.
func (g *programmer) familiesOf(d *flow.Delta) []k8s.Family {
	var four, six bool
	note := func(f k8s.Family) bool {
		four, six = four || f != k8s.IPv6, six || f != k8s.IPv4
		return four && six
	}
	family := func(f *flow.Flow) k8s.Family {
		switch f.Match.EthType {
		case flow.EthIPv4:
			return k8s.IPv4
		case flow.EthIPv6:
			return k8s.IPv6
		}
		return 0
	}
	for _, flows := range [][]*flow.Flow{d.SetFlows, d.DelFlows} {
		for _, f := range flows {
			if note(family(f)) {
				return dataplane.Families
			}
		}
	}
	for _, group := range d.SetGroups {
		if n, _ := g.compiler.GroupOwner(group.ID); note(n.Family) {
			return dataplane.Families
		}
	}
	switch {
	case four:
		return dataplane.Families[:1:1]
	case six:
		return dataplane.Families[1:]
	}
	return dataplane.Families
}
