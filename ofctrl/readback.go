package ofctrl

import (
	"context"
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Filter says which objects on a switch are whose.
type Filter struct {
	// Cookie and CookieMask pick the flows of the state: those whose cookie is Cookie in the bits of CookieMask.
	Cookie, CookieMask uint64
	// Learned and LearnedMask pick those that learn actions made, from all flows. A mask of 0: none.
	Learned, LearnedMask uint64
	// Tables are read as a whole, with what others have there. Empty: no flows of others are read.
	Tables []uint8
	// GroupLo and GroupHi are the first and last group id of the state; GroupHi 0: no groups.
	GroupLo, GroupHi uint32
	Meters           []uint32 // meters of the state
}

// Visitor takes what a switch holds, object by object, as it is read. Its methods are called one at a time, on the connection's
// reader: they must not wait. What they are given is theirs.
type Visitor interface {
	// Flow takes a flow of the state, wherever it is. What has timeouts or anything else that flow's types cannot express
	// compares unequal to everything that can be wanted.
	Flow(*flow.Flow)
	// LearnedFlow takes a flow that a learn action made.
	LearnedFlow(*flow.Flow)
	// ForeignFlow takes a flow of others in Filter.Tables. Its key is as exact as those of the state.
	ForeignFlow(*flow.Flow)
	// Group and Meter take what the Filter picks; what was said of Flow holds.
	Group(*flow.Group)
	Meter(flow.Meter)
}

// Snapshot is a Visitor that keeps everything.
type Snapshot struct {
	State   *flow.State
	Learned []*flow.Flow
	Foreign []*flow.Flow
}

// Flow is part of Visitor, and so are the other four.
func (s *Snapshot) Flow(f *flow.Flow)        { s.State.Flows[f.Key] = f }
func (s *Snapshot) LearnedFlow(f *flow.Flow) { s.Learned = append(s.Learned, f) }
func (s *Snapshot) ForeignFlow(f *flow.Flow) { s.Foreign = append(s.Foreign, f) }
func (s *Snapshot) Group(g *flow.Group)      { s.State.Groups[g.ID] = g }
func (s *Snapshot) Meter(m flow.Meter)       { s.State.Meters[m.ID] = m }

// Conflicts gives the foreign flows that a flow of want has the table, priority and match of: to install want
// would overwrite them.
func (s *Snapshot) Conflicts(want *flow.State) []*flow.Flow {
	var out []*flow.Flow
	for _, f := range s.Foreign {
		if want.Flows[f.Key] != nil {
			out = append(out, f)
		}
	}
	return out
}

// Read asks the switch what it holds. It is not atomic: what others change meanwhile may be seen or not. After an error the
// visitor has seen a part.
func (c *Conn) Read(ctx context.Context, f Filter, v Visitor) error {
	r := &reading{filter: f, dec: newDecoder(), to: v, other: map[flow.Key]bool{}}
	if err := r.flows(ctx, c); err != nil {
		return fmt.Errorf("read flows: %w", err)
	}
	if err := r.groups(ctx, c); err != nil {
		return fmt.Errorf("read groups: %w", err)
	}
	if err := r.meters(ctx, c); err != nil {
		return fmt.Errorf("read meters: %w", err)
	}
	return nil
}

// ReadBack is Read for whoever wants all of it at hand.
func (c *Conn) ReadBack(ctx context.Context, f Filter) (*Snapshot, error) {
	s := &Snapshot{State: flow.NewState()}
	if err := c.Read(ctx, f, s); err != nil {
		return nil, err
	}
	return s, nil
}

// reading is a Read under way. Its fields are used by the reader while a question runs, else by Read.
type reading struct {
	filter Filter
	dec    *decoder
	to     Visitor
	seen   [2]uint64 // flows in filter.Tables that bear the cookie of the state, and of learned flows
	other  map[flow.Key]bool
	taken  int // flows
}

// cookies are the two kinds of flows that are not foreign.
func (f *Filter) cookies() [2]struct{ cookie, mask uint64 } {
	return [2]struct{ cookie, mask uint64 }{{f.Cookie, f.CookieMask}, {f.Learned, f.LearnedMask}}
}

// flows reads the tables as a whole, and the state's flows in all others only if there are any: the count
// is cheap.
func (r *reading) flows(ctx context.Context, c *Conn) error {
	f := r.filter
	tables := f.Tables
	err := c.ask(ctx, mpFlowDesc, len(tables), func(b []byte, i int) ([]byte, error) {
		return flowRequest(b, tables[i], 0, 0)
	}, r.flowReply)
	if err != nil {
		return err
	}
	for i, own := range f.cookies() {
		if own.mask == 0 {
			continue
		}
		if len(tables) > 0 {
			n, err := c.FlowCount(ctx, own.cookie, own.mask)
			if err != nil {
				return err
			}
			if n.Flows <= r.seen[i] {
				continue
			}
		}
		err := c.ask(ctx, mpFlowDesc, 1, func(b []byte, _ int) ([]byte, error) {
			return flowRequest(b, allTables, own.cookie, own.mask)
		}, r.ownReply)
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reading) flowReply(b []byte) error {
	for len(b) > 0 {
		fd, n, err := r.dec.flowDesc(b)
		if err != nil {
			return err
		}
		for i, own := range r.filter.cookies() {
			if own.mask != 0 && fd.flow.Cookie&own.mask == own.cookie {
				r.seen[i]++
			}
		}
		if err := r.flow(fd); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// ownReply is flowReply for flows in all tables: those in Tables are known already, and a flow may bear both cookies.
func (r *reading) ownReply(b []byte) error {
	for len(b) > 0 {
		fd, n, err := r.dec.flowDesc(b)
		if err != nil {
			return err
		}
		b = b[n:]
		if k := fd.flow.Key; !slices.Contains(r.filter.Tables, k.Table) && !r.other[k] {
			r.other[k] = true
			if err := r.flow(fd); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxObjects bounds the flows, and the groups, of one reading: what maxAnswer has room for if they are of the usual size. A
// switch that claims to hold more, in descriptions of next to nothing, would take gigabytes here.
var maxObjects = maxAnswer / 400

func (r *reading) flow(fd flowDesc) error {
	if r.taken++; r.taken > maxObjects {
		return fmt.Errorf("%w: more than %d flows", ErrTooMuch, maxObjects)
	}
	f := fd.flow
	switch {
	case r.filter.LearnedMask != 0 && f.Cookie&r.filter.LearnedMask == r.filter.Learned:
		r.to.LearnedFlow(f)
	case r.filter.CookieMask != 0 && f.Cookie&r.filter.CookieMask == r.filter.Cookie:
		if fd.timed != "" {
			f.Actions = append(f.Actions, flow.UnknownAction{Text: fd.timed})
		}
		r.to.Flow(f)
	default:
		r.to.ForeignFlow(f)
	}
	return nil
}

// groups asks for the ids of all groups and then for each of the range by itself. Asking for all descriptions at
// once makes ovs-vswitchd abort if any group, also one of somebody else, is too wide; see flow.Group.TooWide.
func (r *reading) groups(ctx context.Context, c *Conn) error {
	if r.filter.GroupHi == 0 {
		return nil
	}
	counters, err := c.GroupCounters(ctx, r.filter.GroupLo, r.filter.GroupHi)
	if err != nil {
		return err
	}
	if len(counters) > maxObjects {
		return fmt.Errorf("%w: more than %d groups", ErrTooMuch, maxObjects)
	}
	ids := make([]uint32, 0, len(counters))
	for id := range counters {
		ids = append(ids, id)
	}
	return c.ask(ctx, mpGroupDesc, len(ids), func(b []byte, i int) ([]byte, error) {
		return idRequest(b, ids[i]), nil
	}, func(b []byte) error {
		for len(b) > 0 {
			g, n, err := r.dec.groupDesc(b)
			if err != nil {
				return err
			}
			if g.ID >= r.filter.GroupLo && g.ID <= r.filter.GroupHi {
				r.to.Group(g)
			}
			b = b[n:]
		}
		return nil
	})
}

// meterAll is OFPM_ALL (OpenFlow 1.5.1 §7.3.4.5).
const meterAll = 0xffffffff

func (r *reading) meters(ctx context.Context, c *Conn) error {
	if len(r.filter.Meters) == 0 {
		return nil
	}
	return c.ask(ctx, mpMeterDesc, 1, func(b []byte, _ int) ([]byte, error) {
		return idRequest(b, meterAll), nil
	}, func(b []byte) error {
		for len(b) > 0 {
			m, n, err := meterDesc(b)
			if err != nil {
				return err
			}
			if slices.Contains(r.filter.Meters, m.ID) {
				r.to.Meter(m)
			}
			b = b[n:]
		}
		return nil
	})
}
