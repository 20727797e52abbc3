package manifest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// PodIPs reads the manifests and returns the addresses of a pod that an EndpointSlice names as the target of
// an endpoint, sorted.
func (m *Source) PodIPs(_ context.Context, namespace, name string) (ips []netip.Addr, err error) {
	for _, c := range Load(m.path).Objects {
		if s, ok := c.Object.(*discoveryv1.EndpointSlice); ok {
			ips = k8s.AppendPodIPs(ips, s, namespace, name)
		}
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("no EndpointSlice of the manifests has an endpoint "+
			"whose targetRef is pod %s/%s: pass the pod's address", namespace, name)
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return ips, nil
}
