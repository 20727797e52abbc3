package rules

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// Slots are the endpoints of a list by the number of their slot, without a hole. Without weights each has one
// slot: a list of n endpoints has the slots 0 to n-1.
type Slots []netip.AddrPort

// Assign returns the slots of a list, such that few differ from prev: endpoints keep their slots where that
// is possible. Where one is gone, a new one takes its place, or else the last. If weighted is true, endpoints
// have slots in proportion to their weights.
func Assign(prev Slots, list []k8s.Endpoint, weighted bool) Slots {
	list = list[:min(len(list), MaxEndpoints)]
	shares := make([]int, len(list))
	for i, e := range list {
		shares[i] = e.Weight()
	}
	shares = slotShares(shares, weighted)

	wanted, total := make(map[netip.AddrPort]int, len(list)), 0
	for i, e := range list {
		wanted[e.Addr] += shares[i]
		total += shares[i]
	}

	slots := make(Slots, total)
	var last []netip.AddrPort // endpoints whose slot is beyond the end, or which had none
	for i, e := range prev {
		switch {
		case wanted[e] == 0:
			continue
		case i < len(slots):
			slots[i] = e
		default:
			last = append(last, e)
		}
		wanted[e]--
	}

	for _, e := range list {
		for ; wanted[e.Addr] > 0; wanted[e.Addr]-- {
			last = append(last, e.Addr)
		}
	}

	for i := range slots {
		if !slots[i].IsValid() {
			slots[i] = last[0]
			last = last[1:]
		}
	}
	return slots
}

// MaxEndpoints is the number of endpoints of a Service port that are served; more are left out. Kubernetes
// does not support as many.
const MaxEndpoints = 1 << 16

// slotsForWeights and slotsForEach bound the slots of a list of endpoints with weights (k8s.Shares): up to so
// many, or up to so many for each endpoint where these are more. So a Service port that takes less than a
// third of its cost limit (k8s.DefaultLimits) is not refused for its weights alone.
const (
	slotsForWeights = 1024
	slotsForEach    = 2
)

// MaxSlots bounds the slots of a list: one for each endpoint beyond what its weights are divided by.
const MaxSlots = (slotsForEach + 2) * MaxEndpoints

// slotShares returns how many slots each of the endpoints with these weights has.
func slotShares(weights []int, weighted bool) []int {
	if !weighted {
		return slices.Repeat([]int{1}, len(weights))
	}
	return k8s.Shares(weights, max(slotsForWeights, slotsForEach*len(weights)))
}

// slotOffset is where the slots of a set begin: both sets of a Service port are in one map.
func slotOffset(of k8s.Set) uint32 { return uint32(of) << 20 }

// tries is how often a chain draws a random slot before it settles for one of the lower half, all of which
// are in use. Less than half of the slots are free, so that less than one connection in 1,000 gets there.
const tries = 10

// spread is how endpoints are picked: a chain of the name picks one of up to size slots.
type spread struct {
	size    int // a power of 2
	of      k8s.Set
	isPorts bool
}

// spreadOver returns the spread for n endpoints.
func spreadOver(n int, of k8s.Set, isPorts bool) spread {
	return spread{1 << bits.Len(uint(n-1)), of, isPorts}
}

// SpreadChain returns the chain of a name that picks an endpoint; ok is false if there is none of that name.
func SpreadChain(name string) (c Chain, ok bool) {
	rest, isPorts := strings.CutPrefix(name, prefix(true))
	of := k8s.OnNode
	rest, local := strings.CutPrefix(rest, "spread"+suffix(of)+"-")
	if !local {
		of, rest = k8s.Anywhere, strings.TrimPrefix(rest, "spread-")
	}
	size, err := strconv.Atoi(rest)
	if err != nil || size < 1 || size > MaxSlots {
		return c, false
	}
	c = spread{size, of, isPorts}.chain()
	return c, c.Name == name && size&(size-1) == 0
}

func (s spread) name() string {
	return fmt.Sprintf("%s%s-%d", prefix(s.isPorts), "spread"+suffix(s.of), s.size)
}

func (s spread) chain() Chain { return Chain{Name: s.name(), Rules: s.draws(netip.Addr{})} }

// draws returns the rules that pick one of the slots of the packet's frontend, or of the frontend at an
// address.
func (s spread) draws(at netip.Addr) (list []Rule) {
	draw := func(size int) {
		list = append(list, Rule{DNAT{
			Key:     fields(s.isPorts),
			At:      at,
			Modulus: uint32(size),
			Offset:  slotOffset(s.of),
			Map:     Sets[endpointSet(s.isPorts)].Name,
		}})
	}
	if s.size > 2 {
		for range tries {
			draw(s.size)
		}
		draw(s.size / 2)
	} else {
		draw(s.size) // one or two endpoints: no slot is free
	}
	return list
}

func prefix(isPorts bool) string {
	if isPorts {
		return "nodeport-"
	}
	return ""
}

func suffix(of k8s.Set) string {
	if of == k8s.OnNode {
		return "-local"
	}
	return ""
}

func fields(isPorts bool) []Field {
	if isPorts {
		return []Field{L4Proto, Dport}
	}
	return []Field{Daddr, L4Proto, Dport}
}

func endpointSet(isPorts bool) SetID {
	if isPorts {
		return NodePortEndpoints
	}
	return Endpoints
}
