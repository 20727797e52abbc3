package bridge

import (
	"context"
	"errors"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// List adds the groups and flows of a Service port as the switch has them, in ovs-ofctl's syntax: those that nkp installs itself, not
// the clients of session affinity. It does not run on the loop. It fails within a second if the switch does not answer.
func (p *Plane) List(ctx context.Context, of k8s.PortName, to *dataplane.Listing) error {
	if err := p.Answers(ctx); err != nil {
		return err
	}
	l, conn := &p.set.Layout, p.conn()
	var cookies []flow.Cookies
	var lo, hi uint32
	if of == (k8s.PortName{}) {
		own, mask := l.StaticCookies()
		cookies = []flow.Cookies{{Cookie: own, Mask: mask}}
		lo, hi = l.Groups()
	} else {
		id, c, err := p.portID(ctx, of)
		if errors.Is(err, errNoFlows) {
			return nil
		} else if err != nil {
			return err
		}
		conn = c
		var own, mask uint64
		own, mask, lo, hi = l.PortObjects(id)
		all := ^uint64(0) // Open vSwitch finds whole cookies by an index; flows that drop have the bit outside mask
		cookies = []flow.Cookies{{Cookie: own, Mask: all}, {Cookie: own | ^mask, Mask: all}}
	}
	if conn == nil {
		return p.notConnected()
	}

	s, err := conn.ReadCounted(ctx, cookies, lo, hi, to.Most-len(to.Objects))
	if err != nil {
		return err
	}
	for _, g := range s.SortedGroups() {
		n := s.OfGroup[g.ID]
		to.Add(dataplane.Counted("group add "+g.String(), n.Packets, n.Bytes))
	}
	for _, f := range s.SortedFlows() {
		n := s.OfFlow[f.Key]
		to.Add(dataplane.Counted("flow add "+f.String(), n.Packets, n.Bytes))
	}
	to.More += s.More
	return nil
}
