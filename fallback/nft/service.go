package nft

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// Config holds the settings that, in addition to the model, determine the table.
type Config struct {
	rules.Config
	// AffinityLimit bounds the clients of each Service port that session affinity remembers; 0: DefaultAffinityLimit.
	AffinityLimit int
	// CountTraffic counts packets and bytes of each Service port.
	CountTraffic bool
	// FlowtableDevices are patterns of the devices (CheckDevices) whose packets of established connections through Services take the
	// fast path; empty: there is none. Not with CountTraffic, which would not count them.
	FlowtableDevices []string
}

// DefaultAffinityLimit is the number of clients that session affinity remembers of a Service port by default.
const DefaultAffinityLimit = 10_000

// The chains that refuse packets, and count as one reason for drops each.
const (
	noEndpoint      = "no-endpoint"
	noLocalEndpoint = "no-local-endpoint"
	sourceRange     = "source-range"
)

// Compiler turns Service ports of one family into elements and chains. It is immutable: make a new one when the node or the
// configuration changes.
type Compiler struct {
	Config
	family     k8s.Family
	pods       Statement      // matches traffic of the node's pods; nil: it cannot be recognized
	notPods    Statement      // matches all other traffic
	nodeIPs    []netip.Addr   // the addresses in the Node object's status, of the family
	localAddrs []netip.Addr   // the addresses of all of the node's interfaces
	cidrs      []netip.Prefix // Service ranges of the family
}

// NewCompiler returns a Compiler for the node that the model describes; the model itself is not kept.
func NewCompiler(c Config, f k8s.Family, m *k8s.Model) *Compiler {
	if c.AffinityLimit <= 0 {
		c.AffinityLimit = DefaultAffinityLimit
	}
	r := &Compiler{Config: c, family: f, localAddrs: m.Node.Local}
	r.pods, r.notPods = detector(m.Detector, f)
	for _, a := range m.Node.IPs {
		if k8s.FamilyOf(a) == f {
			r.nodeIPs = append(r.nodeIPs, a)
		}
	}
	if c.Scope == rules.Own {
		return r // only frontends at the node's own addresses are served: no Service range contains one
	}
	for _, p := range m.ServiceCIDRs {
		if k8s.FamilyOf(p.Addr()) == f {
			r.cidrs = append(r.cidrs, p.Masked())
		}
	}
	return r
}

// detector returns statements that match the traffic of the node's pods and all other traffic; nil if it cannot be recognized.
func detector(d k8s.Detector, f k8s.Family) (pods, others Statement) {
	switch {
	case d.Bridge != "":
		return Device{Name: d.Bridge}, Device{Name: d.Bridge, Not: true}
	case d.InterfacePrefix != "":
		return Device{Name: d.InterfacePrefix + "*"}, Device{Name: d.InterfacePrefix + "*", Not: true}
	}
	for _, p := range d.CIDRs {
		if k8s.FamilyOf(p.Addr()) == f {
			return Prefix{Field: Saddr, Prefix: p.Masked()}, Prefix{Field: Saddr, Prefix: p.Masked(), Not: true}
		}
	}
	return nil, nil
}

// Service is what one Service port needs in a table.
type Service struct {
	Elements Elements
	// Shared are elements that Service ports may have in common.
	Shared []Ref
	// Chains pick endpoints; Service ports with as many endpoints share them.
	Chains []Chain
	// Affinity is for session affinity: maps of clients, and chains that use them. They are the Service port's own.
	Affinity ClientMaps
}

// ClientMaps are the maps and chains of a Service port's session affinity.
type ClientMaps struct {
	Sets   []ClientMap
	Chains []Chain
}

// ClientMap is a map of clients to their endpoints, which are among the Slots.
type ClientMap struct {
	Set
	Slots Slots
}

// Ports are the slots of a Service port's endpoints, for each policy.
type Ports struct{ Cluster, Local Slots }

// AssignPorts returns the slots of a Service port, such that few differ from prev.
func AssignPorts(prev Ports, p *k8s.ServicePort) Ports {
	return Ports{Assign(prev.Cluster, p.ClusterEndpoints), Assign(prev.Local, p.LocalEndpoints)}
}

// builder collects what one Service port needs.
type builder struct {
	*Compiler
	*k8s.ServicePort
	slots Ports
	proto uint8
	hash  string
	names map[string]bool // chains in out
	out   Service
}

// Service returns what a Service port needs. Frontends whose address and port an older Service has claimed (ShadowedBy) are left
// out. slots are AssignPorts' for it.
func (c *Compiler) Service(p *k8s.ServicePort, slots Ports) Service {
	b := &builder{Compiler: c, ServicePort: p, slots: slots, proto: protocols[p.Name.Protocol], hash: rules.PortHash(p.Name), names: map[string]bool{}}
	b.out.Elements = Elements{}
	for i := range p.Frontends {
		if f := &p.Frontends[i]; c.serves(f) {
			b.frontend(f)
		}
	}
	b.hairpins()
	return b.out
}

// serves reports whether a frontend is served, or refused.
func (c *Compiler) serves(f *k8s.Frontend) bool {
	return f.ShadowedBy == "" && (c.Scope != rules.Own || c.own(f)) && (!f.Address.IsLoopback() || c.localhost())
}

// own reports whether a frontend is at addresses of the node itself.
func (c *Compiler) own(f *k8s.Frontend) bool {
	return f.Type == k8s.NodePort || f.Type != k8s.ClusterIP && slices.Contains(c.localAddrs, f.Address)
}

// localhost reports whether NodePorts are served at loopback addresses.
func (c *Compiler) localhost() bool { return c.family == k8s.IPv4 && c.LocalhostNodePorts }

// at is where a frontend is found in the maps: by address, protocol and port, or by protocol and port.
type at struct {
	isPort bool
	key    key
}

// in returns set's counterpart for NodePorts if the frontend is one.
func (a at) in(set, ofPorts SetID) Ref {
	if a.isPort {
		set = ofPorts
	}
	return Ref{set, string(a.key)}
}

// slot returns the element of the endpoint in a slot.
func (a at) slot(n uint32) Ref {
	return Ref{endpointSet(a.isPort), string(slices.Concat(a.key, key{}.number(n)))}
}

func (b *builder) at(f *k8s.Frontend) at {
	a := at{isPort: !f.Address.IsValid()}
	if !a.isPort {
		a.key = a.key.addr(f.Address)
	}
	a.key = a.key.proto(b.proto).port(f.Port)
	return a
}

func (b *builder) frontend(f *k8s.Frontend) {
	a := b.at(f)
	list, local := b.Endpoints(f.Policy), f.Policy == k8s.Local
	served := len(b.ClusterEndpoints)+len(b.LocalEndpoints) > 0
	firewalled := f.Type == k8s.LoadBalancer && len(f.SourceRanges) > 0
	entry, remember := "", ""
	switch {
	case f.Type == k8s.ClusterIP:
		if len(list) > 0 {
			entry, remember = "cluster-ip"+suffix(local), "remember"+suffix(local)
			b.pick(a, local)
		}
		if len(b.cidrs) == 0 || slices.ContainsFunc(b.cidrs, func(r netip.Prefix) bool { return r.Contains(f.Address) }) {
			b.out.Shared = append(b.out.Shared, Ref{ClusterIPs, string(key{}.addr(f.Address))})
		}
	case served:
		entry, remember = prefix(a.isPort)+"external"+suffix(local), "remember"
		if firewalled {
			entry = "firewall" + suffix(local)
			b.sourceRanges(f, a)
		}
		if len(b.ClusterEndpoints) > 0 {
			b.pick(a, false) // also with policy Local: the node's own traffic goes to any endpoint
		}
		if local {
			remember = "remember-external"
			if len(list) > 0 {
				b.pick(a, true)
			}
		}
	}
	if entry != "" {
		b.out.Elements[a.in(Services, NodePorts)] = Value{Data: "goto " + entry}
		if b.CountTraffic {
			b.out.Elements[a.in(TrafficIn, NodePortTrafficIn)] = Value{}
			b.out.Elements[a.in(TrafficOut, NodePortTrafficOut)] = Value{}
		}
	}
	if entry != "" && b.AffinitySeconds > 0 {
		b.remember(a, remember)
	}
	refuse := ""
	switch {
	case len(list) == 0 && f.WhenEmpty == k8s.Drop:
		refuse = noLocalEndpoint
	case len(list) == 0:
		refuse = noEndpoint
	case firewalled:
		refuse = sourceRange
	}
	if refuse != "" {
		b.out.Elements[a.in(Refused, RefusedNodePorts)] = Value{Data: "goto " + refuse}
	}
}

// pick adds what picks an endpoint of a policy for a frontend.
func (b *builder) pick(a at, local bool) {
	slots, offset := b.slots.Cluster, uint32(0)
	spreadSet, affinitySet := a.in(Spread, NodePortSpread), a.in(Affinity, NodePortAffinity)
	if local {
		slots, offset = b.slots.Local, localOffset
		spreadSet, affinitySet = a.in(SpreadLocal, NodePortSpreadLocal), a.in(AffinityLocal, NodePortAffinityLocal)
	}
	for i, e := range slots {
		b.out.Elements[a.slot(offset+uint32(i))] = Value{Data: string(key{}.addr(e.Addr()).port(e.Port()))}
	}
	c := spreadOver(len(slots), local, a.isPort).chain()
	b.out.Elements[spreadSet] = Value{Data: "goto " + c.Name}
	if !b.names[c.Name] {
		b.names[c.Name] = true
		b.out.Chains = append(b.out.Chains, c)
	}
	if b.AffinitySeconds > 0 {
		b.out.Elements[affinitySet] = Value{Data: "jump " + b.affinity(local)}
	}
}

// sourceRanges adds the clients that a load balancer's address serves.
func (b *builder) sourceRanges(f *k8s.Frontend, a at) {
	ranges := slices.Clone(f.SourceRanges)
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return slices.ContainsFunc(b.nodeIPs, p.Contains) }) {
		// The load balancer's address may be one of the node's; the node then connects to it from that same address.
		ranges = append(ranges, netip.PrefixFrom(f.Address, f.Address.BitLen()))
	}
	for _, p := range ranges {
		p = p.Masked()
		if slices.ContainsFunc(ranges, func(o netip.Prefix) bool { return o.Bits() < p.Bits() && o.Contains(p.Addr()) }) {
			continue // the kernel accepts no range within another
		}
		first, last := slices.Concat(a.key, key{}.addr(p.Addr())), slices.Concat(a.key, key{}.addr(lastOf(p)))
		b.out.Elements[Ref{SourceRanges, string(first)}] = Value{End: string(last)}
	}
}

// hairpins adds the addresses of all endpoints. A connection whose endpoint is its own client is masqueraded, or the endpoint would
// answer itself.
func (b *builder) hairpins() {
	if len(b.out.Chains) == 0 {
		return // none of its frontends is served
	}
	seen := make(map[netip.Addr]bool, len(b.slots.Cluster))
	for _, list := range []Slots{b.slots.Cluster, b.slots.Local} {
		for _, e := range list {
			if a := e.Addr(); !seen[a] {
				seen[a] = true
				b.out.Shared = append(b.out.Shared, Ref{Hairpin, string(key{}.addr(a).addr(a))})
			}
		}
	}
}
