package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// The conntrack entries of UDP connections to endpoints that stopped serving are deleted, and those of TCP
// connections to removed endpoints where their Service asks for it (pipeline/stale.go). A deletion stays
// pending until the switch has done it. The reasons for what follows are in README.md, "Stale UDP entries".
//
//   - On the kernel datapath, nkp lists the zone in the kernel's table and deletes stale entries itself, by
//     netlink. The switch has no part in it. This needs no memory of what changed. If it fails, nkp falls
//     back to the two methods below, which the userspace datapath always uses.
//   - A few filters go over OpenFlow (NXT_CT_FLUSH, Open vSwitch 3.1): for each the switch scans its
//     conntrack table once.
//   - Everything else, and everything missed while nkp or its connection was down, is found by one listing of
//     the zone over ovs-vswitchd's control socket, and each stale connection is deleted by its tuple.
const (
	// fewFilters are cheaper than a listing: one takes 0.5 µs of the switch's time for each connection, a
	// listing 5 µs.
	fewFilters = 3
	// maxListed is the most tracked connections for which a listing is requested: ovs-vswitchd does nothing
	// else while it lists.
	maxListed = 1_000_000
	// forgetLimit bounds one listing. A switch that is silent for so long loses its OpenFlow connection, too.
	forgetLimit = 15 * time.Second
	// flushLimit bounds how long filters are sent one after the other before the loop turns to other work.
	flushLimit = time.Second
	// flushBatch is how many connections are deleted at once: milliseconds of the switch's time.
	flushBatch = 500
	// lookAgain is the time between a scan and a second one: until the datapath flows are revalidated, new
	// connections are still made by the old OpenFlow flows. Revalidation normally ends within 2 s (Open
	// vSwitch: ofproto-dpif-upcall.c, udpif_revalidator).
	lookAgain = 2 * time.Second
	// After a scan that took t, nkp waits forgetRest*t before the next (kernelRest*t after a scan of the
	// kernel's table, which takes nkp's own CPU time only), and auditRest*t before a scan that only an audit
	// triggers.
	forgetRest, kernelRest, auditRest = 9, 1, 99
	// forgetRetry is the least pause after a failure.
	forgetRetry = 10 * time.Second
)

// backlog is what is to be deleted.
type backlog struct {
	all     bool // every stale connection
	closes  bool // TCP connections to removed endpoints are among it
	filters []flow.CTFilter
}

func (b *backlog) empty() bool { return !b.all && len(b.filters) == 0 }

func (b *backlog) add(all bool, filters []flow.CTFilter) {
	b.all, b.filters = b.all || all, append(b.filters, filters...)
	isTCP := func(f flow.CTFilter) bool { return f.IPProto == flow.ProtoTCP }
	b.closes = b.closes || slices.ContainsFunc(filters, isTCP)
	if len(b.filters) > pipeline.MaxStale { // only a listing helps
		b.all, b.filters = true, nil
	}
}

// staleUDP has the switch, or the kernel, delete the conntrack entries of stale UDP connections. Only
// Plane.Run's goroutine uses it.
type staleUDP struct {
	set   *Settings
	db    *ovsdb.Client
	hooks *Hooks
	log   *slog.Logger

	pending backlog // not deleted yet
	again   backlog // deleted once; a second time at due
	due     time.Time
	pause   time.Time // no scan before
	audit   time.Time // no scan for an audit before
	kernel  bool      // the last scan was of the kernel's table
	noFlush bool      // the switch cannot delete entries over OpenFlow
	problem string    // why connections are not listed; "": they are
	rest    restingIDs
	settled func() bool // see programmer
}

// probe finds out whether the switch can delete entries over OpenFlow. A new OpenFlow connection makes the
// next scan look for every stale entry.
func (u *staleUDP) probe(ctx context.Context, conn *ofctrl.Conn) {
	err := conn.ProbeCTFlush(ctx)
	u.noFlush = errors.Is(err, ofctrl.ErrNoCTFlush)
	if err != nil && !u.noFlush {
		u.log.Debug("cannot find out whether the switch deletes conntrack entries over OpenFlow",
			"error", err)
	}
	if u.noFlush {
		u.log.Info("the switch lacks "+ovsdb.CTFlush.String()+": stale UDP entries are deleted by netlink "+
			"(kernel datapath) or over ovs-vswitchd's control socket",
			"version", u.db.Switch().OVSVersion)
	}
	u.pending.add(true, nil)
}

// beforeAudit makes an audit scan for everything stale, unless scans have taken too much of the switch's
// time.
func (u *staleUDP) beforeAudit() {
	if time.Now().After(u.audit) {
		u.pending.add(true, nil)
	}
}

// next returns when to scan next, and whether there is anything to delete.
func (u *staleUDP) next() (at time.Time, ok bool) {
	switch {
	case !u.pending.empty():
		return u.pause, true
	case u.again.empty() || u.due.After(u.pause):
		return u.due, !u.again.empty()
	}
	return u.pause, true
}

// run deletes what is pending, if it is time. What fails stays pending. The switch must have been read back
// over conn.
func (u *staleUDP) run(ctx context.Context, conn *ofctrl.Conn, c *pipeline.Compiler) {
	begun := time.Now()
	if t, ok := u.next(); !ok || begun.Before(t) {
		return
	}

	second := backlog{}
	if !begun.Before(u.due) {
		second, u.again = u.again, backlog{}
	}
	todo := u.pending
	todo.add(second.all, second.filters)

	u.kernel = false
	rest, err := u.attempt(ctx, conn, c, todo)
	took := time.Since(begun)
	pause := forgetRest * took
	if u.kernel {
		pause = kernelRest * took
	}
	u.pause = time.Now().Add(pause)
	u.audit = time.Now().Add(auditRest * took)

	if err != nil {
		u.pending = todo
		if conn.Err() == nil { // else the next connection is the next try
			u.pause = u.pause.Add(forgetRetry)
		}
		u.log.Warn("cannot delete stale UDP conntrack entries; will retry", "error", err,
			"retryIn", time.Until(u.pause).Round(time.Second))
		return
	}

	first := u.pending
	u.pending = backlog{}
	u.pending.add(false, rest)
	if !first.empty() {
		u.again.add(first.all, first.filters)
		u.due = time.Now().Add(lookAgain)
	}
}

// attempt makes one attempt to delete the entries in todo. It returns the filters it had no time for.
func (u *staleUDP) attempt(
	ctx context.Context,
	conn *ofctrl.Conn,
	c *pipeline.Compiler,
	todo backlog,
) ([]flow.CTFilter, error) {
	if todo.all || u.noFlush || !u.cheap(c, todo.filters) {
		err := u.deleteListed(ctx, conn, c)
		u.recordProblem(err)
		switch {
		case err == nil:
			return nil, nil
		case conn.Err() != nil || ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded):
			// After forgetLimit some are left.
			return nil, err
		case u.noFlush:
			return nil, nil // status warns; the next audit tries again
		}
	}

	begun, families := time.Now(), map[k8s.Family]bool{}
	closing := c.ClosingFrontends()
	for ; len(todo.filters) > 0 && time.Since(begun) < flushLimit; todo.filters = todo.filters[1:] {
		f := &todo.filters[0]
		if pipeline.OnlyListed(f) {
			continue // status warns; the next audit tries again
		}
		if f.IPProto == flow.ProtoTCP && !closing.Ends(f.Dst, f.Replier) {
			continue // it has come back since: clients have connections to it that stay
		}
		// One by one: the switch answers echo requests between them.
		if err := conn.Flush(ctx, todo.filters[:1]); err != nil {
			return nil, err
		}
		families[k8s.FamilyOf(todo.filters[0].Dst.Addr())] = true
	}

	for family := range families {
		u.hooks.Forgot(family, 0, time.Since(begun)) // the switch does not report how many it deleted
	}
	return todo.filters, nil
}

// cheap reports whether filters are a better way than a listing, and as exact.
func (u *staleUDP) cheap(c *pipeline.Compiler, filters []flow.CTFilter) bool {
	// The kernel's tracker drops entries while the switch goes through them, and the switch ends a flush at
	// the first one that it does not find again, without an error (Open vSwitch: lib/ct-dpif.c,
	// ct_dpif_flush_tuple).
	if len(filters) > fewFilters || u.db.Switch().DatapathType != "netdev" {
		return false
	}
	serving := c.UDPFrontends()
	for _, f := range filters {
		if pipeline.OnlyListed(&f) {
			return false
		}
		if !f.Replier.IsValid() && len(serving[f.Dst]) > 0 {
			return false // another Service has the frontend now: some of the connections to it may be valid
		}
	}
	return true
}

// deleteListed lists the zone and deletes what is stale.
func (u *staleUDP) deleteListed(ctx context.Context, conn *ofctrl.Conn, c *pipeline.Compiler) error {
	ctx, cancel := context.WithTimeout(ctx, forgetLimit)
	defer cancel()
	begun, listed, forgotten := time.Now(), 0, map[k8s.Family]int{}
	zone, serving, closing := u.set.Layout.ZoneDNAT, c.UDPFrontends(), c.ClosingFrontends()

	// Also the null-NAT entries that the guards of an earlier run made: each could crash ovs-vswitchd when it
	// expires. Deleting an entry does not break its connection.
	cfg := c.Config()
	nullNAT := cfg.NoNullNAT && cfg.NoGuards

	unmarked := u.rest.begin(c, u.settled(), begun)
	mark := func(e *dpctl.Connection) error {
		delete(unmarked, pipeline.ReadMark(e.Mark).Port)
		return nil
	}
	stale := func(e *dpctl.Connection) bool {
		listed++
		_ = mark(e)
		return e.Protocol == "UDP" && serving.Stale(e.Mark, e.Frontend, e.Endpoint) ||
			e.Protocol == "TCP" && closing.Stale(e.Mark, e.Frontend, e.Endpoint) ||
			nullNAT && e.Mark == 0 && e.Frontend == e.Endpoint
	}

	var err error
	sw := u.db.Switch()
	if u.kernel = u.set.inKernel(&sw); u.kernel {
		for _, f := range dataplane.Families {
			begun := time.Now()
			forgotten[f], err = conntrack.Forget(ctx, f, zone, stale)
			u.hooks.Forgot(f, forgotten[f], time.Since(begun))
			if err != nil {
				break
			}
		}
		if err != nil && ctx.Err() == nil {
			u.log.Debug("cannot delete conntrack entries by netlink; asking the switch", "error", err)
			u.kernel = false
		}
	}
	if !u.kernel {
		err = u.deleteBySwitch(ctx, conn, zone, stale, forgotten)
		for _, f := range dataplane.Families {
			u.hooks.Forgot(f, forgotten[f], time.Since(begun))
		}
	}

	if err == nil && len(unmarked) > 0 && u.each(ctx, u.set.Layout.ZoneSNAT, mark) == nil {
		u.rest.free = unmarked
	}

	u.log.Debug("scanned for stale UDP conntrack entries",
		"entries", listed, "deleted", forgotten, "netlink", u.kernel,
		"took", time.Since(begun), "error", err)
	return err
}

// each calls do for each connection of a zone.
func (u *staleUDP) each(ctx context.Context, zone uint16, do func(*dpctl.Connection) error) error {
	if u.kernel {
		return eachInKernel(ctx, zone, do)
	}
	return dpctl.Find(u.set.OVSDB, u.db.Switch().DatapathType).Each(ctx, zone, do)
}

// deleteBySwitch has the switch list a zone, deletes the stale connections, and counts them.
func (u *staleUDP) deleteBySwitch(
	ctx context.Context,
	conn *ofctrl.Conn,
	zone uint16,
	stale func(*dpctl.Connection) bool,
	forgotten map[k8s.Family]int,
) error {
	t := dpctl.Find(u.set.OVSDB, u.db.Switch().DatapathType)
	if n, err := t.Count(ctx); err == nil && n > maxListed {
		return fmt.Errorf("the switch tracks %d connections, over the limit of %d for a listing: "+
			"ovs-vswitchd would be unresponsive for seconds", n, maxListed)
	}

	batch := make([]dpctl.Connection, 0, flushBatch)
	flush := func() error {
		var err error
		if u.noFlush {
			err = t.Forget(ctx, batch)
		} else {
			err = forget(ctx, conn, t, batch)
		}
		for i := range batch {
			if err == nil {
				forgotten[k8s.FamilyOf(batch[i].Frontend.Addr())]++
			}
		}
		batch = batch[:0]
		return err
	}

	err := t.Each(ctx, zone, func(c *dpctl.Connection) error {
		if c.Zone != zone || !stale(c) {
			return nil
		}
		if batch = append(batch, *c); len(batch) < flushBatch {
			return nil
		}
		return flush()
	})

	if err == nil && len(batch) > 0 {
		err = flush()
	}
	return err
}

// recordProblem records why a listing failed, for status, and logs it when it is new.
func (u *staleUDP) recordProblem(err error) {
	was := u.problem
	u.problem = ""
	switch {
	case err == nil:
		return
	case u.noFlush:
		u.problem = fmt.Sprintf("Open vSwitch %s lacks %s, and: %v. "+
			"A UDP client that keeps sending from one port keeps using a removed endpoint until its "+
			"conntrack entry times out", u.db.Switch().OVSVersion, ovsdb.CTFlush, err)
	default:
		u.problem = fmt.Sprintf("cannot list the connections that the switch tracks: "+
			"%v. After a restart of nkp or of its connection, "+
			"a UDP client that keeps sending from one port can keep using an endpoint that was removed in "+
			"the meantime until its conntrack entry times out. TCP connections to such an endpoint stay, "+
			"whatever the annotation "+k8s.AnnotationRemovedEndpoints+" of their Service says", err)
	}
	if u.problem != was {
		u.log.Warn(u.problem)
	}
}
