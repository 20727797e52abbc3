package rules

import "github.com/nkp-proxy/nkp/k8s"

// Cost returns how many elements, chains and maps a Service port takes at most, without those that a packet
// adds. TestCost checks that it is. k8s.Size documents what it is computed from.
func Cost(z *k8s.Size) int {
	outside := z.Frontends + z.Firewalled // frontends beside the ClusterIP
	resets := 0
	if z.Closes {
		resets = 1 + outside // map Reset: an element a frontend
	}
	if z.Endpoints == 0 {
		// Each frontend is refused; the ClusterIP is in set ClusterIPs besides. At an address of this node
		// TCP to another Service's NodePort number is refused, too.
		return 2 + outside + resets + z.AtNode
	}
	affinity := 0
	if z.Affinity {
		affinity = 1
	}
	// The ClusterIP in set ClusterIPs, and in map Refused if no endpoint is on this node. Each frontend in
	// Services, TrafficIn and TrafficOut, and with affinity in Remember.
	n := 2 + resets + (1+outside)*(3+affinity)
	n += 2 * z.AtNode                  // in Reset and Remember: they are not another Service's NodePort
	n += z.Firewalled * (1 + z.Ranges) // in Refused, for clients outside the ranges, and each range
	if z.OwnAddress {
		n += z.Firewalled // the address itself is a client of its own
	}

	for _, set := range k8s.Sets {
		frontends := 0 // that reach the set
		if z.Inside == set {
			frontends++
		}
		if set == k8s.Anywhere {
			frontends += outside
		} else if z.Outside == set {
			frontends += outside
			n += outside // in Refused, if no endpoint is here: only this node and its pods are served
		}
		endpoints, weights := z.Number(set)
		if frontends == 0 || endpoints == 0 {
			continue
		}
		each := min(endpoints, MaxEndpoints) // slots of a frontend
		if weights != nil && !z.Affinity {
			each = 0
			for _, n := range slotShares(weights[:min(len(weights), MaxEndpoints)], true) {
				each += n
			}
		}

		slots := frontends
		if 1+outside-z.NodePorts > ownSlots {
			slots = min(frontends, 1+z.NodePorts) // all addresses share those of one; NodePorts do not
			n += 1 + tries + 1                    // the chain, a rule for each draw, and a last one
		}
		// Each frontend in Spread, and with affinity in Affinity; the endpoint of each slot.
		n += frontends*(1+affinity) + slots*each
	}
	// An element of Hairpin for each endpoint. With affinity, for each of the two sets a map of clients, a
	// chain that looks there and one that remembers; and remember-external.
	return n + z.Endpoints + 7*affinity
}

// PingCost returns how many elements more a Service port takes if its addresses answer pings: each address in
// Ping, and there each client or range of clients that may ping it.
func PingCost(z *k8s.Size) int {
	addresses, clients := z.Pings()
	return addresses + clients
}
