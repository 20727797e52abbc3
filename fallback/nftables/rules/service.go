package rules

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// Config holds the settings that, in addition to the model, determine the table.
type Config struct {
	serving.Config
	Settings
}

// Settings are those that iptables does not have.
type Settings struct {
	// AffinityLimit bounds the clients of each Service port that session affinity remembers; 0:
	// DefaultAffinityLimit.
	AffinityLimit int
	// CountTraffic counts packets and bytes of each Service port.
	CountTraffic bool
	// FlowtableDevices are patterns of the devices (CheckDevices) whose packets of established connections
	// through Services take the fast path; empty: there is none. Not with CountTraffic, which would not count
	// them.
	FlowtableDevices []string
}

// DefaultAffinityLimit is the number of clients that session affinity remembers of a Service port by default.
const DefaultAffinityLimit = 10_000

// The chains that refuse packets, and count as one reason for drops each.
const (
	noEndpoint      = "no-endpoint"
	noLocalEndpoint = "no-local-endpoint"
	sourceRange     = "source-range"
	reset           = "removed-endpoint"
	resetTranslated = "removed-endpoint-translated" // what passed the source ranges
	// notNodePort is where connections to an external IP or load balancer address of the node itself end that
	// has the number of another Service's NodePort.
	notNodePort = "not-a-nodeport"
)

// Compiler turns Service ports of one family into elements and chains. It is immutable: make a new one when
// the node or the configuration changes.
type Compiler struct {
	Config
	serving.Node
	pods    []Statement         // each matches traffic of pods; none: it cannot be recognized
	notPods Rule                // matches all other traffic
	atNode  map[netip.Addr]bool // of Local
}

// NewCompiler returns a Compiler for the node that the model describes; the model itself is not kept.
func NewCompiler(c Config, f k8s.Family, m *k8s.Model) *Compiler {
	if c.AffinityLimit <= 0 {
		c.AffinityLimit = DefaultAffinityLimit
	}
	r := &Compiler{Config: c, Node: serving.NewNode(c.Config, f, m), atNode: map[netip.Addr]bool{}}
	r.pods, r.notPods = detector(m.Detector, f)
	for _, a := range r.Local {
		r.atNode[a] = true
	}
	return r
}

// detector returns statements each of which matches traffic of the node's pods, and a match for all other
// traffic; nil if it cannot be recognized.
func detector(d k8s.Detector, f k8s.Family) (pods []Statement, others Rule) {
	switch {
	case d.Bridge != "":
		return []Statement{Device{Name: d.Bridge}}, Rule{Device{Name: d.Bridge, Not: true}}
	case d.InterfacePrefix != "":
		return []Statement{Device{Name: d.InterfacePrefix + "*"}},
			Rule{Device{Name: d.InterfacePrefix + "*", Not: true}}
	}
	for _, p := range d.CIDRs {
		if k8s.FamilyOf(p.Addr()) == f {
			pods = append(pods, Prefix{Field: Saddr, Prefix: p.Masked()})
			others = append(others, Prefix{Field: Saddr, Prefix: p.Masked(), Not: true})
		}
	}
	return pods, others
}

// Service is what one Service port needs in a table.
type Service struct {
	Elements Elements
	// Shared are elements that Service ports may have in common.
	Shared []Ref
	// Chains pick endpoints; Service ports with as many endpoints share them.
	Chains []Chain
	Own    Own
}

// Own are the maps and chains of one Service port: those of session affinity, and the chains by which its
// addresses share slots.
type Own struct {
	Sets   []ClientMap
	Chains []Chain
}

// ClientMap is a map of clients to their endpoints, which are among the Slots.
type ClientMap struct {
	Set
	Slots Slots
}

// Ports are the slots of a Service port's endpoints, by set.
type Ports [len(k8s.Sets)]Slots

// AssignPorts returns the slots of a Service port, such that few differ from prev. Weights do not divide the
// clients of session affinity.
func AssignPorts(prev Ports, p *k8s.ServicePort) Ports {
	for _, set := range k8s.Sets {
		prev[set] = Assign(prev[set], p.Endpoints(set), p.AffinitySeconds == 0)
	}
	return prev
}

// builder collects what one Service port needs.
type builder struct {
	*Compiler
	*k8s.ServicePort
	slots Ports
	proto uint8
	hash  string
	first netip.Addr      // whose slots its addresses share; not valid: each has slots of its own
	names map[string]bool // chains in out
	out   Service
}

// Service returns what a Service port needs. Frontends that are not served (k8s.Router) are left out. slots
// are AssignPorts' for it.
func (c *Compiler) Service(p *k8s.ServicePort, slots Ports) Service {
	b := &builder{
		Compiler:    c,
		ServicePort: p,
		slots:       slots,
		proto:       k8s.ProtocolNumbers[p.Name.Protocol],
		hash:        serving.PortHash(p.Name),
		names:       map[string]bool{},
	}
	b.first = b.sharedSlots()
	b.out.Elements = Elements{}
	for i := range p.Frontends {
		if f := &p.Frontends[i]; c.Router.Serves(f) {
			b.frontend(f)
			b.pings(f)
		}
	}
	b.hairpins()
	return b.out
}

// at is where a frontend is found in the maps: by address, protocol and port, or by protocol and port.
type at struct {
	isPort bool
	shares bool // the slots of another frontend, or its own with others
	key    key
	slots  key // of the frontend that has its slots
}

// ref returns set's counterpart for NodePorts if the frontend is one.
func (a at) ref(set, ofPorts SetID) Ref {
	if a.isPort {
		set = ofPorts
	}
	return Ref{set, string(a.key)}
}

// slot returns the element of the endpoint in a slot.
func (a at) slot(n uint32) Ref {
	return Ref{endpointSet(a.isPort), string(slices.Concat(a.slots, key{}.number(n)))}
}

func (b *builder) at(f *k8s.Frontend) at {
	a := at{isPort: !f.Address.IsValid()}
	if !a.isPort {
		a.key = a.key.addr(f.Address)
	}
	a.key = a.key.proto(b.proto).port(f.Port)
	a.slots = a.key

	if a.shares = b.first.IsValid() && f.Type != k8s.NodePort; a.shares {
		a.slots = key{}.addr(b.first).proto(b.proto).port(f.Port)
	}
	return a
}

func (b *builder) frontend(f *k8s.Frontend) {
	a, routes := b.at(f), b.Router.Routes(b.ServicePort, f)
	outside := routes[k8s.Outside]
	served := outside.Empty == ""
	entry, remember := "cluster-ip"+suffix(outside.Set), "remember"+suffix(outside.Set)
	firewalled := f.Type == k8s.LoadBalancer && len(f.SourceRanges) > 0

	switch {
	case f.Type == k8s.ClusterIP:
		if !b.Partial && b.RefusesOtherPorts(f.Address) {
			b.out.Shared = append(b.out.Shared, Ref{ClusterIPs, string(key{}.addr(f.Address))})
		}
	case f.Type == k8s.Canary:
		entry = "pick"
	default:
		served = len(b.ClusterEndpoints)+len(b.LocalEndpoints) > 0
		entry, remember = prefix(a.isPort)+"external"+suffix(outside.Set), "remember"
		if outside.Set == k8s.OnNode {
			remember = "remember-external"
		}
		if served && firewalled {
			entry = "firewall" + suffix(outside.Set)
			b.sourceRanges(f, a)
		}
	}

	if served {
		for _, set := range k8s.Sets {
			if routes.Reach(set) {
				b.pick(a, set)
			}
		}
		b.out.Elements[a.ref(Services, NodePorts)] = Value{Data: "goto " + entry}
		if b.CountTraffic {
			b.out.Elements[a.ref(TrafficIn, NodePortTrafficIn)] = Value{}
			b.out.Elements[a.ref(TrafficOut, NodePortTrafficOut)] = Value{}
		}
		if b.AffinitySeconds > 0 {
			b.remember(a, remember)
		}
	}

	refuse := ""
	switch {
	case outside.Empty == k8s.Drop:
		refuse = noLocalEndpoint
	case outside.Empty == k8s.Reject:
		refuse = noEndpoint
	case firewalled:
		refuse = sourceRange
	}
	if refuse != "" {
		b.out.Elements[a.ref(Refused, RefusedNodePorts)] = Value{Data: "goto " + refuse}
	}

	if b.Removed != nil {
		to := reset
		if refuse == sourceRange {
			to = resetTranslated
		}
		b.out.Elements[a.ref(Reset, ResetNodePorts)] = Value{Data: "goto " + to}
	}

	if (f.Type == k8s.ExternalIP || f.Type == k8s.LoadBalancer) && b.atNode[f.Address] {
		if b.Removed == nil && b.Name.Protocol == v1.ProtocolTCP {
			b.out.Elements[Ref{Reset, string(a.key)}] = Value{Data: "goto " + notNodePort}
		}
		if b.AffinitySeconds == 0 && served {
			b.out.Elements[Ref{Remember, string(a.key)}] = Value{Data: "goto " + notNodePort}
		}
	}
}

// pick adds what picks an endpoint of a set for a frontend.
func (b *builder) pick(a at, set k8s.Set) {
	slots, offset := b.slots[set], slotOffset(set)
	spreadSet, affinitySet := a.ref(Spread, NodePortSpread), a.ref(Affinity, NodePortAffinity)
	if set == k8s.OnNode {
		spreadSet = a.ref(SpreadLocal, NodePortSpreadLocal)
		affinitySet = a.ref(AffinityLocal, NodePortAffinityLocal)
	}
	if _, has := b.out.Elements[a.slot(offset)]; !has {
		for i, e := range slots {
			b.out.Elements[a.slot(offset+uint32(i))] = Value{
				Data: string(key{}.addr(e.Addr()).port(e.Port())),
			}
		}
	}

	s := spreadOver(len(slots), set, a.isPort)
	name := s.name()
	switch {
	case a.shares:
		name = b.pickShared(s)
	case !b.names[name]:
		b.names[name] = true
		b.out.Chains = append(b.out.Chains, s.chain())
	}
	b.out.Elements[spreadSet] = Value{Data: "goto " + name}
	if b.AffinitySeconds > 0 {
		b.out.Elements[affinitySet] = Value{Data: "jump " + b.affinity(set)}
	}
}

// sourceRanges adds the clients that a load balancer's address serves.
func (b *builder) sourceRanges(f *k8s.Frontend, a at) {
	ranges := slices.Clone(b.Router.Clients(f))
	for i := range ranges {
		ranges[i] = ranges[i].Masked()
	}
	slices.SortFunc(ranges, func(p, q netip.Prefix) int {
		return cmp.Or(p.Addr().Compare(q.Addr()), cmp.Compare(p.Bits(), q.Bits()))
	})
	var last netip.Prefix
	for _, p := range ranges {
		if last.IsValid() && last.Contains(p.Addr()) {
			continue // the kernel accepts no range within another
		}
		last = p
		first, last := slices.Concat(a.key, key{}.addr(p.Addr())), slices.Concat(a.key, key{}.addr(lastOf(p)))
		b.out.Elements[Ref{SourceRanges, string(first)}] = Value{End: string(last)}
	}
}

// hairpins adds the addresses of all endpoints. A connection whose endpoint is its own client is masqueraded,
// or the endpoint would answer itself.
func (b *builder) hairpins() {
	if len(b.out.Chains)+len(b.out.Own.Chains) == 0 {
		return // none of its frontends is served
	}
	seen := make(map[netip.Addr]bool, len(b.slots[k8s.Anywhere]))
	for _, list := range b.slots {
		for _, e := range list {
			if a := e.Addr(); !seen[a] {
				seen[a] = true
				b.out.Shared = append(b.out.Shared, Ref{Hairpin, string(key{}.addr(a).addr(a))})
			}
		}
	}
}
