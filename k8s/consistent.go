package k8s

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// AnnotationConsistent is an annotation of a Service. With "true", every node sends a client from outside the
// cluster to the same endpoint, so that a router may move its connections from node to node
// (docs/decisions/consistent-choice.md).
const AnnotationConsistent = "nkp-proxy.github.io/consistent"

// Consistent is a choice of endpoints for clients from outside that is equal on all nodes. The client's port
// selects a slot, and each slot belongs to an endpoint. A node that does not run this endpoint sends packets
// on to it, at port Relay. The endpoint's node translates them as if the client had reached this node first.
// So only the endpoint's node tracks the connection, and replies leave from there.
type Consistent struct {
	// Address is the external IP or load balancer address that is served so.
	Address netip.Addr
	// Relay is the Service port's NodePort. No other Service has it, and pods do not listen there.
	Relay uint16
	// Endpoints are all ready endpoints, wherever they run, sorted by address and port; with their weights.
	Endpoints []Endpoint
	// Leaving are endpoints that serve, but get no new connections: terminating ones, and those of weight 0.
	// Sorted likewise.
	Leaving []Endpoint
}

// ConsistentSlots is the number of slots. It does not depend on the endpoints, because another number would
// move all choices.
const ConsistentSlots = 1024

// portShift is the number of low bits of a client's port that select no slot: Linux prefers even ports for
// connections (net/ipv4/inet_hashtables.c, __inet_hash_connect).
const portShift = 1

// ConsistentPorts returns the value and mask of the client ports of a slot.
func ConsistentPorts(slot int) (value, mask uint16) {
	return uint16(slot) << portShift, (ConsistentSlots - 1) << portShift
}

// Choose returns the endpoint for a client's port.
func (c *Consistent) Choose(port uint16) Endpoint {
	return c.Endpoints[c.Slots()[port>>portShift%ConsistentSlots]]
}

// balanced is how many slots an endpoint of weight 1 must have at least, on average, for leastShare and
// mostShare to hold. Below, the slots stay as the scores have them, because evening them out would move more
// choices.
const (
	balanced   = 48
	leastShare = 75 // percent
	mostShare  = 117
)

// Slots returns the index of each slot's endpoint. It depends on nothing but the endpoints and their weights:
// each slot belongs to the endpoint with the highest score for it (rendezvous hashing), so that only the
// slots of an endpoint move when it comes or goes. Then a few more move, so that each endpoint has between
// leastShare and mostShare of its share.
func (c *Consistent) Slots() []int {
	n := len(c.Endpoints)
	ids := c.scores()
	score := ids.of
	total := 0
	for i := range n {
		total += len(ids[i])
	}

	owner, have := make([]int, ConsistentSlots), make([]int, n)
	for slot := range owner {
		owner[slot] = bestOf(n, func(i int) uint64 { return score(i, slot) })
		have[owner[slot]]++
	}
	if total*balanced > ConsistentSlots {
		return owner
	}

	least, most := make([]int, n), make([]int, n)
	for i := range n {
		share := ConsistentSlots * len(ids[i])
		least[i] = share * leastShare / (100 * total)
		most[i] = (share*mostShare + 100*total - 1) / (100 * total)
	}

	move := func(slot, to int) {
		have[owner[slot]]--
		have[to]++
		owner[slot] = to
	}

	// The worst slots of endpoints that have too many go to the best endpoints that have room.
	tooMany := func(slot int) bool { return have[owner[slot]] > most[owner[slot]] }
	for _, slot := range sorted(tooMany, func(slot int) uint64 { return score(owner[slot], slot) }) {
		if from := owner[slot]; have[from] > most[from] {
			move(slot, bestOf(n, func(i int) uint64 {
				if have[i] >= most[i] {
					return 0
				}
				return score(i, slot)
			}))
		}
	}

	// Endpoints that have too few take their best slots from those that can spare them.
	for i := range n {
		if have[i] >= least[i] {
			continue
		}
		others := func(slot int) bool { return owner[slot] != i }
		for _, slot := range sorted(others, func(slot int) uint64 { return ^score(i, slot) }) {
			if from := owner[slot]; have[i] < least[i] && have[from] > least[from] {
				move(slot, i)
			}
		}
	}

	return owner
}

// Seconds returns, for each slot, the endpoint that had it most likely before the endpoints last changed: the
// best one but its owner, of those that serve. An index of len(Endpoints) or more is one of Leaving; -1:
// there is none. owners are Slots'.
func (c *Consistent) Seconds(owners []int) []int {
	ids := c.scores()
	second := make([]int, len(owners))
	for slot, owner := range owners {
		second[slot] = bestOf(len(ids), func(i int) uint64 {
			if i == owner {
				return 0
			}
			return ids.of(i, slot)
		})
		if second[slot] == owner {
			second[slot] = -1
		}
	}
	return second
}

// Serving returns the endpoints, and those that are leaving.
func (c *Consistent) Serving() []Endpoint { return slices.Concat(c.Endpoints, c.Leaving) }

// maxScores bounds the weights of all endpoints together, so that many endpoints with large weights take
// milliseconds. With a few for each slot, further ones do not show.
const maxScores = 4 * ConsistentSlots

// scores are the hashes of endpoints, first Endpoints' and then Leaving's. One of weight w has the best of w
// scores.
type scores [][]uint64

func (c *Consistent) scores() scores {
	divisor, total := 0, 0
	for _, e := range c.Endpoints {
		divisor = gcd(divisor, e.Weight())
		total += e.Weight()
	}
	s := make(scores, 0, len(c.Endpoints)+len(c.Leaving))
	for _, e := range c.Serving() {
		n := max(1, e.Weight()/divisor)
		if total/divisor > maxScores {
			n = max(1, e.Weight()*maxScores/total)
		}
		var list []uint64
		for k := range n {
			list = append(list, endpointHash(e.Addr, k))
		}
		s = append(s, list)
	}
	return s
}

// of returns an endpoint's score for a slot.
func (s scores) of(i, slot int) (best uint64) {
	for _, id := range s[i] {
		best = max(best, scoreOf(id, slot))
	}
	return best
}

// scoreOf returns the score of an id for a slot. An id ranks all slots, each with another rank, so that no
// endpoint has many high scores and none has few: with scores drawn for each slot alone, the shares would
// vary by half as much again. The rank is the first 10 bits.
func scoreOf(id uint64, slot int) uint64 {
	return rank(id, uint64(slot))<<54 | mix(id^mix(uint64(slot)))>>10
}

// rank is a permutation of the slots: each round is one, with a multiplier and an addend of the id's.
func rank(id, x uint64) uint64 {
	for range 4 {
		x = (x*(id|1) + id>>9) % ConsistentSlots
		x ^= x >> 5
		id >>= 16
	}
	return x
}

// bestOf returns which of n endpoints has the highest score; the first if several have it.
func bestOf(n int, score func(i int) uint64) (best int) {
	highest := score(0)
	for i := 1; i < n; i++ {
		if s := score(i); s > highest {
			best, highest = i, s
		}
	}
	return best
}

// sorted returns the slots that are wanted, those with the lowest key first.
func sorted(want func(slot int) bool, key func(slot int) uint64) (slots []int) {
	keys := make([]uint64, ConsistentSlots)
	for slot := range keys {
		if want(slot) {
			slots, keys[slot] = append(slots, slot), key(slot)
		}
	}
	slices.SortFunc(slots, func(a, b int) int {
		return cmp.Or(cmp.Compare(keys[a], keys[b]), cmp.Compare(a, b))
	})
	return slots
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// endpointHash returns the hash of an endpoint and one of its scores' numbers. It is the same in every
// process and version.
func endpointHash(at netip.AddrPort, number int) uint64 {
	h := fnv.New64a()
	b := at.Addr().As16()
	h.Write(b[:])
	h.Write(binary.BigEndian.AppendUint16(nil, at.Port()))
	h.Write([]byte{byte(number)})
	return mix(h.Sum64())
}

// mix is a bijection in which each bit of x changes each bit of the result with probability 1/2 (the
// finalizer of MurmurHash3).
func mix(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// wantsConsistent reports whether a Service has AnnotationConsistent and its settings allow it.
func (d *serviceDef) wantsConsistent(o *v1.Service, external Policy, opts *Options) bool {
	text, ok := o.Annotations[AnnotationConsistent]
	if !ok || text == "false" {
		return false
	}
	warn := func(format string, args ...any) {
		d.warn(consistentField, format, args...)
	}
	switch {
	case text != "true":
		warn("%s is neither true nor false: ignored", brief.Quote(text))
	case opts.NotConsistent != "":
		warn("has no effect: %s. Connections that other nodes send on to endpoints of this node fail",
			opts.NotConsistent)
	case affinitySeconds(o) > 0:
		warn("has no effect with session affinity")
	case external == Local:
		warn("has no effect with externalTrafficPolicy Local, by which each node has other endpoints")
	default:
		return true
	}
	return false
}

var consistentField = field.NewPath("metadata", "annotations").Key(AnnotationConsistent)

// consistent returns how a Service port with AnnotationConsistent is served, without endpoints; nil if it
// cannot be.
func (d *serviceDef) consistent(o *v1.Service, p *portDef) *Consistent {
	c := &Consistent{Relay: p.nodePort}
	outside := p.shared.frontends[1:] // the first one is the ClusterIP
	more := -1
	if len(outside) > 0 {
		c.Address = outside[0].Address
		more = slices.IndexFunc(outside, func(f frontendDef) bool { return f.Address != c.Address })
	}

	switch name := p.name; {
	case name.Protocol == v1.ProtocolSCTP:
		d.warn(consistentField, "has no effect on SCTP port %s", name)
	case !c.Address.IsValid():
		if o.Spec.Type != v1.ServiceTypeLoadBalancer { // else its address is to come
			d.warn(consistentField, "has no effect on %s, which has no external IP or load balancer address",
				name)
		}
	case c.Relay == 0:
		d.warn(consistentField,
			"has no effect on %s, which has no NodePort: nodes send packets on to endpoints at this port",
			name)
	default:
		if more >= 0 {
			d.warn(consistentField, "serves %s only: the other addresses of %s (%s) are masqueraded",
				c.Address, name, outside[more].Address)
		}
		return c
	}
	return nil
}

// with returns c with its endpoints, which are ready, or terminating and serving if none is; nil if there is
// none. An endpoint without a node cannot be served so: nothing would translate its replies.
func (c *Consistent) with(all []candidate, warnings *[]Warning) *Consistent {
	in := undrained(all)
	use := (*candidate).isReady
	es := pick(in, use)
	if len(es) == 0 {
		use = (*candidate).servingTerminating
		es = pick(in, use)
	}
	if len(es) == 0 {
		return nil
	}

	for i := range in {
		if a := &in[i]; use(a) && a.node == "" {
			*warnings = append(*warnings, Warning{
				Field: consistentField.String(),
				Text: "has no effect: endpoint " + a.at.String() + " has no nodeName, " +
					"so that no node would translate its replies",
			})
			return nil
		}
	}

	leaving := pick(all, func(a *candidate) bool {
		return (a.ready || a.serving) && a.node != "" && !holds(es, a.at)
	})
	for i := range leaving {
		leaving[i].MoreWeight = 0 // what it was is not known any more
	}
	return &Consistent{c.Address, c.Relay, es, leaving}
}

func (c *candidate) isReady() bool { return c.ready }

// equal reports whether two choices are the same. Either may be nil.
func (c *Consistent) equal(o *Consistent) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.Address == o.Address && c.Relay == o.Relay && slices.Equal(c.Endpoints, o.Endpoints) &&
		slices.Equal(c.Leaving, o.Leaving)
}
