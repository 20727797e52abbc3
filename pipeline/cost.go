package pipeline

import (
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// Cost returns how many flows, groups and buckets a Service port takes at most. It assumes what takes most:
// fragments, guards and counters, and endpoints of which no two share a guard. Of a table of more than 256
// slots it counts these, although some have no flow; of a smaller one the buckets of a new group, of which
// there are 256 at most after changes.
func Cost(z *k8s.Size) int {
	outside := z.Frontends + z.Firewalled
	entries := 1 // of a frontend: clients from outside, pods and this node have flows of their own
	if z.Outside == k8s.OnNode {
		entries = len(k8s.ClientKinds)
	}
	perFrontend := entries
	if z.Protocol == "UDP" && z.Endpoints > 0 {
		perFrontend += 1 + entries // fragments
	}
	near := 0
	if z.Family == k8s.IPv6 {
		near = len(nearLengths)
	}

	n := counterFlows + 2 + outside*(perFrontend+near)
	if z.Protocol == "UDP" {
		n += 2 + 2*len(k8s.Sets)
	}
	ways := 1 // out of a source range
	if z.Closes {
		n += 1 + outside
		ways = 2
	}
	for _, set := range k8s.Sets {
		if z.Reaches(set) {
			n += setCost(z, set)
		}
		if z.FirewallReaches(set) {
			if n += ways*z.Ranges + 1; z.OwnAddress {
				n += ways * z.Firewalled
			}
		}
	}
	if z.Consistent && outside > 0 && z.Endpoints > 0 {
		allowed := max(1, z.ConsistentRanges) + near
		if z.ConsistentRanges > placeRanges {
			n += 1 + z.ConsistentRanges
			allowed = 2 + near
		}
		n += allowed + z.Local*(3+allowed)
		if n++; z.Endpoints > 1 { // one endpoint is chosen by one flow
			n += k8s.ConsistentSlots
		}
		if z.Endpoints > z.Local && z.Local > 0 && z.Protocol == "TCP" {
			n += k8s.ConsistentSlots // endpoints that had the slot before
		}
	}
	return n + z.Endpoints + z.Local*(1+near) // guards and hairpins
}

// PingCost returns how many flows more a Service port takes if its addresses answer pings.
func PingCost(z *k8s.Size) int {
	addresses, clients := z.Pings()
	if z.Family == k8s.IPv6 {
		clients += addresses * len(nearLengths)
	}
	return clients
}

// counterFlows are those of a Service port in tableCount.
const counterFlows = 3

// setCost returns how many flows, groups and buckets choose an endpoint of a set.
func setCost(z *k8s.Size, set k8s.Set) int {
	n, weights := z.Number(set)
	switch {
	case z.Affinity:
		n = min(n, MaxAffinityEndpoints)
		parts := (n + maxAffinityBuckets - 1) / maxAffinityBuckets
		return 2*n + 2*(1+parts) + 4
	case n < 2:
		return 0
	}
	if weights == nil {
		weights = slices.Repeat([]int{1}, n)
	}
	if len(weights) < 2 {
		return 0
	}

	cost := n + 2 // a group, one of whose shares is split
	shares := newShares(weights, 0)
	slots := sum(shares)
	if slots > maxSlots || uneven(weights) && !releasesAgree(first(bucketWeights(shares))) {
		cost = slots + 2
	}
	if z.Protocol == "UDP" && z.NodePorts+z.AtNode > 0 {
		cost += 1 + min(n, maxTranslations)
	}
	return cost
}

func first[A, B any](a A, _ B) A { return a }
