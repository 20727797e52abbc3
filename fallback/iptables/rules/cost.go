package rules

import "github.com/nkp-proxy/nkp/k8s"

// Cost returns how many rules and chains a Service port takes at most.
func Cost(z *k8s.Size) int {
	outside := z.Frontends + z.Firewalled
	n := 2
	if z.Closes {
		n += 1 + outside
	}
	if z.Endpoints == 0 || z.Outside == k8s.OnNode && z.Local == 0 {
		n += outside // refused
	}
	if z.Endpoints > 0 && outside > 0 {
		n += outside + z.Firewalled + 6 // served, by a chain of their own
	}
	if z.Firewalled > 0 {
		if n += 2 + z.Ranges; z.OwnAddress {
			n += z.Firewalled
		}
	}

	jumps := 1
	if z.Affinity {
		jumps = 2
	}
	for _, set := range k8s.Sets {
		if z.Reaches(set) {
			endpoints, _ := z.Number(set)
			n += 2 + jumps*endpoints
		}
	}

	endpoints := z.Endpoints
	if !z.Reaches(k8s.Anywhere) {
		endpoints = z.Local
	}
	return n + 3*endpoints
}

// PingCost returns how many rules more a Service port takes if its addresses answer pings.
func PingCost(z *k8s.Size) int {
	_, clients := z.Pings()
	return clients
}
