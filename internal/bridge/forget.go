package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// UDP connections to endpoints that stopped serving are forgotten (pipeline/stale.go): over OpenFlow since Open vSwitch
// 3.1, over ovs-vswitchd's control socket before, which takes a list of the zone's connections.

// forgetLimit bounds what is asked of the control socket at once. ovs-vswitchd answers there in the thread that also
// answers OpenFlow, so that there is nothing to gain by going on meanwhile.
const forgetLimit = 10 * time.Second

// probeForget finds out whether the switch forgets connections over OpenFlow.
func (p *Plane) probeForget(ctx context.Context) {
	err := p.conn.ProbeCTFlush(ctx)
	p.lacksCTFlush = errors.Is(err, ofctrl.ErrNoCTFlush)
	p.cannotForget = ""
	if !p.lacksCTFlush {
		if err != nil {
			p.log.Debug("cannot find out whether the switch forgets connections", "error", err)
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, forgetLimit)
	defer cancel()
	t, err := p.tracker()
	if err == nil {
		err = t.Check(ctx)
	}
	p.noteForget(err)
	if err == nil {
		p.log.Info("UDP connections to endpoints that are gone are forgotten over ovs-vswitchd's control socket: over OpenFlow this needs Open vSwitch 3.1",
			"version", p.db.Switch().OVSVersion, "socket", t.Control)
	}
}

func (p *Plane) tracker() (dpctl.Tracker, error) {
	return dpctl.Find(p.set.OVSDB, p.db.Switch().DatapathType)
}

// noteForget keeps what status says, and logs it when it is new.
func (p *Plane) noteForget(err error) {
	was := p.cannotForget
	p.cannotForget = ""
	if err == nil {
		return
	}
	p.cannotForget = fmt.Sprintf("Open vSwitch %s cannot forget single connections over OpenFlow (3.1 and later can), and: %v. "+
		"A UDP client that keeps sending from one port stays with an endpoint that is gone until the entry times out", p.db.Switch().OVSVersion, err)
	if p.cannotForget != was {
		p.log.Warn(p.cannotForget)
	}
}

// withoutFlush splits a Delta for a switch that lacks NXT_CT_FLUSH.
func (p *Plane) withoutFlush(d *flow.Delta) (*flow.Delta, []flow.CTFilter) {
	if !p.lacksCTFlush || len(d.FlushCT) == 0 {
		return d, nil
	}
	rest := *d
	rest.FlushCT = nil
	return &rest, d.FlushCT
}

// forget takes the connections of the filters out of the tracker over the control socket.
func (p *Plane) forget(ctx context.Context, filters []flow.CTFilter) {
	if len(filters) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, forgetLimit)
	defer cancel()
	begun := time.Now()
	n, err := p.forgetIn(ctx, filters)
	p.noteForget(err)
	p.log.Debug("forgot connections over the control socket", "connections", n, "filters", len(filters), "took", time.Since(begun), "error", err)
}

func (p *Plane) forgetIn(ctx context.Context, filters []flow.CTFilter) (int, error) {
	t, err := p.tracker()
	if err != nil {
		return 0, err
	}
	zones := map[uint16][]flow.CTFilter{}
	for _, f := range filters {
		zones[f.Zone] = append(zones[f.Zone], f)
	}
	n := 0
	for zone, filters := range zones {
		list, err := t.Connections(ctx, zone)
		if err != nil {
			return n, err
		}
		list = selected(list, filters)
		if err := t.Forget(ctx, list); err != nil {
			return n, err
		}
		n += len(list)
	}
	return n, nil
}

// numbers are the protocols' in IP headers.
var numbers = map[k8s.Protocol]uint8{"TCP": flow.ProtoTCP, "UDP": flow.ProtoUDP, "SCTP": flow.ProtoSCTP}

// selected gives those of the connections of one zone that any of the filters means.
func selected(list []dpctl.Connection, filters []flow.CTFilter) []dpctl.Connection {
	to := map[netip.AddrPort][]flow.CTFilter{}
	for _, f := range filters {
		to[f.Dst] = append(to[f.Dst], f)
	}
	means := func(c *dpctl.Connection, filters []flow.CTFilter) bool {
		for _, f := range filters {
			if f.IPProto == numbers[c.Protocol] && f.Zone == c.Zone && (f.Replier == c.Endpoint ||
				f.Replier == netip.AddrPortFrom(c.Endpoint.Addr(), 0) || f.Replier == netip.AddrPort{}) {
				return true
			}
		}
		return false
	}
	var out []dpctl.Connection
	for i := range list {
		c := &list[i]
		if means(c, to[c.Frontend]) || means(c, to[netip.AddrPortFrom(c.Frontend.Addr(), 0)]) {
			out = append(out, *c)
		}
	}
	return out
}
