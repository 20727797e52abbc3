package plan

import "github.com/nkp-proxy/nkp/k8s"

// Cost returns how many objects of HNS a Service port takes at most: endpoints, load balancers, and the
// endpoints that each of these names.
func Cost(z *k8s.Size) int {
	inside, _ := z.Number(z.Inside)
	each, _ := z.Number(z.Outside)
	const health = 2     // a load balancer for health checks, with one endpoint
	endpoints := z.Local // HNS does not tell pods from clients outside: a policy Local holds for all of them
	if z.Inside == k8s.Anywhere || z.Outside == k8s.Anywhere && z.Frontends+z.Firewalled > 0 {
		endpoints = z.Endpoints
	}
	n := 2 + inside + (z.Frontends+z.Firewalled)*(1+each) + endpoints
	if each > 0 {
		n += z.LoadBalancers * health
	}
	return n
}
