package pipeline

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Comparison compares a switch with what should be on it. It is told of the switch's objects one by one, in any order, and
// keeps those that are not as they should be. There is one at a time, and the Compiler must not be changed before its last
// call. A Comparison is not safe for concurrent use.
type Comparison struct {
	c      *Compiler
	number uint32 // in Compiler.wanted
	met    int    // objects that are as they should be
	// What was read and should not be there, or not like that.
	flows  map[flow.Key]*flow.Flow
	groups map[uint32]*flow.Group

	meters []flow.Meter // read
	read   int          // flows
}

// Compare begins a comparison, and with that ends the one before.
func (c *Compiler) Compare() *Comparison {
	c.comparisons++
	return &Comparison{
		c: c, number: c.comparisons,
		flows: map[flow.Key]*flow.Flow{}, groups: map[uint32]*flow.Group{},
	}
}

// Flow takes a flow that nkp installed itself. It is kept if it is not as it should be.
func (x *Comparison) Flow(f *flow.Flow) {
	x.read++
	if !x.meet(f.Digest(x.c.seed)) {
		x.flows[f.Key] = f
	}
}

// Group takes a group of nkp's range. It is kept if it is not as it should be.
func (x *Comparison) Group(g *flow.Group) {
	if !x.meet(g.Digest(x.c.seed)) {
		x.groups[g.ID] = g
	}
}

// Meter takes a meter of nkp's.
func (x *Comparison) Meter(m flow.Meter) { x.meters = append(x.meters, m) }

// Flows counts the flows that were read.
func (x *Comparison) Flows() int { return x.read }

// meet records that an object is there, and reports whether it should be, just so.
func (x *Comparison) meet(digest uint64) bool {
	last, wanted := x.c.wanted[digest]
	if wanted && last != x.number {
		x.c.wanted[digest] = x.number
		x.met++
	}
	return wanted
}

// Delta returns what turns the switch into what it should be.
func (x *Comparison) Delta() *flow.Delta {
	d := &flow.Delta{}
	if x.met < len(x.c.wanted) || len(x.flows)+len(x.groups) > 0 {
		x.collect(d)
	}
	e := edit{c: x.c}
	e.meters(x.meters)
	d.SetMeters, d.DelMeters = e.set, e.del
	d.Sort()
	return d
}

// collect compiles everything, for what is missing. What takes the place of something that was read ends up beside
// it; the rest of what was read is to go.
func (x *Comparison) collect(d *flow.Delta) {
	missing := func(digest uint64) bool { return x.c.wanted[digest] != x.number }
	flows, groups := maps.Clone(x.flows), maps.Clone(x.groups)
	shared := map[uint64]bool{} // done
	wantFlow := func(f *flow.Flow, digest uint64) {
		there := flows[f.Key]
		delete(flows, f.Key)
		if missing(digest) {
			d.ChangeFlow(there, f)
		}
	}
	x.c.each(func(o *objects) {
		for _, f := range o.flows {
			wantFlow(f, f.Digest(x.c.seed))
		}
		for _, f := range o.shared {
			if digest := f.Digest(x.c.seed); !shared[digest] {
				shared[digest] = true
				wantFlow(f, digest)
			}
		}
		for _, g := range o.groups {
			there := groups[g.ID]
			delete(groups, g.ID)
			if missing(g.Digest(x.c.seed)) {
				d.ChangeGroup(there, g)
			}
		}
	})
	for _, f := range flows {
		d.ChangeFlow(f, nil)
	}
	for _, g := range groups {
		d.ChangeGroup(g, nil)
	}
}

// Stale returns the connections to forget: those that the switch may have sent to endpoints which have stopped serving while
// nkp was not connected. What is as it should be leads to endpoints that serve.
func (x *Comparison) Stale() []flow.CTFilter {
	endpoints := map[uint32][]netip.AddrPort{} // by id of the Service port
	note := func(id uint32, as []flow.Action) {
		if p := x.c.owner[id]; p == nil || p.sp.Name.Protocol != "UDP" {
			return
		}
		for _, a := range as {
			if ct, ok := a.(flow.CT); ok && ct.NAT.Kind == flow.NATDst {
				endpoints[id] = append(endpoints[id], netip.AddrPortFrom(ct.NAT.Addr, ct.NAT.PortMin))
			}
		}
	}
	for id, g := range x.groups {
		for i := range g.Buckets {
			note(x.c.cfg.Layout.groupID(id), g.Buckets[i].Actions)
		}
	}
	for _, f := range x.flows {
		note(uint32(f.Cookie), f.Actions)
	}
	var out []flow.CTFilter
	for id, es := range endpoints {
		sp := x.c.owner[id].sp
		out = append(out, connectionsTo(&x.c.cfg, sp, notServing(es, sp))...)
	}
	slices.SortFunc(out, func(a, b flow.CTFilter) int { return cmp.Compare(a.String(), b.String()) })
	return out
}

// OrphanPins returns the pins that no Service port has a use for: those that a learn action on the switch has made which should
// not be there, or has made with another timeout. Pins themselves are never read, as there may be many.
func (x *Comparison) OrphanPins() (out []flow.Learned) {
	layout := &x.c.cfg.Layout
	for _, f := range x.flows {
		for _, a := range f.Actions {
			l, ok := a.(flow.Learn)
			if !ok || l.Table != layout.table(tablePins) || l.Cookie != layout.cookie(cookieLearned, uint32(l.Cookie)) {
				continue
			}
			if p := x.c.owner[uint32(l.Cookie)]; p == nil || pinTimeout(p.sp) != l.IdleTimeout {
				out = append(out, flow.Learned{Table: l.Table, Cookie: l.Cookie})
			}
		}
	}
	slices.SortFunc(out, func(a, b flow.Learned) int { return cmp.Compare(a.Cookie, b.Cookie) })
	return slices.Compact(out)
}
