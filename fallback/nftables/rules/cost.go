package rules

import "github.com/nkp-proxy/nkp/k8s"

// Cost returns how many elements, chains and maps a Service port takes at most, without those that a packet
// adds.
func Cost(z *k8s.Size) int {
	outside := z.Frontends + z.Firewalled
	resets := 0
	if z.Closes {
		resets = 1 + outside
	}
	if z.Endpoints == 0 {
		return 2 + outside + resets + z.AtNode // all are refused
	}
	affinity := 0
	if z.Affinity {
		affinity = 1
	}
	n := 2 + resets + (1+outside)*(3+affinity) // each frontend, and what goes in and out
	n += 2 * z.AtNode                          // they are not another's NodePort
	n += z.Firewalled * (1 + z.Ranges)
	if z.OwnAddress {
		n += z.Firewalled
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
			n += outside // refused for others than this node and its pods
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
			slots = min(frontends, 1+z.NodePorts)
			n += 1 + tries + 1 // the chain and its rules
		}
		n += frontends*(1+affinity) + slots*each
	}
	return n + z.Endpoints + 7*affinity // hairpins; the Service port's own maps and chains
}

// PingCost returns how many elements more a Service port takes if its addresses answer pings.
func PingCost(z *k8s.Size) int {
	addresses, clients := z.Pings()
	return addresses + clients
}
