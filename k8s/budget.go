package k8s

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// A Service's cost is how many objects a data plane makes of it: flows, groups and buckets, rules, elements,
// or objects of HNS. It is computed from the numbers of ports, addresses, endpoints and source ranges, before
// any of their products exists. A Service over a limit is refused: it is not served at all, and what was in
// force of it goes. It keeps its cluster IPs: no other Service gets them as external IPs. Which ones are
// refused depends on the present Services alone, not on the order in which they came, so that a restart
// refuses the same ones (docs/decisions/cost-limits.md).

// Limits bound the costs of Services; 0: no limit.
type Limits struct {
	Service   int // of one Service; a Service port in one family may take an eighth of it
	Namespace int // of the Services of one namespace together
	Node      int // of all together
}

// DefaultLimits are above 5,000 endpoints at 4 ports in both families, and 50,000 Services with 10 endpoints
// each (iptables: 45 rules a Service).
var DefaultLimits = Limits{Service: 320_000, Namespace: 4_000_000, Node: 4_000_000}

// portShare is the part of Limits.Service that one port in one family may take, because a data plane compiles
// a port as a whole.
const portShare = 8

// EventRefused is the reason of the Event about a Service over a limit.
const EventRefused = "CostLimitExceeded"

// Size is what the cost of a Service port in one family depends on. All ports of a Service have one
// ClusterIP.
type Size struct {
	Family        Family
	Protocol      Protocol
	Frontends     int // beside the ClusterIP, and those of Firewalled
	Firewalled    int // load balancer addresses with source ranges
	Ranges        int // of each of them
	LoadBalancers int // with and without ranges
	Endpoints     int // that serve, wherever they run
	Local         int // of these on this node
	Inside        Set // to which the ClusterIP leads
	Outside       Set // to which the other frontends lead clients from outside
	Affinity      bool
	Weights       []int // of Endpoints and of Local, by AnnotationWeights; nil: all are 1
	LocalWeights  []int
	Consistent    bool // by AnnotationConsistent
	Closes        bool // connections to removed endpoints, by AnnotationRemovedEndpoints
	NodePorts     int  // of Frontends: the NodePort, at each address that it is restricted to
	// AtNode are those of Frontends and Firewalled that are external IPs or load balancer addresses, and an
	// address of this node.
	AtNode int
	// OwnAddress: the source ranges contain an address of this node (Router.Clients).
	OwnAddress bool
	// ConsistentRanges are the source ranges at the address of the consistent choice.
	ConsistentRanges int
	// PodRanges are the ranges of addresses of the family by which pods are recognized (Detector.CIDRs).
	PodRanges int
}

// Reaches reports whether a frontend can lead to a set of endpoints. Frontends beside the ClusterIP serve
// this node and its pods from endpoints anywhere.
func (z *Size) Reaches(of Set) bool {
	outside := z.Frontends+z.Firewalled > 0
	if of == OnNode {
		return z.Inside == OnNode || outside && z.Outside == OnNode
	}
	return z.Inside == Anywhere || outside
}

// FirewallReaches is Reaches for the load balancer addresses with source ranges.
func (z *Size) FirewallReaches(of Set) bool {
	return z.Firewalled > 0 && (of == Anywhere || z.Outside == OnNode)
}

// Number returns how many endpoints of a set there can be, and their weights; nil: all are 1.
func (z *Size) Number(of Set) (n int, weights []int) {
	if of == OnNode {
		return z.Local, z.LocalWeights
	}
	return z.Endpoints, z.Weights
}

// Pings returns at how many addresses of a Service port pings are answered, if at all, and the sum of the
// kinds or ranges of clients over these.
func (z *Size) Pings() (addresses, clients int) {
	if z.Endpoints == 0 {
		return 0, 0
	}
	outside := z.Frontends - z.NodePorts
	if z.Outside == OnNode && z.Local == 0 {
		return 1 + outside, 1 + len(ClientKinds)*outside
	}
	ranges := z.Ranges
	if z.OwnAddress {
		ranges++
	}
	return 1 + outside + z.Firewalled, 1 + outside + z.Firewalled*ranges
}

// sizes calls do for each Service port.
func (t *Tracker) sizes(s *service, do func(*Size)) {
	type key struct {
		Family
		name     string
		protocol Protocol
	}
	type number struct{ all, local int }

	numbers := map[key]number{}
	for _, sl := range s.slices {
		for _, p := range sl.ports {
			k := key{sl.family, p.name, p.protocol}
			n := numbers[k]
			numbers[k] = number{n.all + sl.serving, n.local + sl.local}
		}
	}

	type ofNode struct {
		inRange bool // a source range has one of its addresses
		atNode  int
	}
	facts := map[*addresses]ofNode{}
	podRanges := map[Family]int{}
	for _, r := range t.model.Detector.CIDRs {
		podRanges[FamilyOf(r.Addr())]++
	}
	for i := range s.def.ports {
		p := &s.def.ports[i]
		if _, known := facts[p.shared]; !known {
			var f ofNode
			f.inRange = slices.ContainsFunc(p.shared.ranges, func(r netip.Prefix) bool {
				return slices.ContainsFunc(t.model.Node.IPs, r.Contains)
			})
			for _, at := range p.shared.frontends[1:] {
				if slices.Contains(t.model.Node.Local, at.Address) {
					f.atNode++
				}
			}
			facts[p.shared] = f
		}

		n := numbers[key{p.name.Family, p.name.Port, p.name.Protocol}]
		z := Size{
			Family: p.name.Family, Protocol: p.name.Protocol,
			Ranges: len(p.shared.ranges), OwnAddress: facts[p.shared].inRange,
			Firewalled: p.shared.firewalled,
			Frontends:  len(p.shared.frontends) - 1 - p.shared.firewalled, Endpoints: n.all, Local: n.local,
			LoadBalancers: p.shared.loadBalancers, AtNode: facts[p.shared].atNode,
			Inside: p.shared.frontends[0].Policy.set(), Outside: p.shared.external.set(),
			PodRanges: podRanges[p.name.Family],
			Affinity:  p.affinity > 0, Consistent: p.consistent != nil, Closes: p.removed != nil,
		}

		if z.Endpoints == 0 { // nothing is made of source ranges
			z.Frontends, z.Firewalled, z.Ranges = z.Frontends+z.Firewalled, 0, 0
		}
		if p.weights != nil {
			z.Weights, z.LocalWeights = s.weightsOf(p, t.opts.NodeName)
		}
		if z.Consistent {
			z.ConsistentRanges = len(p.shared.frontends[1].SourceRanges)
		}
		if p.nodePort != 0 {
			ips, restricted := t.nodePortIPs(&t.model.Node, p.name.Family)
			if z.NodePorts = 1; restricted {
				z.NodePorts = len(ips)
			}
			z.Frontends += z.NodePorts
		}

		do(&z)
	}
}

// weightsOf returns the weights of the endpoints of a port that serve and get new connections, and of those
// on this node.
func (s *service) weightsOf(p *portDef, node string) (all, local []int) {
	all, local = []int{}, []int{}
	for _, c := range undrained(s.candidates(p, node)) {
		if c.ready || c.serving {
			if all = append(all, int(c.weight)); c.local {
				local = append(local, int(c.weight))
			}
		}
	}
	return all, local
}

// costOf returns a Service's cost, and why it is refused for its size alone; "": it is not.
func (t *Tracker) costOf(s *service) (cost int, refused string) {
	if s.def == nil || s.def.skipped || t.opts.Cost == nil {
		return 0, ""
	}
	limit, largest := t.opts.Limits.Service, 0
	s.costs = s.costs[:0]
	t.sizes(s, func(z *Size) {
		n := t.opts.Cost(z)
		s.costs = append(s.costs, n)
		cost, largest = cost+n, max(largest, n)
	})
	switch {
	case limit == 0:
	case cost > limit:
		refused = fmt.Sprintf(wouldTake+"a Service may take %d (--cost-limit)", rounded(cost), limit)
	case largest > limit/portShare:
		refused = fmt.Sprintf(wouldTake+"one of its ports alone %d of them, "+
			"and a port may take %d (an eighth of --cost-limit)",
			rounded(cost), rounded(largest), limit/portShare)
	}
	return cost, refused
}

const wouldTake = "is not served: it would take up to %d flows, rules or elements, and "

// rounded returns two digits of a cost, rounded up: endpoints that come and go do not make another warning,
// and so another Event, at each change.
func rounded(cost int) int {
	unit := 1
	for cost/unit >= 100 {
		unit *= 10
	}
	return (cost + unit - 1) / unit * unit
}

// budget holds the costs of the Services that are not refused for their own size.
type budget struct {
	total       int
	byNamespace map[string]int
	over        bool // some Services are refused for the sum
}

// flushBudget computes the costs of the Services to recompute, and which Services are refused. Those whose
// refusal changes are to be recomputed as if their definition were new.
func (t *Tracker) flushBudget() {
	limits, over := t.opts.Limits, t.budget.over
	for name := range t.dirty {
		s := t.services[name]
		if s == nil {
			continue
		}

		cost, refused := t.costOf(s)
		counted := cost
		if refused != "" {
			counted = 0
		}

		t.budget.total += counted - s.cost
		t.budget.byNamespace[name.Namespace] += counted - s.cost
		switch sum := t.budget.byNamespace[name.Namespace]; {
		case sum == 0:
			delete(t.budget.byNamespace, name.Namespace)
		case limits.Namespace > 0 && sum > limits.Namespace:
			over = true
		}

		s.cost, s.tooLarge = counted, refused
		t.refuse(s, cmp.Or(refused, s.overSum))
	}

	if over || limits.Node > 0 && t.budget.total > limits.Node {
		t.refuseSums() // looks at all Services
	}
}

// refuse records why a Service is refused; "": it is not.
func (t *Tracker) refuse(s *service, why string) {
	if s.refused != why {
		s.newDef = s.newDef || (s.refused == "") != (why == "")
		s.refused = why
		t.dirty[s.name] = struct{}{}
	}
}

// refuseSums refuses Services until the limits of all namespaces and of the node hold: those of a namespace
// that is over its limit, then those of the namespace that has most, the newest first.
func (t *Tracker) refuseSums() {
	limits, total := t.opts.Limits, t.budget.total
	over := map[ServiceName]string{}
	// of a namespace, the newest first once its first one is refused, as far as they are not refused
	newest := map[string][]*service{}
	sorted := map[string]bool{}

	for name, s := range t.services {
		if s.cost > 0 {
			newest[name.Namespace] = append(newest[name.Namespace], s)
		}
	}

	left := maps.Clone(t.budget.byNamespace)
	refuse := func(namespace, text string) {
		if !sorted[namespace] {
			sorted[namespace] = true
			slices.SortFunc(newest[namespace], func(a, b *service) int {
				return cmp.Or(b.def.created.Compare(a.def.created), b.name.Compare(a.name))
			})
		}
		s := newest[namespace][0]
		newest[namespace] = newest[namespace][1:]
		total, left[namespace] = total-s.cost, left[namespace]-s.cost
		over[s.name] = fmt.Sprintf(wouldTake, rounded(s.cost)) + text
	}

	for namespace := range left {
		for limits.Namespace > 0 && left[namespace] > limits.Namespace {
			refuse(namespace,
				fmt.Sprintf("the Services of namespace %s together may take %d (--cost-limit-namespace): "+
					"of those that do not fit the newest are refused", namespace, limits.Namespace))
		}
	}

	most := func(a, b string) int { return cmp.Or(cmp.Compare(left[b], left[a]), cmp.Compare(b, a)) }
	for order := slices.SortedFunc(maps.Keys(left), most); limits.Node > 0 && total > limits.Node; {
		largest, others := order[0], order[1:]
		refuse(largest, fmt.Sprintf("all Services of the node together may take %d (--cost-limit-node): "+
			"of those that do not fit the newest of the largest namespace, here %s, are refused",
			limits.Node, largest))
		at, _ := slices.BinarySearchFunc(others, largest, most)
		copy(order, others[:at])
		order[at] = largest
	}

	t.budget.over = len(over) > 0
	for name, s := range t.services {
		s.overSum = over[name]
		t.refuse(s, cmp.Or(s.tooLarge, s.overSum))
	}
}

// Refused returns the Services that are not served because of their cost, sorted.
func (t *Tracker) Refused() (list []ServiceName) {
	for name, s := range t.services {
		if s.refused != "" {
			list = append(list, name)
		}
	}
	slices.SortFunc(list, ServiceName.Compare)
	return list
}

// refusals returns the warning about a Service that is refused.
func (s *service) refusals() []Warning {
	if s.refused == "" {
		return nil
	}
	return []Warning{{Text: s.refused, Event: EventRefused}}
}
