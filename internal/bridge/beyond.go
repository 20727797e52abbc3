package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// beyond is what the flows of others do with packets that nkp has passed on: those of the table where these
// go on, and of the tables and groups that they lead to, up to ofctrl.MaxForeign flows and maxGroups groups.
type beyond struct {
	stateful *offender // uses conntrack; nil: none does
	returns  *offender // may lead passed packets back to nkp's flows; nil: none does
	unread   string    // the first table, or the groups, that cannot be looked at
}

// offender is a flow of others with an effect that matters.
type offender struct {
	*flow.Flow
	group string // by which group it has the effect, as the end of a sentence; "": by itself
}

// maxGroups bounds the groups of others that are looked at.
const maxGroups = 4096

// search is a beyond under way. It follows the flows of others from table to table and group to group.
type search struct {
	beyond
	set    *Settings
	conn   *ofctrl.Conn
	sent   []netip.Addr // source addresses of the packets that beyond.returns is about; nil: any
	pause  func() error // between two parts
	sizes  [256]uint32  // of the tables
	left   uint32       // flows that may still be read
	tables []uint8      // to be read
	met    [256]bool    // tables that were read or are among tables, and nkp's own
	groups []uint32     // to be read
	// leads has the flow that leads to each group that was read, or is among groups.
	leads map[uint32]*flow.Flow
}

// note adds what a flow, or the buckets of a group that it leads to, can do with passed packets.
func (s *search) note(by offender, does *flow.Effects) {
	if s.stateful == nil && (does.Conntrack || by.group == "" && by.Match.CTState.Value != 0) {
		s.stateful = &by
	}
	if s.returns == nil && s.set.Layout.Returns(does) && s.mayMeet(by.Match.Src) {
		s.returns = &by
	}

	for t := range uint8(flow.NoTable) {
		if !s.met[t] && does.LeadTo(t) {
			s.met[t] = true
			s.tables = append(s.tables, t)
		}
	}

	ids, all := does.Groups()
	for _, id := range ids {
		switch {
		case s.leads[id] != nil:
		case len(s.leads) == maxGroups:
			all = false
		default:
			s.leads[id] = by.Flow
			s.groups = append(s.groups, id)
		}
	}
	if !all && s.unread == "" {
		s.unread = fmt.Sprintf("more than %d groups", len(s.leads))
	}
}

// mayMeet reports whether one of the packets can have a source address in src; the zero Prefix is all.
func (s *search) mayMeet(src netip.Prefix) bool {
	return s.sent == nil || !src.IsValid() || slices.ContainsFunc(s.sent, src.Contains)
}

// groupsAtOnce is how many groups are read between two pauses.
const groupsAtOnce = 512

// readGroups reads the next groups.
func (s *search) readGroups(ctx context.Context) error {
	ids := s.groups[:min(len(s.groups), groupsAtOnce)]
	s.groups = s.groups[len(ids):]
	err := s.conn.EachGroup(ctx, ids, func(g *flow.Group) {
		for i := range g.Buckets {
			does := flow.EffectsOf(g.Buckets[i].Actions)
			s.note(offender{s.leads[g.ID], fmt.Sprintf(", by group %d", g.ID)}, &does)
		}
	})
	switch {
	case errors.Is(err, ofctrl.ErrProtocol): // too wide to be described
		s.unread = fmt.Sprintf("groups from %d on", ids[0])
	case err != nil:
		return err
	}
	return s.pause()
}

// readTable reads the next table.
func (s *search) readTable(ctx context.Context) error {
	t := s.tables[0]
	s.tables = s.tables[1:]
	n := s.sizes[t]
	if n > s.left {
		s.unread, s.tables = fmt.Sprintf("table %d, with %d flows", t, n), nil
		return nil
	}
	s.left -= n
	return s.conn.EachForeign(ctx, s.set.Filter(), t, int(n), func(f *flow.Flow) {
		if s.set.Layout.PassedOn(f) {
			does := flow.EffectsOf(f.Actions)
			s.note(offender{Flow: f}, &does)
		}
	}, s.pause)
}

// beyond reads what the flows of others do with packets that nkp has passed on; beyond.returns is about those
// sent from some addresses (nil: any). It calls pause between two parts of them; an error of pause ends it.
func (s *Settings) beyond(
	ctx context.Context, conn *ofctrl.Conn, sent []netip.Addr, pause func() error,
) (beyond, error) {
	first, ok := s.Layout.ExitTable()
	if !ok {
		return beyond{}, nil
	}

	w := &search{
		set: s, conn: conn, sent: sent, pause: pause, left: ofctrl.MaxForeign,
		tables: []uint8{first}, leads: map[uint32]*flow.Flow{},
	}
	for _, t := range append(s.Layout.Tables(), first) {
		w.met[t] = true
	}
	var err error
	if w.sizes, err = conn.TableSizes(ctx); err != nil {
		return beyond{}, err
	}

	for err == nil && len(w.tables)+len(w.groups) > 0 {
		if len(w.groups) > 0 {
			err = w.readGroups(ctx)
		} else {
			err = w.readTable(ctx)
		}
	}
	if err != nil {
		err = fmt.Errorf("read the flows and groups of others: %w", err)
	}
	return w.beyond, err
}

// WhyReturns returns why a packet that nkp has passed on, sent from one of some addresses (nil: any), may
// come back to nkp's flows; "": it does not. A flow of others that changes the source address is not looked
// for.
func (s *Settings) WhyReturns(ctx context.Context, conn *ofctrl.Conn, sent []netip.Addr) (string, error) {
	b, err := s.beyond(ctx, conn, sent, func() error { return nil })
	switch {
	case err != nil:
		return "", err
	case b.returns != nil:
		return fmt.Sprintf("A flow of others may lead passed packets back to nkp's flows (to one of nkp's "+
			"tables, or it clears bit 31 of reg%d, --exit-register, which marks them)%s: %s",
			s.Layout.ExitRegister, b.returns.group, b.returns.Flow), nil
	case b.unread != "":
		return "The flows of others cannot all be checked: " + b.unread, nil
	}
	return "", nil
}

// Returns is Settings.WhyReturns for the plane's switch. It reads beside the loop, because changes must not
// wait for the flows of others.
func (p *Plane) Returns(ctx context.Context, sent []netip.Addr) (why string, err error) {
	if err := p.Answers(ctx); err != nil {
		return "", err
	}
	conn := p.conn()
	if conn == nil {
		return "", p.notConnected()
	}
	return p.set.WhyReturns(ctx, conn, sent)
}

// Consequence is what becomes of policies that use conntrack, for packets through Services.
const Consequence = "policies of others that use conntrack see client→endpoint on the way there and " +
	"Service→client on the way back"

// mayStart reports whether nkp may program the switch. At a start it must not where a flow of others uses
// conntrack on packets that nkp passes on, unless Settings.AllowStateful. Once it may, it goes on whatever
// flows come.
func (g *programmer) mayStart(ctx context.Context) bool {
	if !g.permitted && !g.set.AllowStateful {
		if g.lookBeyond(ctx, func() {}); g.conn == nil || g.beyond.stateful != nil {
			return false
		}
	}
	g.permitted = true
	return true
}

// lookBeyond updates beyond. It calls pause between two parts, which may program changes. A flow that uses
// conntrack is reported when it is the first.
func (g *programmer) lookBeyond(ctx context.Context, pause func()) {
	if g.conn == nil || g.set.AllowStateful {
		return
	}
	conn := g.conn
	found, err := g.set.beyond(ctx, conn, nil, func() error {
		if pause(); g.conn != conn {
			return errOvertaken
		}
		return nil
	})
	switch {
	case errors.Is(err, errOvertaken): // the next connection looks again
		return
	case err != nil:
		g.cannotRead(ctx, err)
		return
	}
	before := g.beyond.stateful
	if g.beyond = found; found.stateful != nil && before == nil {
		text := g.beyondWarnings()[0]
		g.log.Warn(text)
		g.hooks.Stateful(text)
	}
}

// beyondWarnings returns the warnings of `nkp status` about beyond, first of all that about conntrack.
func (g *programmer) beyondWarnings() (out []string) {
	if f := g.beyond.stateful; f != nil {
		text := fmt.Sprintf("a flow of others uses conntrack on packets that nkp passes on "+
			"(cookie=%#x,table=%d,priority=%d,%s)%s, and %s",
			f.Cookie, f.Table, f.Priority, f.Match, f.group, Consequence)
		if g.permitted {
			text += ": they may not hold for Services; --allow-stateful-policies lets nkp start beside them"
		} else {
			text += fmt.Sprintf(": nkp programs nothing before that flow is gone (looked for every %v), "+
				"or --allow-stateful-policies permits it",
				g.set.CountPeriod)
		}
		out = append(out, text)
	}
	if g.beyond.unread != "" {
		out = append(out, fmt.Sprintf("flows of others that may use conntrack cannot all be looked at: "+
			"%s (--allow-stateful-policies)", g.beyond.unread))
	}
	return out
}
