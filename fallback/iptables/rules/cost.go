package rules

import "github.com/nkp-proxy/nkp/k8s"

// Cost returns how many rules and chains a Service port takes at most.
func Cost(z *k8s.Size) int {
	outside := z.Frontends + z.Firewalled // frontends beside the ClusterIP
	more := max(z.PodRanges-1, 0)         // rules more where pods are matched: one for each of their ranges
	n := 2                                // the ClusterIP: served or refused; its other ports are refused
	if z.Closes {
		n += 1 + outside // a reset for each frontend
	}
	if z.Endpoints == 0 || z.Outside == k8s.OnNode && z.Local == 0 {
		n += outside // refused: without endpoints, or for clients from outside without endpoints here
	}
	if z.Endpoints > 0 && outside > 0 {
		// A rule for each, a drop outside the ranges, and the jump to the NodePorts' chain. KUBE-EXT and four
		// rules there at most: one for pods, two for this node, one for all others.
		n += outside + z.Firewalled + 6 + more
	}
	if z.Firewalled > 0 {
		// KUBE-FW, a rule for each range, and a comment at its end.
		if n += 2 + z.Ranges; z.OwnAddress {
			n += z.Firewalled // each address as a client of its own
		}
	}

	jumps := 1 // to an endpoint, at random
	if z.Affinity {
		jumps = 2 // and one for the clients that it remembers
	}
	for _, set := range k8s.Sets {
		if z.Reaches(set) {
			endpoints, _ := z.Number(set)
			n += 2 + jumps*endpoints // the set's chain, and a rule there that masquerades
		}
	}

	if z.Endpoints > 0 && more > 0 {
		n += 1 + more // each range of pods takes back the mark that masquerades
	}

	endpoints := z.Endpoints
	if !z.Reaches(k8s.Anywhere) {
		endpoints = z.Local
	}
	return n + 3*endpoints // a chain, a rule that masquerades hairpins, and one that translates
}

// PingCost returns how many rules more a Service port takes if its addresses answer pings.
func PingCost(z *k8s.Size) int {
	addresses, clients := z.Pings()
	if z.Endpoints > 0 && z.Outside == k8s.OnNode && z.Local == 0 { // only pods and this node
		clients += (addresses - 1) * max(z.PodRanges-1, 0)
	}
	return clients
}
