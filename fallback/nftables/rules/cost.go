package rules

import "github.com/nkp-proxy/nkp/k8s"

// Cost returns how many elements, chains and maps a Service port takes at most, without those that a packet adds.
func Cost(z *k8s.Size) int {
	outside := z.Frontends + z.Firewalled
	if z.Endpoints == 0 {
		return 2 + outside // all are refused
	}
	affinity := 0
	if z.Affinity {
		affinity = 1
	}
	pick := func(of k8s.Set) int {
		n, _ := z.Number(of)
		if n == 0 {
			return 0
		}
		return 1 + affinity + min(n, MaxEndpoints)
	}
	served := 3 + affinity // the frontend, and what goes in and out
	each := served + pick(k8s.Anywhere)
	if z.Outside == k8s.OnNode {
		each += 1 + pick(k8s.OnNode) // refused for others than this node and its pods
	}
	n := served + 2 + pick(z.Inside) + outside*each + z.Firewalled*(1+z.Ranges)
	if z.OwnAddress {
		n += z.Firewalled
	}
	return n + z.Endpoints + 7*affinity // hairpins; the Service port's own maps and chains
}
