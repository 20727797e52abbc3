package ofctrl

import (
	"context"
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Filter selects what is read of a switch.
type Filter struct {
	// Cookie and CookieMask select nkp's own flows: those whose cookie is Cookie in the bits of CookieMask. A
	// mask of 0: none.
	Cookie, CookieMask uint64
	// Volatile select further flows of nkp's own, which come and go with traffic. They are not read, and they
	// are not foreign.
	Volatile []flow.Cookies
	// Tables are those whose foreign flows (not nkp's) are read, too, up to MaxForeign.
	Tables []uint8
	// Keep reports whether Conn.Foreign returns a foreign flow in full; nil: none. It must not block.
	Keep func(*flow.Flow) bool
	// GroupLo and GroupHi are the first and last id of nkp's own groups; GroupHi 0: no groups.
	GroupLo, GroupHi uint32
	// IsMeter reports whether a meter is nkp's own; nil: none is. It must not block.
	IsMeter func(id uint32) bool
}

// Visitor receives the objects of a switch one by one, as they are read. Its methods are called one at a
// time, most of them on the connection's reader, so they must not block. The Visitor owns its arguments and
// may keep them.
type Visitor interface {
	// Flow takes one of nkp's own flows, from any table. A flow with a timeout, or with anything else that
	// package flow cannot represent, compares unequal to every desired flow.
	Flow(*flow.Flow)
	// ForeignFlow takes a foreign flow in Filter.Tables. Its Key is decoded in the same way as that of nkp's
	// own flows.
	ForeignFlow(*flow.Flow)
	// Unread takes a table of Filter.Tables whose foreign flows are too many to be read, and their number.
	Unread(table uint8, flows int)
	// Group and Meter take nkp's own groups and meters. Those that package flow cannot represent compare
	// unequal, as for Flow.
	Group(*flow.Group)
	Meter(flow.Meter)
}

// CountingVisitor is a Visitor that receives nkp's own flows with what they have counted (Counters.Flows is
// 0), not by Flow.
type CountingVisitor interface {
	Visitor
	FlowCounters(*flow.Flow, Counters)
}

// MaxForeign bounds the foreign flows of one Read, all tables together. The tables are read in the order of
// Filter.Tables, each completely or not at all.
const MaxForeign = 1 << 16

// Snapshot is a Visitor that keeps everything.
type Snapshot struct {
	State   *flow.State
	Foreign []*flow.Flow
	Skipped map[uint8]int // tables whose foreign flows are not in Foreign, and how many they hold
}

// Flow is part of Visitor, and so are the other four.
func (s *Snapshot) Flow(f *flow.Flow)         { s.State.Flows[f.Key] = f }
func (s *Snapshot) ForeignFlow(f *flow.Flow)  { s.Foreign = append(s.Foreign, f) }
func (s *Snapshot) Unread(table uint8, n int) { s.Skipped[table] = n }
func (s *Snapshot) Group(g *flow.Group)       { s.State.Groups[g.ID] = g }
func (s *Snapshot) Meter(m flow.Meter)        { s.State.Meters[m.ID] = m }

// Read reads the switch's state. It is not atomic: changes that others make meanwhile may be seen or not.
// After an error the visitor has received only a part.
func (c *Conn) Read(ctx context.Context, f Filter, v Visitor) error {
	return c.ReadInParts(ctx, f, v, nil)
}

// ReadInParts is like Read, and calls pause between two parts of a few thousand objects. While pause runs
// nothing is asked, so that it may Commit. An error of pause ends the reading.
func (c *Conn) ReadInParts(ctx context.Context, f Filter, v Visitor, pause func() error) error {
	r := &reading{filter: f, dec: newDecoder(), to: v, foreign: &c.foreign, pause: pause}
	if len(f.Tables) > 0 {
		c.foreign.begin()
	}
	if err := r.flows(ctx, c); err != nil {
		return fmt.Errorf("read flows: %w", err)
	}
	if len(f.Tables) > 0 {
		c.foreign.end(f.Tables)
	}
	if err := r.groups(ctx, c); err != nil {
		return fmt.Errorf("read groups: %w", err)
	}
	if err := r.meters(ctx, c); err != nil {
		return fmt.Errorf("read meters: %w", err)
	}
	return nil
}

// ReadBack reads everything into a Snapshot.
func (c *Conn) ReadBack(ctx context.Context, f Filter) (*Snapshot, error) {
	s := &Snapshot{State: flow.NewState(), Skipped: map[uint8]int{}}
	if err := c.Read(ctx, f, s); err != nil {
		return nil, err
	}
	return s, nil
}

// reading is a Read under way. Its fields are used by the connection's reader goroutine while a request is
// outstanding, otherwise by Read.
type reading struct {
	filter Filter
	dec    *decoder
	to     Visitor
	own    [256]int // nkp's own flows, by table

	expected int // how many of its own the switch has counted in the tables that were asked for
	taken    int // flows of either kind

	foreign *foreignFlows
	pause   func() error // between parts; nil: all is one part
}

// flows reads nkp's own flows from all tables, and then the foreign flows in Filter.Tables.
func (r *reading) flows(ctx context.Context, c *Conn) error {
	f := r.filter
	if f.CookieMask != 0 {
		if err := r.ownFlows(ctx, c); err != nil {
			return err
		}
	}

	if len(f.Tables) == 0 {
		return nil
	}
	sizes, err := c.TableSizes(ctx)
	if err != nil {
		return err
	}

	left := MaxForeign
	for _, t := range f.Tables {
		others := int(sizes[t]) - r.own[t]
		if r.pause != nil && others != 0 { // own flows may have come or gone since they were read
			own, err := c.FlowCount(ctx, f.Cookie, f.CookieMask, t)
			if err != nil {
				return err
			}
			others = int(sizes[t]) - int(own.Flows)
		}

		if others <= 0 {
			continue
		}
		volatile, err := c.countAll(ctx, f.Volatile, t)
		switch foreign := others - volatile; {
		case err != nil:
			return err
		case foreign <= 0:
			continue
		case others > left: // the reply has the volatile ones, too
			r.to.Unread(t, foreign)
			continue
		}

		left -= others
		err = r.foreignInParts(ctx, c, t, int(sizes[t]), func(fl *flow.Flow) {
			r.foreign.addRead(fl, f.Keep)
			r.to.ForeignFlow(fl)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// countAll returns how many flows of a table have one of the cookies.
func (c *Conn) countAll(ctx context.Context, cookies []flow.Cookies, table uint8) (sum int, err error) {
	for _, k := range cookies {
		n, err := c.FlowCount(ctx, k.Cookie, k.Mask, table)
		if err != nil {
			return 0, err
		}
		sum += int(n.Flows)
	}
	return sum, nil
}

// flowReply takes nkp's own flows.
func (r *reading) flowReply(b []byte) error {
	return r.each(b, func(fd flowDesc) {
		f := fd.flow
		if !r.filter.own(f.Cookie) {
			return
		}
		if fd.timed != "" {

			f.Actions = append(f.Actions, flow.UnknownAction{Text: fd.timed})
		}
		r.own[f.Table]++
		if to, ok := r.to.(CountingVisitor); ok {
			to.FlowCounters(f, Counters{Packets: fd.packets, Bytes: fd.size})
		} else {
			r.to.Flow(f)
		}
	})
}

// EachForeign calls take for each foreign flow of a table of about this size, on the connection's reader. f
// defines which cookies are not foreign. Large tables are read in parts, as by ReadInParts.
func (c *Conn) EachForeign(
	ctx context.Context, f Filter, table uint8, size int,
	take func(*flow.Flow), pause func() error,
) error {
	r := &reading{filter: f, dec: newDecoder(), foreign: &c.foreign, pause: pause}
	return r.foreignInParts(ctx, c, table, size, take)
}

// own reports whether a flow with this cookie is one of nkp's own.
func (f *Filter) own(cookie uint64) bool {
	return f.CookieMask != 0 && cookie&f.CookieMask == f.Cookie
}

// foreign reports whether a flow with this cookie is another owner's.
func (f *Filter) foreign(cookie uint64) bool {
	return !f.own(cookie) && !slices.ContainsFunc(f.Volatile, func(k flow.Cookies) bool {
		return cookie&k.Mask == k.Cookie
	})
}

// maxObjects bounds the flows of one reading beyond twice what the switch has counted before, and its groups:
// as many as fit into maxAnswer at their usual size. Without it a switch that sends a huge number of tiny
// descriptions could make nkp allocate gigabytes.
var maxObjects = maxAnswer / 400

func (r *reading) each(b []byte, take func(flowDesc)) error {
	return records(b, "flow description", flowDescLen, 0, func(b []byte) error {
		fd, err := r.dec.flowDesc(b)
		if err != nil {
			return err
		}
		if r.taken++; r.taken > maxObjects+2*r.expected {
			return fmt.Errorf("%w: %d flows; the switch counted %d", ErrTooMuch, r.taken, r.expected)
		}
		take(fd)
		return nil
	})
}

// groups asks for the ids of all groups and then for each of the range by itself. Asking for all descriptions
// at once makes ovs-vswitchd abort if any group, also one of another controller, has too many bytes of
// buckets; see flow.Group.TooWide.
func (r *reading) groups(ctx context.Context, c *Conn) error {
	if r.filter.GroupHi == 0 {
		return nil
	}
	var ids []uint32
	note := func(id uint32, _ []byte) { ids = append(ids, id) }
	if err := c.eachGroup(ctx, r.filter.GroupLo, r.filter.GroupHi, note); err != nil {
		return err
	}
	take := func(g *flow.Group) {
		if g.ID >= r.filter.GroupLo && g.ID <= r.filter.GroupHi {
			r.to.Group(g)
		}
	}
	if r.pause == nil {
		return c.EachGroup(ctx, ids, take)
	}
	for part := range slices.Chunk(ids, partSize) {
		if err := r.pause(); err != nil {
			return err
		}
		if err := c.EachGroup(ctx, part, take); err != nil {
			return err
		}
	}
	return nil
}

// EachGroup calls take for each of these groups that exists, on the connection's reader.
func (c *Conn) EachGroup(ctx context.Context, ids []uint32, take func(*flow.Group)) error {
	dec, described := newDecoder(), 0
	return c.ask(ctx, mpGroupDesc, len(ids), func(b []byte, i int) ([]byte, error) {
		return idRequest(b, ids[i]), nil
	}, func(b []byte) error {
		return records(b, "group description", groupDescLen, 0, func(b []byte) error {
			g, err := dec.groupDesc(b)
			if err != nil {
				return err
			}
			if described++; described > len(ids) {
				return fmt.Errorf("%w: more than the %d groups that were asked for", ErrTooMuch, len(ids))
			}
			take(g)
			return nil
		})
	})
}

// meterAll is OFPM_ALL (OpenFlow 1.5.1 §7.3.4.5).
const meterAll = 0xffffffff

func (r *reading) meters(ctx context.Context, c *Conn) error {
	if r.filter.IsMeter == nil {
		return nil
	}
	return c.ask(ctx, mpMeterDesc, 1, func(b []byte, _ int) ([]byte, error) {
		return idRequest(b, meterAll), nil
	}, func(b []byte) error {
		return records(b, "meter description", meterDescLen, 0, func(b []byte) error {
			if m := meterDesc(b); r.filter.IsMeter(m.ID) {
				r.to.Meter(m)
			}
			return nil
		})
	})
}
