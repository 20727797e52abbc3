package pipeline

import (
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Compiler holds what should be on the switch and keeps it in step with the model. Feed it changes; each call
// gives the Delta that the switch needs. Compiling from scratch and compiling change by change give the same
// State. A Compiler is not safe for concurrent use.
type Compiler struct {
	cfg   Config
	state *flow.State
	ids   *idTable
	ports map[k8s.PortName]*compiled
	trunk objects
	refs  map[flow.Key]int // how many sources ask for a shared flow
	owner map[uint32]k8s.PortName
}

// compiled is a Service port as it stands on the switch.
type compiled struct {
	sp *k8s.ServicePort
	id uint32
	objects
}

// NewCompiler gives a Compiler whose State is that of a cluster without Services. It fails on a bad layout.
func NewCompiler(cfg Config) (*Compiler, error) {
	if err := cfg.Layout.Validate(); err != nil {
		return nil, err
	}
	c := &Compiler{ids: newIDTable(), ports: map[k8s.PortName]*compiled{}, owner: map[uint32]k8s.PortName{}}
	c.reset(cfg)
	return c, nil
}

// State gives what should be on the switch. It changes with the next call of Update or Reconfigure; callers
// must not change it.
func (c *Compiler) State() *flow.State { return c.state }

// Config gives the configuration in force.
func (c *Compiler) Config() Config { return c.cfg }

// Update takes the new state of some Service ports (nil: gone) and gives what changes on the switch.
func (c *Compiler) Update(changes map[k8s.PortName]*k8s.ServicePort) *flow.Delta {
	e := newEdit(c)
	redo := map[k8s.PortName]*k8s.ServicePort{}
	moved := func(n k8s.PortName) {
		if p := c.ports[n]; p != nil {
			redo[n] = p.sp
		}
	}
	names := make([]k8s.PortName, 0, len(changes))
	for n := range changes {
		names = append(names, n)
	}
	slices.SortFunc(names, k8s.PortName.Compare)
	for _, n := range names {
		if changes[n] == nil {
			c.ids.remove(n, moved)
		} else {
			c.ids.add(n, moved)
		}
	}
	for n, sp := range changes {
		redo[n] = sp
	}
	// First everything old goes, then everything new comes: an address may pass from one Service to another.
	for n, sp := range redo {
		if old := c.ports[n]; old != nil {
			e.remove(&old.objects)
			e.retire(old, sp)
			delete(c.ports, n)
			delete(c.owner, old.id)
		}
	}
	for n, sp := range redo {
		if sp == nil {
			continue
		}
		p := &compiled{sp: sp, id: c.ids.ids[n]}
		p.objects = c.compilePort(sp, p.id)
		e.add(&p.objects)
		c.ports[n] = p
	}
	for n := range redo {
		if p := c.ports[n]; p != nil {
			c.owner[p.id] = n
		}
	}
	return e.delta()
}

// Reconfigure goes over to a new configuration and gives what changes on the switch. Services are compiled anew
// only if they depend on what is different: that pods come and go costs no more than the pods. It fails if the
// layout differs.
func (c *Compiler) Reconfigure(cfg Config) (*flow.Delta, error) {
	if cfg.Layout != c.cfg.Layout {
		return nil, fmt.Errorf("the layout of the pipeline cannot change while nkp runs")
	}
	if cfg.RejectRate == 0 {
		cfg.RejectRate = DefaultRejectRate
	}
	if !cfg.sameForServices(&c.cfg) || cfg.RejectRate != c.cfg.RejectRate || cfg.NoMeter != c.cfg.NoMeter {
		old := c.state
		c.reset(cfg)
		return flow.Diff(old, c.state), nil
	}
	c.cfg = cfg
	e := newEdit(c)
	e.remove(&c.trunk)
	c.trunk = c.compileTrunk()
	e.add(&c.trunk)
	return e.delta(), nil
}

func (c *Compiler) compileTrunk() objects {
	b := builder{Config: &c.cfg}
	b.trunk()
	return b.objects
}

func (c *Compiler) compilePort(sp *k8s.ServicePort, id uint32) objects {
	b := builder{Config: &c.cfg}
	b.port(sp, id)
	return b.objects
}

// reset compiles everything that is known from scratch.
func (c *Compiler) reset(cfg Config) {
	c.cfg = cfg
	if c.cfg.RejectRate == 0 {
		c.cfg.RejectRate = DefaultRejectRate
	}
	c.state = flow.NewState()
	c.refs = map[flow.Key]int{}
	if !cfg.NoMeter {
		c.state.Meters[cfg.Layout.MeterID] = flow.Meter{ID: cfg.Layout.MeterID, Rate: c.cfg.RejectRate, Burst: c.cfg.RejectRate}
	}
	e := newEdit(c)
	c.trunk = c.compileTrunk()
	e.add(&c.trunk)
	for _, p := range c.ports {
		p.objects = c.compilePort(p.sp, p.id)
		e.add(&p.objects)
	}
}

// Owner tells which Service port an object on the switch belongs to: a flow by its cookie.
func (c *Compiler) Owner(cookie uint64) (k8s.PortName, bool) {
	n, ok := c.owner[uint32(cookie)]
	return n, ok
}

// GroupOwner tells which Service port a group belongs to.
func (c *Compiler) GroupOwner(group uint32) (k8s.PortName, bool) {
	n, ok := c.owner[c.cfg.Layout.groupID(group)]
	return n, ok
}

// Objects gives the flows and groups of one Service port as they should be on the switch, shared ones excluded.
func (c *Compiler) Objects(n k8s.PortName) ([]*flow.Flow, []*flow.Group) {
	if p := c.ports[n]; p != nil {
		return p.flows, p.groups
	}
	return nil, nil
}

// Missing says, a line each, which facts are unknown and what is left out for want of them.
func (c *Compiler) Missing() []string {
	var out []string
	if len(c.cfg.NodeIPs) == 0 {
		out = append(out, "the node's addresses are unknown (--node-ip, or a Node object): no NodePorts, no masquerade, no hairpin")
	}
	if c.cfg.Uplink == 0 {
		out = append(out, "the uplink port is unknown (--uplink-port): a client port used both through a Service and directly to its endpoint can stall")
	}
	if !c.cfg.NodeMAC.IsZero() && c.cfg.GatewayMAC.IsZero() {
		out = append(out, "the gateway's MAC is unknown (--gateway-mac): traffic to NodePorts and LoadBalancer addresses is not routed back out")
	}
	for n, p := range c.ports {
		if n := max(len(p.sp.ClusterEndpoints), len(p.sp.LocalEndpoints)); p.sp.AffinitySeconds > 0 && n > MaxAffinityEndpoints {
			out = append(out, fmt.Sprintf("Service %s: %d endpoints with session affinity; the first %d are used",
				p.sp.Name, n, MaxAffinityEndpoints))
		}
		if p.sp.AffinitySeconds > MaxAffinitySeconds {
			out = append(out, fmt.Sprintf("Service %s: session affinity of %d s is cut to %d s, the longest an OpenFlow idle timeout holds",
				n, p.sp.AffinitySeconds, MaxAffinitySeconds))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// edit collects the changes of one step: what each touched key held before it.
type edit struct {
	c       *Compiler
	flows   map[flow.Key]*flow.Flow
	groups  map[uint32]*flow.Group
	learned []flow.Learned
	flush   []flow.CTFilter
}

func newEdit(c *Compiler) *edit {
	return &edit{c: c, flows: map[flow.Key]*flow.Flow{}, groups: map[uint32]*flow.Group{}}
}

func (e *edit) touchFlow(k flow.Key) {
	if _, ok := e.flows[k]; !ok {
		e.flows[k] = e.c.state.Flows[k]
	}
}

func (e *edit) touchGroup(id uint32) {
	if _, ok := e.groups[id]; !ok {
		e.groups[id] = e.c.state.Groups[id]
	}
}

func (e *edit) remove(o *objects) {
	for _, f := range o.flows {
		e.touchFlow(f.Key)
		delete(e.c.state.Flows, f.Key)
	}
	for _, g := range o.groups {
		e.touchGroup(g.ID)
		delete(e.c.state.Groups, g.ID)
	}
	for _, f := range o.shared {
		if e.c.refs[f.Key]--; e.c.refs[f.Key] == 0 {
			delete(e.c.refs, f.Key)
			e.touchFlow(f.Key)
			delete(e.c.state.Flows, f.Key)
		}
	}
}

func (e *edit) add(o *objects) {
	for _, f := range o.flows {
		e.touchFlow(f.Key)
		e.c.state.Flows[f.Key] = f
	}
	for _, g := range o.groups {
		e.touchGroup(g.ID)
		e.c.state.Groups[g.ID] = g
	}
	for _, f := range o.shared {
		if e.c.refs[f.Key]++; e.c.refs[f.Key] == 1 {
			e.touchFlow(f.Key)
			e.c.state.Flows[f.Key] = f
		}
	}
}

// retire notes what lives in the switch beside flows and groups: pins that Services without affinity no
// longer need, and connections that must be forgotten.
func (e *edit) retire(old *compiled, now *k8s.ServicePort) {
	l := e.c.cfg.Layout
	gone := now == nil || e.c.ids.ids[now.Name] != old.id
	if old.sp.AffinitySeconds > 0 && (gone || now.AffinitySeconds != old.sp.AffinitySeconds) {
		e.learned = append(e.learned, flow.Learned{Table: l.table(tablePins), Cookie: l.cookie(cookieLearned, old.id)})
	}
	e.flush = append(e.flush, staleConnections(&e.c.cfg, old.sp, now)...)
}

func (e *edit) delta() *flow.Delta {
	d := &flow.Delta{DelLearned: e.learned, FlushCT: e.flush}
	for k, old := range e.flows {
		switch now := e.c.state.Flows[k]; {
		case now == nil && old != nil:
			d.DelFlows = append(d.DelFlows, old)
		case now != nil && (old == nil || !old.Equal(now)):
			d.SetFlows = append(d.SetFlows, now)
		}
	}
	for id, old := range e.groups {
		switch now := e.c.state.Groups[id]; {
		case now == nil && old != nil:
			d.DelGroups = append(d.DelGroups, id)
		case now != nil && (old == nil || !old.Equal(now)):
			d.SetGroups = append(d.SetGroups, now)
		}
	}
	slices.Sort(d.DelGroups)
	slices.SortFunc(d.DelLearned, func(a, b flow.Learned) int { return int(int64(a.Cookie) - int64(b.Cookie)) })
	d.Sort()
	return d
}
