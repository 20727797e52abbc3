package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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

// UDP connections to endpoints that stopped serving are forgotten (pipeline/stale.go). What is to be forgotten stays pending
// until the switch has done it; docs/decisions/0015-stale-udp.md has the reasons for what follows.
//
//   - On the kernel datapath, nkp lists the zone in the kernel's table and deletes stale entries itself, by netlink. The switch
//     has no part in it. This needs no memory of what changed. Where it fails, the ways of the userspace datapath are left.
//   - A few filters go over OpenFlow (NXT_CT_FLUSH, Open vSwitch 3.1): for each the switch goes through its connections once.
//   - Everything else, and all that is unknown after nkp or its connection were away, is found by one listing of the zone over
//     ovs-vswitchd's control socket, and each stale connection is named to the switch.
const (
	// fewFilters are cheaper than a listing: one takes 0.5 µs of the switch's time for each connection, a listing 5 µs.
	fewFilters = 3
	// maxFilters bounds the filters that are pending. Beyond, only a listing helps.
	maxFilters = 1 << 16
	// maxListed bounds the connections of a switch that lists them, as it does nothing else meanwhile.
	maxListed = 1_000_000
	// forgetLimit bounds one listing. A switch that is silent for so long loses its OpenFlow connection, too.
	forgetLimit = 15 * time.Second
	// flushLimit bounds how long filters are sent one after the other before the loop turns to other work.
	flushLimit = time.Second
	// flushBatch is how many connections are named to the switch at once: milliseconds of its time.
	flushBatch = 500
	// lookAgain is when connections are looked at a second time: until its datapath has taken up a change, the switch makes
	// connections by what was before. It tries to be done within 2 s (Open vSwitch: ofproto-dpif-upcall.c, udpif_revalidator).
	lookAgain = 2 * time.Second
	// forgetRest is how much longer than it took nkp leaves the switch alone after each look, kernelRest after a look at the
	// kernel's table, which takes nkp's time alone, and auditRest is the same before an audit's look, which nothing calls for.
	forgetRest, kernelRest, auditRest = 9, 1, 99
	// forgetRetry is the least pause after a failure.
	forgetRetry = 10 * time.Second
)

// backlog is what the switch has to forget.
type backlog struct {
	all     bool // every stale connection
	filters []flow.CTFilter
}

func (b *backlog) empty() bool { return !b.all && len(b.filters) == 0 }

func (b *backlog) add(all bool, filters []flow.CTFilter) {
	b.all, b.filters = b.all || all, append(b.filters, filters...)
	if len(b.filters) > maxFilters {
		*b = backlog{all: true}
	}
}

// staleUDP has the switch, or the kernel, forget stale UDP connections. It belongs to the loop.
type staleUDP struct {
	set   *Settings
	db    *ovsdb.Client
	hooks *Hooks
	log   *slog.Logger

	pending backlog // not forgotten yet
	again   backlog // forgotten once; a second time at due
	due     time.Time
	pause   time.Time // no look before
	audit   time.Time // no look for an audit before
	kernel  bool      // the last look was at the kernel's table
	noFlush bool      // the switch cannot forget connections over OpenFlow
	problem string    // why connections are not listed; "": they are
}

// probe finds out whether the switch forgets connections over OpenFlow. After a new connection everything stale is looked for.
func (u *staleUDP) probe(ctx context.Context, conn *ofctrl.Conn) {
	err := conn.ProbeCTFlush(ctx)
	u.noFlush = errors.Is(err, ofctrl.ErrNoCTFlush)
	if err != nil && !u.noFlush {
		u.log.Debug("cannot find out whether the switch forgets connections", "error", err)
	}
	if u.noFlush {
		u.log.Info("UDP connections to endpoints that are gone are forgotten by netlink (kernel datapath) or over ovs-vswitchd's control socket: over OpenFlow this needs Open vSwitch 3.1",
			"version", u.db.Switch().OVSVersion)
	}
	u.pending.add(true, nil)
}

// beforeAudit makes an audit look for everything stale, unless looks have taken too much of the switch's time.
func (u *staleUDP) beforeAudit() {
	if time.Now().After(u.audit) {
		u.pending.add(true, nil)
	}
}

// next returns when to look next, and whether there is anything to forget.
func (u *staleUDP) next() (at time.Time, ok bool) {
	switch {
	case !u.pending.empty():
		return u.pause, true
	case u.again.empty() || u.due.After(u.pause):
		return u.due, !u.again.empty()
	}
	return u.pause, true
}

// run forgets what is pending, if it is time. What fails stays pending. The switch must have been read back over conn.
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
	rest, err := u.once(ctx, conn, c, todo)
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
		u.log.Warn("cannot have the switch forget UDP connections to endpoints that are gone; trying again", "error", err,
			"retryIn", time.Until(u.pause).Round(time.Second))
		return
	}
	first := u.pending
	u.pending = backlog{filters: rest}
	if !first.empty() {
		u.again.add(first.all, first.filters)
		u.due = time.Now().Add(lookAgain)
	}
}

// once forgets once. It returns the filters whose turn has not come.
func (u *staleUDP) once(ctx context.Context, conn *ofctrl.Conn, c *pipeline.Compiler, todo backlog) ([]flow.CTFilter, error) {
	if todo.all || u.noFlush || !u.cheap(c, todo.filters) {
		err := u.listed(ctx, conn, c)
		u.note(err)
		switch {
		case err == nil:
			return nil, nil
		case conn.Err() != nil || ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded): // after forgetLimit some are left
			return nil, err
		case u.noFlush:
			return nil, nil // status warns; the next audit tries again
		}
	}
	begun, families := time.Now(), map[k8s.Family]bool{}
	for ; len(todo.filters) > 0 && time.Since(begun) < flushLimit; todo.filters = todo.filters[1:] {
		// One by one: the switch answers echo requests between them.
		if err := conn.Flush(ctx, todo.filters[:1]); err != nil {
			return nil, err
		}
		families[k8s.FamilyOf(todo.filters[0].Dst.Addr())] = true
	}
	for family := range families {
		u.hooks.Forgot(family, 0, time.Since(begun)) // the switch does not say how many it forgot
	}
	return todo.filters, nil
}

// cheap reports whether filters are a better way than a listing, and as exact.
func (u *staleUDP) cheap(c *pipeline.Compiler, filters []flow.CTFilter) bool {
	// The kernel's tracker forgets connections while the switch goes through them, and the switch ends a flush at the first that
	// it does not meet again, without an error (Open vSwitch: lib/ct-dpif.c, ct_dpif_flush_tuple).
	if len(filters) > fewFilters || u.db.Switch().DatapathType != "netdev" {
		return false
	}
	serving := c.UDPFrontends()
	for _, f := range filters {
		if !f.Replier.IsValid() && len(serving[f.Dst]) > 0 {
			return false // another Service has the frontend now: some of its connections may be right
		}
	}
	return true
}

// inKernel reports whether the switch's connections are in the table of this network namespace's kernel: the datapath is the
// kernel's, and the bridge's own interface is here.
func (u *staleUDP) inKernel() bool {
	sw := u.db.Switch()
	ifc, err := net.InterfaceByName(u.set.Bridge)
	return sw.DatapathType == "system" && err == nil && len(sw.LocalMAC) > 0 && bytes.Equal(ifc.HardwareAddr, sw.LocalMAC)
}

// listed lists the zone and forgets what is stale.
func (u *staleUDP) listed(ctx context.Context, conn *ofctrl.Conn, c *pipeline.Compiler) error {
	ctx, cancel := context.WithTimeout(ctx, forgetLimit)
	defer cancel()
	begun, listed, forgotten := time.Now(), 0, map[k8s.Family]int{}
	zone, serving := u.set.Layout.ZoneDNAT, c.UDPFrontends()
	// Entries of the guards of an earlier run, each of which could crash the switch when it ends. Their connections go on.
	cfg := c.Config()
	nullNAT := cfg.NoNullNAT && cfg.NoGuards
	stale := func(e *dpctl.Connection) bool {
		listed++
		return e.Protocol == "UDP" && serving.Stale(e.Mark, e.Frontend, e.Endpoint) || nullNAT && e.Mark == 0 && e.Frontend == e.Endpoint
	}
	var err error
	if u.kernel = u.inKernel(); u.kernel {
		for _, f := range dataplane.Families {
			begun := time.Now()
			forgotten[f], err = conntrack.Forget(ctx, f, zone, stale)
			u.hooks.Forgot(f, forgotten[f], time.Since(begun))
			if err != nil {
				break
			}
		}
		if err != nil && ctx.Err() == nil {
			u.log.Debug("cannot forget connections by netlink; asking the switch", "error", err)
			u.kernel = false
		}
	}
	if !u.kernel {
		err = u.bySwitch(ctx, conn, zone, stale, forgotten)
		for _, f := range dataplane.Families {
			u.hooks.Forgot(f, forgotten[f], time.Since(begun))
		}
	}
	u.log.Debug("looked for UDP connections to endpoints that are gone", "connections", listed, "forgotten", forgotten, "netlink", u.kernel,
		"took", time.Since(begun), "error", err)
	return err
}

// bySwitch has the switch list a zone, names the stale connections to it, and counts them.
func (u *staleUDP) bySwitch(ctx context.Context, conn *ofctrl.Conn, zone uint16, stale func(*dpctl.Connection) bool, forgotten map[k8s.Family]int) error {
	t, err := dpctl.Find(u.set.OVSDB, u.db.Switch().DatapathType)
	if err != nil {
		return err
	}
	if n, err := t.Count(ctx); err == nil && n > maxListed {
		return fmt.Errorf("the switch tracks %d connections; more than %d are not listed, as it would be silent for seconds", n, maxListed)
	}
	batch := make([]dpctl.Connection, 0, flushBatch)
	flush := func() error {
		err := u.these(ctx, conn, t, batch)
		for i := range batch {
			if err == nil {
				forgotten[k8s.FamilyOf(batch[i].Frontend.Addr())]++
			}
		}
		batch = batch[:0]
		return err
	}
	err = t.Each(ctx, zone, func(c *dpctl.Connection) error {
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

// these forgets single connections. One that is gone already is no error.
func (u *staleUDP) these(ctx context.Context, conn *ofctrl.Conn, t dpctl.Tracker, list []dpctl.Connection) error {
	if u.noFlush {
		return t.Forget(ctx, list)
	}
	filters := make([]flow.CTFilter, len(list))
	for i := range list {
		filters[i] = flow.CTFilter{Zone: list[i].Zone, IPProto: list[i].IPProto(), Src: list[i].Client, Dst: list[i].Frontend}
	}
	return conn.Flush(ctx, filters)
}

// note keeps what status says of a listing that failed, and logs it when it is new.
func (u *staleUDP) note(err error) {
	was := u.problem
	u.problem = ""
	switch {
	case err == nil:
		return
	case u.noFlush:
		u.problem = fmt.Sprintf("Open vSwitch %s cannot forget single connections over OpenFlow (3.1 and later can), and: %v. "+
			"A UDP client that keeps sending from one port stays with an endpoint that is gone until the entry times out", u.db.Switch().OVSVersion, err)
	default:
		u.problem = fmt.Sprintf("cannot list the connections that the switch tracks: %v. After a restart of nkp or of its connection, "+
			"a UDP client that keeps sending from one port can stay with an endpoint that went meanwhile until the entry times out", err)
	}
	if u.problem != was {
		u.log.Warn(u.problem)
	}
}
