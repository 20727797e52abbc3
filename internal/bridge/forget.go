package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// UDP connections to endpoints that stopped serving are forgotten (pipeline/stale.go). What is to be forgotten is owed until
// the switch has done it; docs/decisions/0015-stale-udp.md has the reasons for what follows.
//
//   - On the kernel datapath, nkp lists the zone in the kernel's table and deletes stale entries itself, by netlink. The switch
//     has no part in it. This needs no memory of what changed. Where it fails, the ways of the userspace datapath are left.
//   - A few filters go over OpenFlow (NXT_CT_FLUSH, Open vSwitch 3.1): for each the switch goes through its connections once.
//   - Everything else, and all that is unknown after nkp or its connection were away, is found by one listing of the zone over
//     ovs-vswitchd's control socket, and each stale connection is named to the switch.
const (
	// fewFilters are cheaper than a listing: one takes 0.5 µs of the switch's time for each connection, a listing 5 µs.
	fewFilters = 3
	// maxFilters bounds the filters that are owed. Beyond, only a listing helps.
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

// debt is what the switch has to forget.
type debt struct {
	all     bool // every stale connection
	filters []flow.CTFilter
}

func (d *debt) none() bool { return !d.all && len(d.filters) == 0 }

func (d *debt) add(all bool, filters []flow.CTFilter) {
	d.all, d.filters = d.all || all, append(d.filters, filters...)
	if len(d.filters) > maxFilters {
		*d = debt{all: true}
	}
}

// forgetting is what the loop knows of connections to be forgotten.
type forgetting struct {
	owed    debt // looked for as soon as rest is over
	again   debt // was looked for; a second time at due
	due     time.Time
	rest    time.Time // nothing is looked for before
	audited time.Time // no audit looks before
	kernel  bool      // the last look was at the kernel's table
	lacks   bool      // the switch cannot forget connections over OpenFlow
	cannot  string    // why connections are not listed; "": they are
}

// probeForget finds out whether the switch forgets connections over OpenFlow.
func (p *Plane) probeForget(ctx context.Context) {
	err := p.conn.ProbeCTFlush(ctx)
	p.forgets.lacks = errors.Is(err, ofctrl.ErrNoCTFlush)
	if err != nil && !p.forgets.lacks {
		p.log.Debug("cannot find out whether the switch forgets connections", "error", err)
	}
	if p.forgets.lacks {
		p.log.Info("UDP connections to endpoints that are gone are forgotten by netlink (kernel datapath) or over ovs-vswitchd's control socket: over OpenFlow this needs Open vSwitch 3.1",
			"version", p.db.Switch().OVSVersion)
	}
	p.forgets.owed.add(true, nil)
}

func (p *Plane) tracker() (dpctl.Tracker, error) {
	return dpctl.Find(p.set.OVSDB, p.db.Switch().DatapathType)
}

// next returns when to forget next, and whether there is anything to forget.
func (f *forgetting) next() (at time.Time, ok bool) {
	switch {
	case !f.owed.none():
		return f.rest, true
	case f.again.none() || f.due.After(f.rest):
		return f.due, !f.again.none()
	}
	return f.rest, true
}

// forget has the switch forget what it owes, if it is time. What fails stays owed.
func (p *Plane) forget(ctx context.Context) {
	f := &p.forgets
	begun := time.Now()
	if t, ok := f.next(); !ok || begun.Before(t) || p.conn == nil || p.gap == nil || p.compiler == nil {
		return
	}
	second := debt{}
	if !begun.Before(f.due) {
		second, f.again = f.again, debt{}
	}
	todo := f.owed
	todo.add(second.all, second.filters)
	f.kernel = false
	rest, err := p.forgetOnce(ctx, todo)
	took := time.Since(begun)
	pause := forgetRest * took
	if f.kernel {
		pause = kernelRest * took
	}
	f.rest = time.Now().Add(pause)
	f.audited = time.Now().Add(auditRest * took)
	if err != nil {
		f.owed = todo
		if p.conn.Err() == nil { // else the next connection is the next try
			f.rest = f.rest.Add(forgetRetry)
		}
		p.log.Warn("cannot have the switch forget UDP connections to endpoints that are gone; trying again", "error", err,
			"retryIn", time.Until(f.rest).Round(time.Second))
		return
	}
	first := f.owed
	f.owed = debt{filters: rest}
	if !first.none() {
		f.again.add(first.all, first.filters)
		f.due = time.Now().Add(lookAgain)
	}
}

// forgetOnce forgets once. It returns the filters whose turn has not come.
func (p *Plane) forgetOnce(ctx context.Context, todo debt) ([]flow.CTFilter, error) {
	if todo.all || p.forgets.lacks || !p.cheap(todo.filters) {
		err := p.forgetListed(ctx)
		p.noteForget(err)
		switch {
		case err == nil:
			return nil, nil
		case p.conn.Err() != nil || ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded): // after forgetLimit some are left
			return nil, err
		case p.forgets.lacks:
			return nil, nil // status warns; the next audit tries again
		}
	}
	begun, families := time.Now(), map[k8s.Family]bool{}
	for ; len(todo.filters) > 0 && time.Since(begun) < flushLimit; todo.filters = todo.filters[1:] {
		// One by one: the switch answers echo requests between them.
		if err := p.conn.Flush(ctx, todo.filters[:1]); err != nil {
			return nil, err
		}
		families[k8s.FamilyOf(todo.filters[0].Dst.Addr())] = true
	}
	for family := range families {
		p.hooks.Forgot(family, 0, time.Since(begun)) // the switch does not say how many it forgot
	}
	return todo.filters, nil
}

// cheap reports whether filters are a better way than a listing, and as exact.
func (p *Plane) cheap(filters []flow.CTFilter) bool {
	// The kernel's tracker forgets connections while the switch goes through them, and the switch ends a flush at the first that
	// it does not meet again, without an error (Open vSwitch: lib/ct-dpif.c, ct_dpif_flush_tuple).
	if len(filters) > fewFilters || p.db.Switch().DatapathType != "netdev" {
		return false
	}
	serving := p.compiler.UDPFrontends()
	for _, f := range filters {
		if !f.Replier.IsValid() && len(serving[f.Dst]) > 0 {
			return false // another Service has the frontend now: some of its connections may be right
		}
	}
	return true
}

// inKernel reports whether the switch's connections are in the table of this network namespace's kernel: the datapath is the
// kernel's, and the bridge's own interface is here.
func (p *Plane) inKernel() bool {
	sw := p.db.Switch()
	ifc, err := net.InterfaceByName(p.set.Bridge)
	return sw.DatapathType == "system" && err == nil && len(sw.LocalMAC) > 0 && bytes.Equal(ifc.HardwareAddr, sw.LocalMAC)
}

// forgetListed lists the zone and forgets what is stale.
func (p *Plane) forgetListed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, forgetLimit)
	defer cancel()
	begun, listed, forgotten := time.Now(), 0, map[k8s.Family]int{}
	zone, serving := p.set.Layout.ZoneDNAT, p.compiler.UDPFrontends()
	// Entries of the guards of an earlier run, each of which could crash the switch when it ends. Their connections go on.
	cfg := p.compiler.Config()
	nullNAT := cfg.NoNullNAT && cfg.NoGuards
	stale := func(c *dpctl.Connection) bool {
		listed++
		return c.Protocol == "UDP" && serving.Stale(c.Mark, c.Frontend, c.Endpoint) || nullNAT && c.Mark == 0 && c.Frontend == c.Endpoint
	}
	var err error
	if p.forgets.kernel = p.inKernel(); p.forgets.kernel {
		for _, f := range dataplane.Families {
			begun := time.Now()
			forgotten[f], err = conntrack.Forget(ctx, f, zone, stale)
			p.hooks.Forgot(f, forgotten[f], time.Since(begun))
			if err != nil {
				break
			}
		}
		if err != nil && ctx.Err() == nil {
			p.log.Debug("cannot forget connections by netlink; asking the switch", "error", err)
			p.forgets.kernel = false
		}
	}
	if !p.forgets.kernel {
		err = p.forgetBySwitch(ctx, zone, stale, forgotten)
		for _, f := range dataplane.Families {
			p.hooks.Forgot(f, forgotten[f], time.Since(begun))
		}
	}
	p.log.Debug("looked for UDP connections to endpoints that are gone", "connections", listed, "forgotten", forgotten, "netlink", p.forgets.kernel,
		"took", time.Since(begun), "error", err)
	return err
}

// forgetBySwitch has the switch list a zone, names the stale connections to it, and counts them.
func (p *Plane) forgetBySwitch(ctx context.Context, zone uint16, stale func(*dpctl.Connection) bool, forgotten map[k8s.Family]int) error {
	t, err := p.tracker()
	if err != nil {
		return err
	}
	if n, err := t.Count(ctx); err == nil && n > maxListed {
		return fmt.Errorf("the switch tracks %d connections; more than %d are not listed, as it would be silent for seconds", n, maxListed)
	}
	batch := make([]dpctl.Connection, 0, flushBatch)
	flush := func() error {
		err := p.forgetThese(ctx, t, batch)
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

// forgetThese forgets single connections. One that is gone already is no error.
func (p *Plane) forgetThese(ctx context.Context, t dpctl.Tracker, list []dpctl.Connection) error {
	if p.forgets.lacks {
		return t.Forget(ctx, list)
	}
	filters := make([]flow.CTFilter, len(list))
	for i := range list {
		filters[i] = flow.CTFilter{Zone: list[i].Zone, IPProto: list[i].IPProto(), Src: list[i].Client, Dst: list[i].Frontend}
	}
	return p.conn.Flush(ctx, filters)
}

// noteForget keeps what status says of a listing that failed, and logs it when it is new.
func (p *Plane) noteForget(err error) {
	was := p.forgets.cannot
	p.forgets.cannot = ""
	switch {
	case err == nil:
		return
	case p.forgets.lacks:
		p.forgets.cannot = fmt.Sprintf("Open vSwitch %s cannot forget single connections over OpenFlow (3.1 and later can), and: %v. "+
			"A UDP client that keeps sending from one port stays with an endpoint that is gone until the entry times out", p.db.Switch().OVSVersion, err)
	default:
		p.forgets.cannot = fmt.Sprintf("cannot list the connections that the switch tracks: %v. After a restart of nkp or of its connection, "+
			"a UDP client that keeps sending from one port can stay with an endpoint that went meanwhile until the entry times out", err)
	}
	if p.forgets.cannot != was {
		p.log.Warn(p.forgets.cannot)
	}
}
