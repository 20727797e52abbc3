package k8s

import (
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// AppendPodIPs appends the addresses of a pod that is an endpoint of an EndpointSlice and not in ips yet.
func AppendPodIPs(ips []netip.Addr, o *discoveryv1.EndpointSlice, namespace, pod string) []netip.Addr {
	if o.Namespace != namespace {
		return ips
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if pod == "" || PodOf(e.TargetRef, namespace) != pod || len(e.Addresses) == 0 {
			continue
		}
		if ip, ok := ParseAddr(e.Addresses[0]); ok && !slices.Contains(ips, ip) {
			ips = append(ips, ip)
		}
	}
	return ips
}
