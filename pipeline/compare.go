package pipeline

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Comparison compares a switch with its desired state. It receives the switch's objects one by one, in any
// order, and keeps those that differ. Only a Compiler's latest Comparison is valid, and only until the next
// call of Update or Load. A Comparison is not safe for concurrent use, nor concurrently with its Compiler.
type Comparison struct {
	c       *Compiler
	number  uint32 // of this comparison; marks matched objects in Compiler.wanted
	matched int    // number of desired objects found on the switch
	// Objects on the switch that differ from the desired ones, or are not desired at all.
	flows  map[flow.Key]*flow.Flow
	groups map[uint32]*flow.Group
	ids    map[uint32]bool // of Service ports, of all objects that were read
	kept   map[uint32]int  // flows that differ, of ids that no Service port has; 0: of the others
	gone   map[uint32]*Gone

	// NoPings is set before meters are read if no flow uses one with the number of a meter on pings. Those
	// are strays then: another release, which does not know them, may have deleted only their flows.
	NoPings bool
	meters  []flow.Meter // found on the switch
	pings   bool         // pings are answered, or were until now: meters on pings are nkp's
	read    int          // number of flows read, equal or not

	// adopted are the flows of tableWide that were read, by group; nil unless Adopt was called.
	adopted    map[uint32][]slotFlow
	idsToAdopt bool // when all flows are read
}

// Compare begins a comparison. It invalidates the Compiler's previous one.
func (c *Compiler) Compare() *Comparison {
	c.comparisons++
	c.across = 0
	return &Comparison{
		c: c, number: c.comparisons,
		flows: map[flow.Key]*flow.Flow{}, groups: map[uint32]*flow.Group{},
		ids: map[uint32]bool{}, pings: c.cfg.AnswerPing,
		kept: map[uint32]int{}, gone: map[uint32]*Gone{},
	}
}

// Across allows changes of the Compiler until the next Compare, each of which must be on the switch before
// anything else is read. What they add counts as found. Only InStep may be asked afterwards.
func (x *Comparison) Across() { x.c.across = x.number }

// InStep reports whether the switch has all that is desired, and no other flow, group or meter of nkp's.
func (x *Comparison) InStep() bool {
	if len(x.flows)+len(x.groups)+len(x.gone) > 0 {
		return false
	}
	for _, number := range x.c.wanted {
		if number != x.number {
			return false
		}
	}
	e := edit{c: x.c}
	e.meters(x.meters)
	return len(e.set)+len(e.del) == 0
}

// Flow adds a flow of nkp's that was read from the switch. It keeps f if f differs from the desired state;
// the caller must not change f afterwards.
func (x *Comparison) Flow(f *flow.Flow) {
	x.read++
	x.ids[portID(f.Cookie)] = true
	_, pings := x.c.cfg.Layout.Pings()
	x.pings = x.pings || f.Cookie == pings
	x.noteSlot(f)
	if !x.match(f.Digest(x.c.seed)) && x.keeps(f) {
		x.flows[f.Key] = f
	}
}

// Group adds a group in nkp's range that was read from the switch. It keeps g if g differs from the desired
// state.
func (x *Comparison) Group(g *flow.Group) {
	x.flowsRead()
	id := x.c.cfg.Layout.groupID(g.ID)
	x.ids[id] = true
	if gone := x.gone[id]; gone != nil && x.c.owner[id] == nil {
		gone.Groups = append(gone.Groups, g.ID)
		return
	}
	if x.adopted != nil {
		x.adopt(g)
	}
	if !x.match(g.Digest(x.c.seed)) {
		x.groups[g.ID] = g
	}
}

// flowsRead is called when there are no more flows.
func (x *Comparison) flowsRead() {
	if x.idsToAdopt {
		x.idsToAdopt = false
		x.adoptIDs()
	}
}

// Meter adds a meter that was read from the switch after the flows. A meter with the id of one on pings is
// another program's where no flow of nkp's answers pings, unless it is a stray.
func (x *Comparison) Meter(m flow.Meter) {
	stray := x.NoPings && m.Rate > 0
	if x.pings || stray || !x.c.cfg.Layout.IsPingMeter(m.ID) {
		x.meters = append(x.meters, m)
	}
}

// Flows returns the number of flows that were read.
func (x *Comparison) Flows() int { return x.read }

// match records that an object is on the switch, and reports whether exactly this object is desired.
func (x *Comparison) match(digest uint64) bool {
	last, wanted := x.c.wanted[digest]
	if wanted && last != x.number {
		x.c.wanted[digest] = x.number
		x.matched++
	}
	return wanted
}

// Delta returns the changes that bring the switch to its desired state.
func (x *Comparison) Delta() *flow.Delta {
	x.flowsRead()
	d := &flow.Delta{}
	if x.matched < len(x.c.wanted) || len(x.flows)+len(x.groups) > 0 {
		x.collect(d)
	}
	e := edit{c: x.c}
	e.meters(x.meters)
	d.SetMeters, d.DelMeters = e.set, e.del
	d.Sort()
	return d
}

// collect compiles everything to find the missing objects. Each is paired with the object that was read under
// the same key or id, if any. Objects that were read and have no counterpart are deleted.
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

// Absent returns the Service ports of which nothing is on the switch, nor anything of another at a place
// where they are served.
func (x *Comparison) Absent() (out []*k8s.ServicePort) {
	x.flowsRead()
	placed := map[k8s.PortName]bool{} // what differs is where they are served
	for _, at := range x.c.servers(func(do func(*flow.Flow)) {
		for _, f := range x.flows {
			do(f)
		}
	}) {
		placed[at.name] = true
	}
	for n, p := range x.c.ports {
		if !p.postponed && !x.ids[p.id] && !placed[n] {
			out = append(out, p.sp)
		}
	}
	return out
}

// Postpone makes nothing of absent Service ports wanted before the next Update of them. They keep their ids.
func (x *Comparison) Postpone(absent []*k8s.ServicePort) {
	c := x.c
	for _, sp := range absent {
		p := c.ports[sp.Name]
		o := c.compilePort(p)
		for _, f := range o.shared {
			if d := f.Digest(c.seed); c.refs[d] == 1 && c.wanted[d] == x.number {
				x.flows[f.Key] = f
				x.matched--
			}
		}
		c.remove(&o, func(*flow.Flow) {}, func(*flow.Group) {})
		p.postponed = true
	}
}

// Stale returns filters for the conntrack entries to delete: UDP connections to endpoints that stopped
// serving while nkp was not running or not connected. It finds these endpoints in the objects that differ,
// because objects that match the desired state lead only to serving endpoints.
func (x *Comparison) Stale() []flow.CTFilter {
	x.flowsRead()
	endpoints := map[uint32][]netip.AddrPort{} // by id of the Service port
	note := func(id uint32, as []flow.Action) {
		if p := x.c.owner[id]; p == nil || p.sp.Name.Protocol != "UDP" {
			return
		}
		if to := translation(as); to.IsValid() {
			endpoints[id] = append(endpoints[id], to)
		}
	}

	for id, g := range x.groups {
		for i := range g.Buckets {
			note(x.c.cfg.Layout.groupID(id), g.Buckets[i].Actions)
		}
	}
	for _, f := range x.flows {
		note(portID(f.Cookie), f.Actions)
	}

	var out []flow.CTFilter
	for id, es := range endpoints {
		sp := x.c.owner[id].sp
		out = connectionsTo(out, &x.c.cfg, sp, notServing(es, sp))
	}
	slices.SortFunc(out, func(a, b flow.CTFilter) int { return cmp.Compare(a.String(), b.String()) })
	return out
}

// OrphanPins returns the session-affinity flows (pins) to delete: those of learn actions on the switch whose
// Service port is gone or has another affinity timeout. The pins themselves are never read, because there may
// be many.
func (x *Comparison) OrphanPins() (out []flow.Learned) {
	x.flowsRead()
	layout := &x.c.cfg.Layout
	for _, f := range x.flows {
		for _, a := range f.Actions {
			l, ok := a.(flow.Learn)
			if !ok || l.Table != layout.table(tablePins) {
				continue
			}
			if l.Cookie != layout.cookie(cookieLearned, uint32(l.Cookie)) {
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
