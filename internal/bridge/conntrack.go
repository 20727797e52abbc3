package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// usageAge is the maximum age of cached answers of the switch, so that status does not lag behind and costs
// the switch little.
const usageAge = 2 * time.Second

// asked is what a switch answered over its control socket.
type asked struct {
	usage     dpctl.Usage
	megaflows dpctl.Megaflows
	warnings  []string // about these, and contradictions
}

const noAnswer = "ovs-vswitchd does not answer in time"

// askSwitch returns how full the conntrack table and the flow cache of the bridge's datapath are, and
// warnings, at most usageAge old. It returns when the context ends, with NotKnown set if the switch has not
// answered by then.
func (p *Plane) askSwitch(ctx context.Context) asked {
	own := false
	a, err := p.usage.Get(ctx, func() (asked, error) {
		own = true
		sw := p.db.Switch()
		a := asked{usage: p.set.ConntrackUsage(ctx, &sw), megaflows: p.set.megaflows(ctx, &sw)}
		var notes portNotes
		a.warnings = slices.Concat(a.usage.Warnings(), a.megaflows.Warnings(), p.set.fragments(ctx, &sw),
			p.set.contradictions(ctx, &sw, &notes), p.shortTimeouts(ctx, &sw))
		notes.byConfig(ctx, p.conn())
		a.warnings = append(a.warnings, notes.warnings()...)
		if ctx.Err() == nil {
			seen := notes.byPort(time.Now())
			p.notes.Store(&seen)
		}
		return a, ctx.Err() // a caller with more time may get an answer
	})
	if err != nil && !own { // another call is asking
		a = asked{
			usage:     dpctl.Usage{Zones: []dpctl.Fill{}, NotKnown: noAnswer},
			megaflows: dpctl.Megaflows{NotKnown: noAnswer},
		}
	}
	return a
}

// Asked returns how full the conntrack table and the flow cache of the bridge's datapath are, and the number
// of warnings that follow from ovs-vswitchd's answers. The result is at most two seconds old. Asked waits for
// the switch until the context ends.
func (p *Plane) Asked(ctx context.Context) (usage dpctl.Usage, megaflows dpctl.Megaflows, warnings int) {
	a := p.askSwitch(ctx)
	return a.usage, a.megaflows, len(a.warnings)
}

// megaflows returns how full the flow cache of a bridge's datapath is.
func (s *Settings) megaflows(ctx context.Context, sw *ovsdb.Switch) dpctl.Megaflows {
	m, err := s.daemon(sw).Megaflows(ctx)
	m.NotKnown = unknown(err)
	return m
}

// fragments returns a warning if the datapath takes no more fragments, or nearly. The kernel reassembles them
// with a bound of its own.
func (s *Settings) fragments(ctx context.Context, sw *ovsdb.Switch) []string {
	if sw.DatapathType != "netdev" {
		return nil
	}
	if f, err := s.daemon(sw).Fragments(ctx); err == nil {
		if w := dpctl.FragmentsWarning(f); w != "" {
			return []string{w}
		}
	}
	return nil
}

// unknown returns why the switch's numbers are not known; "": they are.
func unknown(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded):
		return noAnswer
	}
	return err.Error()
}

// ConntrackUsage returns how full the conntrack table of a bridge's datapath is.
func (s *Settings) ConntrackUsage(ctx context.Context, sw *ovsdb.Switch) dpctl.Usage {
	var u dpctl.Usage
	var table dpctl.Fill
	var tableErr, err error

	t := s.daemon(sw)
	u.Zones, err = t.Limits(ctx, s.Layout.ZoneDNAT, s.Layout.ZoneSNAT)

	switch {
	case s.inKernel(sw):
		if table, tableErr = conntrack.Usage(); tableErr == nil {
			u.Failures, tableErr = conntrack.Failures()
		}
	case sw.DatapathType != "netdev":
		tableErr = fmt.Errorf("bridge %s is in another network namespace, whose conntrack table cannot be "+
			"seen from here", s.Bridge)
	case err == nil:
		if table.Entries, tableErr = t.Count(ctx); tableErr == nil {
			table.Limit, tableErr = t.Max(ctx)
		}
		if tableErr == nil {
			u.Failures, tableErr = t.Failures(ctx)
		}
	default:
		tableErr = err
	}

	if tableErr == nil {
		u.Table = &table
	} else if err == nil {
		err = tableErr
	}

	u.NotKnown = unknown(err)
	return u
}

// tracker returns what a bridge's ovs-vswitchd can be asked by.
func (s *Settings) daemon(sw *ovsdb.Switch) dpctl.Daemon {
	return dpctl.Find(s.OVSDB, sw.DatapathType)
}

func (p *Plane) daemon() dpctl.Daemon { return dpctl.Find(p.set.OVSDB, p.db.Switch().DatapathType) }

// eachInKernel calls do for each connection of a zone of the kernel's table.
func eachInKernel(ctx context.Context, zone uint16, do func(*dpctl.Connection) error) error {
	for _, f := range dataplane.Families {
		if err := conntrack.Each(ctx, f, zone, do); err != nil {
			return err
		}
	}
	return nil
}

// Connections calls do for each connection in nkp's zone, to Services and directly to their endpoints. It
// reads the kernel's table by netlink. For a table of the userspace datapath with more than dpctl.MaxDetailed
// entries it returns an error.
func (p *Plane) Connections(ctx context.Context, do func(*dpctl.Connection) error) error {
	sw, zone := p.db.Switch(), p.set.Layout.ZoneDNAT
	if p.set.inKernel(&sw) {
		return eachInKernel(ctx, zone, do)
	}
	t := p.set.daemon(&sw)
	n, err := t.Count(ctx)
	switch {
	case err != nil:
		return err
	case n > dpctl.MaxDetailed:
		return fmt.Errorf("the conntrack table has %d entries, over the limit of %d for a listing",
			n, dpctl.MaxDetailed)
	}
	return t.EachDetailed(ctx, zone, do)
}

// inKernel reports whether the switch's connections are in the table of this network namespace's kernel: the
// datapath is the kernel's, and the bridge's own interface is here.
func (s *Settings) inKernel(sw *ovsdb.Switch) bool {
	ifc, err := net.InterfaceByName(s.Bridge)
	return sw.DatapathType == "system" && err == nil && len(sw.LocalMAC) > 0 &&
		bytes.Equal(ifc.HardwareAddr, sw.LocalMAC)
}

// usualTimeouts are timeouts in seconds below which connections that are alive lose their conntrack entry.
var usualTimeouts = map[string]int{
	"tcp_syn_sent": 5, "tcp_syn_recv": 5, "tcp_established": 300, "udp_first": 5, "udp_single": 5,
	"udp_multiple": 10,
}

// Timeouts returns the timeouts in seconds that the database sets for the zone of connections to Services.
func (p *Plane) Timeouts(ctx context.Context) (map[string]int, error) {
	return p.db.Timeouts(ctx, p.db.Switch().DatapathType, p.set.Layout.ZoneDNAT)
}

// shortTimeouts returns a warning for each of nkp's zones to which the database gives timeouts that are
// shorter than usual.
func (p *Plane) shortTimeouts(ctx context.Context, sw *ovsdb.Switch) (warnings []string) {
	for _, zone := range []uint16{p.set.Layout.ZoneDNAT, p.set.Layout.ZoneSNAT} {
		timeouts, err := p.db.Timeouts(ctx, sw.DatapathType, zone)
		if err != nil {
			return nil // a schema without them, or status says that the database is away
		}
		for _, name := range slices.Sorted(maps.Keys(usualTimeouts)) {
			if n, set := timeouts[name]; set && n < usualTimeouts[name] {
				warnings = append(warnings, fmt.Sprintf(
					"conntrack zone %d: CT_Timeout_Policy.timeouts:%s is %d s: "+
						"connections to Services that pause for longer break "+
						"(ovs-vsctl list-zone-tp %s)", zone, name, n, sw.DatapathType))
			}
		}
	}
	return warnings
}
