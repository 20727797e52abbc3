package shapes

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// Endpoints is how many endpoints each Service of [Many] has.
const Endpoints = 10

// Name is the name of Service i of [Many].
func Name(i int) k8s.PortName {
	return k8s.PortName{ServiceName: k8s.ServiceName{Namespace: fmt.Sprint("ns-", i%50), Name: fmt.Sprint("service-", i)},
		Port: "http", Protocol: "TCP", Family: k8s.IPv4}
}

// VIP is the ClusterIP of Service i.
func VIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{40, 1 + byte(i>>16), byte(i >> 8), byte(i)})
}

// Many makes n Services; no two have an endpoint in common.
func Many(n int) *k8s.Model {
	m := &k8s.Model{
		Node:     k8s.Node{Name: "node", IPs: []netip.Addr{netip.MustParseAddr("172.16.0.2")}},
		Detector: k8s.Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}},
		Ports:    map[k8s.PortName]*k8s.ServicePort{},
	}
	for i := range n {
		p := &k8s.ServicePort{Name: Name(i), Frontends: []k8s.Frontend{{
			Type: k8s.ClusterIP, Address: VIP(i), Port: 80, Policy: k8s.Cluster, WhenEmpty: k8s.Reject}}}
		for j := range Endpoints {
			k := i*Endpoints + j
			p.ClusterEndpoints = append(p.ClusterEndpoints, k8s.Endpoint{
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1 + byte(k>>16), byte(k >> 8), byte(k)}), 80)})
		}
		m.Ports[p.Name] = p
	}
	return m
}

// Replace puts another endpoint in the place of one of Service i.
func Replace(m *k8s.Model, i int, to netip.AddrPort) k8s.Changes {
	p := *m.Ports[Name(i)]
	p.ClusterEndpoints = slices.Clone(p.ClusterEndpoints)
	p.ClusterEndpoints[Endpoints/2] = k8s.Endpoint{Addr: to}
	m.Ports[p.Name] = &p
	return k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{p.Name: &p}}
}
