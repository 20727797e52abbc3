package windows

import (
	"fmt"
	"net/netip"

	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// sourceVIP returns the source VIP of an overlay network without --source-vip: the address of
// Calico's endpoint, or of the endpoint that kube-proxy or nkp made for it before. Flannel makes none.
func (p *Plane) sourceVIP(f *plan.Facts) (netip.Addr, error) {
	a, err := p.addressOf(calicoEndpoint)
	if err != nil || a.IsValid() {
		return a, err
	}
	if a, err = p.proxysSourceVIP(f); err != nil || a.IsValid() {
		return a, err
	}
	return a, &notReady{fmt.Sprintf("an overlay network needs a source VIP, and HNS has no endpoint named %s to "+
		"take it from: set --source-vip to an address of this node's pod range that no pod has. Flannel's scripts for "+
		"kube-proxy reserve one, and keep it in "+
		`C:\k\sourceVip.json, C:\sourcevip\sourceVip.json or C:\k\kube-proxy\sourceVip.json`, calicoEndpoint)}
}

// proxysSource stands in Plane.named for the endpoint that a proxy made for the source VIP; no endpoint has
// this name.
const proxysSource = ""

// proxysSourceVIP returns the address of the endpoint that a Service proxy made for the source VIP: on this
// host, with the host's MAC address. The zero Addr: there is none, or more than one. It searches once for
// each network, because that takes a read of all endpoints.
func (p *Plane) proxysSourceVIP(f *plan.Facts) (found netip.Addr, err error) {
	if a, ok := p.named[proxysSource]; ok {
		return a, nil
	}
	ids, err := p.host.EndpointIDs(f.Network.ID)
	if err != nil {
		return found, fmt.Errorf("cannot list the endpoints of HNS: %w", err)
	}
	list, err := hns.ReadAll(ids, nil, p.host.Endpoint)
	if err != nil {
		return found, fmt.Errorf("cannot look for the source VIP among the endpoints of HNS: %w", err)
	}

	want := hns.Endpoint{MacAddress: f.HostMAC}
	n := 0
	for _, e := range list {
		want.IpConfigurations = e.IpConfigurations
		if addrs := e.Addrs(); len(addrs) == 1 && addrs[0].Is4() && hns.SameEndpoint(e, &want) {
			found = addrs[0]
			n++
		}
	}

	if n != 1 { // several: which one is not known
		found = netip.Addr{}
	}
	p.named[proxysSource] = found
	return found, nil
}
