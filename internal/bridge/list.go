package bridge

import (
	"context"
	"errors"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// List adds the groups and flows of a Service port as the switch has them, in ovs-ofctl's syntax: those that
// nkp installs itself, not the clients of session affinity. It reads in parts, not on the loop, and fails
// within a second if the switch does not answer.
func (p *Plane) List(ctx context.Context, of k8s.PortName, to *dataplane.Listing) error {
	if err := p.Answers(ctx); err != nil {
		return err
	}
	l, conn := &p.set.Layout, p.conn()
	var f ofctrl.Filter
	f.Cookie, f.CookieMask = l.StaticCookies()
	f.GroupLo, f.GroupHi = l.Groups()
	if of != (k8s.PortName{}) {
		id, _, err := p.portID(ctx, of)
		if errors.Is(err, errNoFlows) {
			return nil
		} else if err != nil {
			return err
		}
		f.Cookie, f.CookieMask, f.GroupLo, f.GroupHi = l.PortObjects(id)
	}
	if conn == nil {
		return p.notConnected()
	}

	all, err := conn.FlowCount(ctx, f.Cookie, f.CookieMask)
	if err != nil {
		return err
	}
	s := countedFlows{&ofctrl.Snapshot{State: flow.NewState()}, map[flow.Key]ofctrl.Counters{}, to.Most}
	err = conn.ReadInParts(ctx, f, s, s.full)
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	groups, err := conn.GroupCounters(ctx, f.GroupLo, f.GroupHi)
	if err != nil {
		return err
	}

	for _, g := range s.State.SortedGroups() {
		to.AddCounted("group add "+g.String(), groups[g.ID].Packets, groups[g.ID].Bytes)
	}
	for _, f := range s.State.SortedFlows() {
		to.AddCounted("flow add "+f.String(), s.counts[f.Key].Packets, s.counts[f.Key].Bytes)
	}
	to.More += max(0, len(groups)-len(s.State.Groups)) + max(0, int(all.Flows)-len(s.State.Flows))
	return nil
}

// countedFlows is a snapshot with what its flows have counted, of at most most flows.
type countedFlows struct {
	*ofctrl.Snapshot
	counts map[flow.Key]ofctrl.Counters
	most   int
}

// FlowCounters is part of ofctrl.CountingVisitor.
func (s countedFlows) FlowCounters(f *flow.Flow, n ofctrl.Counters) {
	if s.full() == nil {
		s.Flow(f)
		s.counts[f.Key] = n
	}
}

// errEnough ends a reading.
var errEnough = errors.New("enough flows")

func (s countedFlows) full() error {
	if len(s.State.Flows) >= s.most {
		return errEnough
	}
	return nil
}
