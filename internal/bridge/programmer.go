package bridge

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// programmer keeps the switch in step with the compiler: it sends Deltas, keeps those that the switch has not
// accepted yet, and reads the switch back. Only Plane.Run's goroutine uses it.
type programmer struct {
	set   *Settings
	hooks *Hooks
	log   *slog.Logger
	alive *liveness
	node  *facts
	stale *staleUDP // deletes conntrack entries of UDP endpoints that are gone
	// later gives Service ports back, which come again in portions.
	later func([]*k8s.ServicePort)

	compiler *pipeline.Compiler // nil until the first Update
	conn     *ofctrl.Conn       // nil while there is none
	// pending is the Delta that is not installed yet. nil: the switch was not read back over conn yet. Empty:
	// the switch is in step, as it nearly always is. If pending is not nil, neither are compiler and conn.
	pending *flow.Delta
	surplus map[flow.Key]*flow.Flow // flows that should not be there, beyond what pending deletes
	gone    map[uint32]*pipeline.Gone
	// unsent: pending has changes that were not tried yet, not only those of refused Service ports.
	unsent bool
	// refused by the switch. The zero PortName stands for flows that belong to no Service.
	refused  *dataplane.Refusals[k8s.PortName]
	fullSync bool    // the transaction follows a read-back
	flows    int     // on the switch, or flowsUnknown; set by the first read-back
	others   *int    // flows of others in the tables of these, at the last checkCount; nil: not counted
	foreign  Foreign // as of the last lookForeign
	// permitted is set once the first read-back has found no flow of others that uses conntrack, or may
	// ignore it. Nothing is sent to the switch before.
	permitted bool
	beyond    beyond        // as of the last lookBeyond
	unread    map[uint8]int // foreign flows in each table that has too many to search it for conflicts
	stats     statistics
}

// connected switches to a new connection. The caller reads the switch back afterwards.
func (g *programmer) connected(ctx context.Context, conn *ofctrl.Conn) {
	if g.conn != nil { // the loop met the new connection before the end of the old one
		g.disconnected(g.conn.Err())
	}
	g.conn = conn
	g.stats.Connections++
	g.log.Info("connected to the switch", "bridge", g.set.Bridge)

	// From here on the switch reports flows that other controllers add, so that no transaction of nkp's
	// replaces one. The table of pins is left out, because it would report every client of session affinity;
	// an audit reads it.
	watched := slices.DeleteFunc(g.set.Layout.Tables(), func(t uint8) bool {
		return t == g.set.Layout.PinTable()
	})
	if err := conn.Watch(ctx, g.set.Filter(), watched); err != nil && ctx.Err() == nil && conn.Err() == nil {
		g.log.Warn("the switch cannot monitor flows: a conflicting flow of another controller will be "+
			"detected at the next audit only", "error", err)
	}

	// The refusal was the last connection's. The read-back that follows sends the difference.
	if (g.node.noMeter || g.node.oneMeter || g.node.noPings) && g.compiler != nil {
		g.node.noMeter, g.node.oneMeter, g.node.noPings = false, false, false
		if _, err := g.compiler.Reconfigure(g.node.config()); err != nil {
			g.log.Error("cannot change to a pipeline with all meters", "error", err)
		}
	}

	g.ensureMeters(ctx)
	g.stale.probe(ctx, conn)
}

// ensureMeters adds the meters to a switch that nkp has just connected to, before anything is read or
// compared. When Open vSwitch restarts, ovs-ctl restores the flows of all owners in one bundle, but no
// meters: a flow of nkp's that names a missing meter would fail the whole bundle. An error here recurs in the
// full sync that follows, and is handled there.
func (g *programmer) ensureMeters(ctx context.Context) {
	if g.compiler == nil || !g.permitted {
		return // nothing is known to have been installed
	}
	if meters := g.compiler.Meters(); len(meters) > 0 {
		if _, err := g.conn.Commit(ctx, &flow.Delta{SetMeters: meters}); err != nil {
			g.log.Debug("installing meters failed; the full sync tries again", "error", err)
		}
	}
}

// failed closes the connection after an error; ofctrl.Client reconnects.
func (g *programmer) failed(err error) {
	g.stats.Failed(err)
	g.conn.Close()
	g.disconnected(err)
}

// disconnected drops a connection that has ended, and the state learned over it.
func (g *programmer) disconnected(err error) {
	g.alive.lost(err)
	g.stats.dropped += g.conn.PacketInDrops()
	if g.pending != nil {
		g.stale.pending.add(false, g.pending.FlushCT)
	}
	g.conn, g.pending, g.foreign, g.others = nil, nil, Foreign{}, nil
	clear(g.surplus)
	clear(g.gone)
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

// update programs changed Service ports (nil: deleted). arrived is when the oldest of these changes came in.
func (g *programmer) update(ctx context.Context, ports map[k8s.PortName]*k8s.ServicePort, arrived time.Time) {
	for n := range ports {
		// It is retried at once and completely, because objects of earlier changes are missing, too.
		if g.refused.Has(n) {
			g.refused.Forget(n)
			g.unsent = true
		}
	}
	d := g.compiler.Update(ports)
	g.push(ctx, d)
	if !d.Empty() && g.installed(ports) {
		g.stats.changes.Add(time.Since(arrived))
	}
}

// reconfigure applies the present configuration of node and switch.
func (g *programmer) reconfigure(ctx context.Context) error {
	d, err := g.compiler.Reconfigure(g.node.config())
	if err == nil {
		g.push(ctx, d)
	}
	return err
}

// installed reports whether the switch holds everything wanted of these Service ports.
func (g *programmer) installed(ports map[k8s.PortName]*k8s.ServicePort) bool {
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

// inStep reports whether the switch holds everything wanted, except for Service ports that it refused.
func (g *programmer) inStep() bool { return g.pending != nil && !g.unsent }

// maxRounds bounds how often one synchronisation starts over because the switch refused something. Each round
// leaves out what was refused before. A switch that refuses a bundle at commit names only the first bad
// object, so that many bad ones would take many rounds. After maxRounds, each Service is sent in a bundle of
// its own.
const maxRounds = 4

// push sends a Delta of the compiler, merged with the pending one, which is nearly always empty.
func (g *programmer) push(ctx context.Context, d *flow.Delta) {
	if g.pending == nil || d.Empty() && !g.unsent {
		return // the read-back over the next connection finds all differences
	}
	if !g.pending.Empty() {
		d = g.pending.Merge(d)
	}
	g.pending, g.unsent = d, true
	g.sync(ctx)
}

// sync sends the pending Delta, except for Service ports in backoff, and reports whether the switch accepted
// it. It does nothing without a connection or before the switch was read back.
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

// syncEach sends the pending Delta Service by Service, each in a transaction of its own, so that a refusal
// delays only its own Service.
func (g *programmer) syncEach(ctx context.Context) bool {
	if g.pending == nil {
		return false
	}
	now := time.Now()
	d, rest := g.ready(now)
	parts := g.byOwner(d)
	g.log.Warn("the switch refuses too many objects: sending one bundle per Service", "bundles", len(parts))
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

// sent records that all is installed but rest: the changes of Service ports in backoff, with the conntrack
// entries to delete after them.
func (g *programmer) sent(rest *flow.Delta, now time.Time) {
	// The switch has accepted them now.
	g.refused.ForgetIf(func(n k8s.PortName) bool { return !g.refused.Waits(n, now) })
	g.pending, g.unsent, g.flows = rest, false, flowsUnknown
	if g.refused.Len() == 0 {
		g.stats.Recovered()
	}
	if rest.Empty() && g.left() == 0 {
		g.flows = g.compiler.Flows()
	}
}

// commit sends one Delta as one transaction. If the switch refuses objects, their Service ports enter backoff
// and commit returns false. A connection that fails is closed: ofctrl.Client reconnects, and everything is
// read back.
func (g *programmer) commit(ctx context.Context, d *flow.Delta) bool {
	for _, f := range d.SetFlows {
		delete(g.surplus, f.Key) // the flow to set replaces it
	}

	res, err := g.conn.Commit(ctx, d)
	var tx *ofctrl.TxError
	switch {
	case err == nil:
		g.measured(d, res, 0, false)
	case errors.As(err, &tx) && tx.Installed():
		g.measured(d, res, 0, false)
		g.log.Warn("switch is in step, but not every meter was deleted", "error", err)
		g.stats.Failed(err)
	case errors.As(err, &tx) && len(tx.Rejected) > 0:
		g.stats.Failed(err)
		g.measured(d, res, len(tx.Rejected)+tx.More, false)
		g.backOff(tx.Rejected)
		return false
	default:
		if ctx.Err() == nil {
			g.log.Error("transaction failed; reconnecting", "error", err)
		}
		g.measured(d, res, 0, true)
		g.failed(err)
		return false
	}

	g.stale.pending.add(false, d.FlushCT)
	g.stats.synced(res, len(d.SetFlows)+len(d.DelFlows)+len(d.SetGroups)+len(d.DelGroups))
	g.log.Debug("switch is in step",
		"flows", len(d.SetFlows), "deleted", len(d.DelFlows), "groups", len(d.SetGroups),
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
