package pipeline

import (
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Compiler holds the desired state of the switch and keeps it in step with the model. Pass it changes; each
// call returns the Delta for the switch. Compiling from scratch and compiling change by change result in the
// same State, but for the slots in which the endpoints are: these follow from the ones before each change, or
// from those on the switch (Comparison.Adopt). A Compiler is not safe for concurrent use.
//
// It keeps Service ports and digests, not flows. A port's flows depend only on the port, its id and slots,
// and the configuration, so the flows from before a change can be recompiled when they are needed
// (README.md, "Memory").
type Compiler struct {
	cfg   Config
	ids   ids
	ports map[k8s.PortName]*placed
	owner map[uint32]*placed // by id
	// withoutID are Service ports that are not compiled, because they got no id.
	withoutID map[k8s.PortName]*k8s.ServicePort
	common    objects
	refs      map[uint64]int32          // reference count of each shared flow, by digest
	drops     map[uint64]int            // see DropCookies
	limits    map[k8s.PortName][]string // see limitsOf; only of Service ports that have any

	flows, groups int // that should be on the switch
	// wanted maps the digest of each of these to the number of the last Comparison that found it on the
	// switch.
	wanted      map[uint64]uint32
	seed        maphash.Seed // of the digests
	few         []flow.Key   // memory for compilePort
	comparisons uint32       // begun
	across      uint32       // the Comparison that goes on while changes are made; 0: there is none
}

// NewCompiler returns a Compiler whose State is that of a cluster without Services. It fails on a bad layout.
func NewCompiler(cfg Config) (*Compiler, error) {
	if err := cfg.Layout.Validate(); err != nil {
		return nil, err
	}
	c := &Compiler{
		cfg: cfg.withDefaults(), ids: newIDs(),
		ports:     map[k8s.PortName]*placed{},
		owner:     map[uint32]*placed{},
		withoutID: map[k8s.PortName]*k8s.ServicePort{},
		refs:      map[uint64]int32{},
		drops:     map[uint64]int{},
		limits:    map[k8s.PortName][]string{},
		wanted:    map[uint64]uint32{},
		seed:      maphash.MakeSeed(),
	}
	c.common = c.compileCommon()
	c.add(&c.common, func(*flow.Flow) {}, func(*flow.Group) {})
	return c, nil
}

// Config returns the present configuration.
func (c *Compiler) Config() Config { return c.cfg }

// Flows returns the number of flows that should be on the switch.
func (c *Compiler) Flows() int { return c.flows }

// Groups returns the number of groups that should be on the switch.
func (c *Compiler) Groups() int { return c.groups }

// State compiles and returns the desired state: tens of megabytes for ten thousand Services. To compare it
// with a switch use Compare, which needs almost no memory.
func (c *Compiler) State() *flow.State {
	s := flow.NewState()
	for _, m := range c.Meters() {
		s.Meters[m.ID] = m
	}
	c.each(func(o *objects) {
		for _, f := range o.flows {
			s.Flows[f.Key] = f
		}
		for _, f := range o.shared {
			s.Flows[f.Key] = f
		}
		for _, g := range o.groups {
			s.Groups[g.ID] = g
		}
	})
	return s
}

// each compiles the common part, every Service port, and every id that rests, one after the other.
func (c *Compiler) each(do func(*objects)) {
	do(&c.common)
	for id := range c.ids.resting {
		o := c.restingObjects(id)
		do(&o)
	}
	for _, p := range c.ports {
		o := c.compilePort(p)
		do(&o)
	}
}

// Load adds the initial Service ports (nil: deleted before that). It returns no Delta: Compare finds what has
// to be sent.
func (c *Compiler) Load(ports map[k8s.PortName]*k8s.ServicePort) {
	for _, n := range slices.SortedFunc(maps.Keys(ports), k8s.PortName.Compare) {
		if sp := ports[n]; sp != nil {
			if p := c.assign(n, sp, nil); p != nil {
				o := c.compilePort(p)
				c.add(&o, func(*flow.Flow) {}, func(*flow.Group) {})
			}
		}
	}
}

// Update applies the new state of some Service ports (nil: deleted) and returns the changes for the switch.
func (c *Compiler) Update(changes map[k8s.PortName]*k8s.ServicePort) *flow.Delta {
	e := newEdit(c)
	c.update(e, changes)
	return e.delta()
}

// update applies the new state of some Service ports, in the order of their names. All old objects are
// removed before new ones are added: an address may move from one Service to another.
func (c *Compiler) update(e *edit, changes map[k8s.PortName]*k8s.ServicePort) {
	names := slices.SortedFunc(maps.Keys(changes), k8s.PortName.Compare)
	var added []objects
	for _, n := range names {
		if p := c.ports[n]; p != nil && changes[n] == nil {
			c.ids.leave(p.id)
			added = append(added, c.restingObjects(p.id))
		}
	}

	for _, n := range names {
		sp, old := changes[n], c.ports[n]
		if old != nil && sp != nil && old.sp.Partial && !sp.Partial && !old.postponed && old.sp.Equal(sp) {
			old.sp = sp
			added = append(added, c.compileUnserved(old))
			continue
		}
		var was, now objects
		var before *k8s.ServicePort
		if old != nil {
			before = old.sp
			was = c.compilePort(old)
			e.retire(old, sp)
			delete(c.ports, n)
			delete(c.owner, old.id)
		}

		delete(c.limits, n)
		delete(c.withoutID, n)
		if sp != nil {
			id, rested := c.ids.waiting[n]
			p := c.assign(n, sp, old)
			if p != nil {
				now = c.compilePort(p)
			}
			if rested && p != nil && p.id == id {
				o := c.restingObjects(id)
				e.remove(&o)
			}
		}

		e.flush = staleConnections(e.flush, &c.cfg, before, sp)
		e.flush = closedConnections(e.flush, &c.cfg, before, sp)
		was, now = trimEqual(was, now)
		e.remove(&was)
		added = append(added, now)
	}

	for i := range added {
		e.add(&added[i])
	}
}

// assign records a Service port and its id: that of old, which was there before, or a new one. It returns nil
// if there is no id to be had.
func (c *Compiler) assign(n k8s.PortName, sp *k8s.ServicePort, old *placed) *placed {
	p := &placed{sp: sp}
	if old != nil {
		p.id = old.id
	} else if p.id = c.ids.take(n); p.id == 0 {
		c.withoutID[n] = sp
		c.limits[n] = []string{fmt.Sprintf(
			"Service %s is not served yet: "+
				"%d Service ports of its namespace were deleted, "+
				"and connections of theirs may be left (limit: %d)",
			n, c.ids.shares[n.Namespace], MaxResting)}
		return nil
	}
	p.follow(old)
	c.ports[n], c.owner[p.id] = p, p
	c.noteLimits(sp)
	return p
}

// add adds the objects of one Service port, or the common ones. It counts references to shared flows, and
// calls newFlow and newGroup for each object that was not wanted before.
func (c *Compiler) add(o *objects, newFlow func(*flow.Flow), newGroup func(*flow.Group)) {
	add := func(f *flow.Flow, digest uint64) {
		c.flows++
		c.countDrop(f, 1)
		c.wanted[digest] = c.across
		newFlow(f)
	}
	for _, f := range o.flows {
		add(f, f.Digest(c.seed))
	}
	for _, f := range o.shared {
		d := f.Digest(c.seed)
		if c.refs[d]++; c.refs[d] == 1 {
			add(f, d)
		}
	}
	for _, g := range o.groups {
		c.groups++
		c.wanted[g.Digest(c.seed)] = c.across
		newGroup(g)
	}
}

// remove reverses add, and calls oldFlow and oldGroup for each object that is no longer wanted.
func (c *Compiler) remove(o *objects, oldFlow func(*flow.Flow), oldGroup func(*flow.Group)) {
	remove := func(f *flow.Flow, digest uint64) {
		c.flows--
		c.countDrop(f, -1)
		delete(c.wanted, digest)
		oldFlow(f)
	}
	for _, f := range o.flows {
		remove(f, f.Digest(c.seed))
	}
	for _, f := range o.shared {
		d := f.Digest(c.seed)
		if c.refs[d]--; c.refs[d] == 0 {
			delete(c.refs, d)
			remove(f, d)
		}
	}
	for _, g := range o.groups {
		c.groups--
		delete(c.wanted, g.Digest(c.seed))
		oldGroup(g)
	}
}

// Reconfigure switches to a new configuration and returns the changes for the switch. Services are recompiled
// only if a setting that they depend on has changed: adding or removing a pod recompiles none. It fails if
// the layout differs.
func (c *Compiler) Reconfigure(cfg Config) (*flow.Delta, error) {
	if cfg.Layout != c.cfg.Layout {
		return nil, fmt.Errorf("the layout of the pipeline cannot change while nkp runs")
	}
	e := newEdit(c)
	c.reconfigure(e, cfg.withDefaults())
	return e.delta(), nil
}

// reconfigure applies a configuration. It compares Service port by Service port and records only what
// differs, because all flows of all Services take gigabytes.
func (c *Compiler) reconfigure(e *edit, cfg Config) {
	before, meters := c.cfg, c.Meters()
	e.remove(&c.common)
	c.cfg = cfg
	e.meters(meters)
	c.common = c.compileCommon()

	var added objects // at the end: the order does not matter otherwise
	if !cfg.sameForServices(&before) {
		for _, p := range c.ports {
			c.cfg = before
			was := c.compilePort(p)
			c.cfg = cfg
			was, now := trimEqual(was, c.compilePort(p))
			e.remove(&was)
			added.append(now)
			added.shared = append(added.shared, now.shared...)
			c.noteLimits(p.sp)
		}
	}
	e.add(&c.common)
	e.add(&added)
}

func (c *Compiler) compileCommon() objects {
	b := builder{Config: &c.cfg}
	b.common()
	return b.objects
}

func (c *Compiler) compilePort(p *placed) objects {
	if p.postponed {
		return objects{}
	}
	b := builder{Config: &c.cfg, isShared: keys{few: c.few[:0]}}
	b.port(p)
	c.few = b.isShared.few
	return b.objects
}

// compileUnserved returns the flows that a port lacks while it is Partial: those that refuse the ports of a
// ClusterIP which no Service port serves. What they share with its other flows is there.
func (c *Compiler) compileUnserved(p *placed) objects {
	b, router := builder{Config: &c.cfg}, c.cfg.router()
	s := &service{builder: &b, placed: p}
	for i := range p.sp.Frontends {
		if f := &p.sp.Frontends[i]; f.Type == k8s.ClusterIP && router.Serves(f) {
			s.unserved(f)
		}
	}
	return objects{shared: slices.DeleteFunc(b.shared, func(f *flow.Flow) bool {
		return f.Priority != prioUnserved
	})}
}

// PinOwners returns the Service ports with session affinity, by the cookie of their pins.
func (c *Compiler) PinOwners() map[uint64]k8s.PortName {
	out := map[uint64]k8s.PortName{}
	for n, p := range c.ports {
		if p.sp.AffinitySeconds > 0 {
			out[c.cfg.Layout.cookie(cookieLearned, p.id)] = n
		}
	}
	return out
}

// Endpoints calls f for the address of each endpoint that runs elsewhere.
func (c *Compiler) Endpoints(f func(netip.Addr)) {
	for _, p := range c.ports {
		p.sp.EachRemoteEndpoint(f)
	}
}

// ExternalAddresses calls f for each address of a Service that is neither in a Service range nor the node's;
// for some several times.
func (c *Compiler) ExternalAddresses(f func(netip.Addr)) {
	for _, p := range c.ports {
		p.sp.EachExternalAddress(f)
	}
}

// Serves reports whether the Compiler has a Service port.
func (c *Compiler) Serves(n k8s.PortName) bool { return c.ports[n] != nil }

// Owner returns the Service port that a flow belongs to, by the flow's cookie.
func (c *Compiler) Owner(cookie uint64) (k8s.PortName, bool) {
	return c.nameOf(portID(cookie))
}

// GroupOwner returns which Service port a group belongs to.
func (c *Compiler) GroupOwner(group uint32) (k8s.PortName, bool) {
	return c.nameOf(c.cfg.Layout.groupID(group))
}

func (c *Compiler) nameOf(id uint32) (k8s.PortName, bool) {
	if p := c.owner[id]; p != nil {
		return p.sp.Name, true
	}
	return k8s.PortName{}, false
}

// Objects returns the flows and groups of one Service port as they should be on the switch, shared ones
// excluded.
func (c *Compiler) Objects(n k8s.PortName) ([]*flow.Flow, []*flow.Group) {
	p := c.ports[n]
	if p == nil {
		return nil, nil
	}
	o := c.compilePort(p)
	return o.flows, o.groups
}
