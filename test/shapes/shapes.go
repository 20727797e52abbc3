// Package shapes makes Service ports of every kind, for the tests of what they are compiled to.
package shapes

import (
	"fmt"
	"net/netip"

	"github.com/nkp-proxy/nkp/k8s"
)

// All are the types of frontend that a Service port may have; Inside and NodePort those of Services of types ClusterIP and NodePort.
var (
	All      = []k8s.FrontendType{k8s.ClusterIP, k8s.ExternalIP, k8s.LoadBalancer, k8s.NodePort}
	Inside   = []k8s.FrontendType{k8s.ClusterIP}
	NodePort = []k8s.FrontendType{k8s.ClusterIP, k8s.NodePort}
)

// Model returns the model of a dual-stack node without Services, with these Service ranges.
func Model(ranges ...string) *k8s.Model {
	return &k8s.Model{
		Node:     k8s.Node{Name: "n1", IPs: []netip.Addr{netip.MustParseAddr("172.16.0.2"), netip.MustParseAddr("fd00:ac::2")}},
		Detector: k8s.Detector{CIDRs: Prefixes("10.0.0.0/16", "fd00:10::/32")}, ServiceCIDRs: Prefixes(ranges...),
		Ports: map[k8s.PortName]*k8s.ServicePort{},
	}
}

// Prefixes parses prefixes.
func Prefixes(texts ...string) (list []netip.Prefix) {
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

// Shape describes a Service port; ServicePort makes it.
type Shape struct {
	Name               string
	Protocol           k8s.Protocol // "": TCP
	Family             k8s.Family   // 0: IPv4
	Cluster, Local     int          // endpoints, and those of them on this node
	Types              []k8s.FrontendType
	External, Internal k8s.Policy // "": Cluster
	Affinity           int
	Ranges             []netip.Prefix
	NodePortAt         netip.Addr
	VIP                int     // which addresses it has
	Closes             bool    // connections to removed endpoints
	Weights            []uint8 // of the first endpoints; of others 1
}

// ServicePort returns the Service port. Its endpoints are at 10.0.0.11 and so on, its frontends at 40, 30 and
// 20.0.0.1 + VIP.
func (s Shape) ServicePort() *k8s.ServicePort {
	if s.Protocol == "" {
		s.Protocol = "TCP"
	}
	if s.Family == 0 {
		s.Family = k8s.IPv4
	}
	sp := &k8s.ServicePort{
		Name: k8s.PortName{
			ServiceName: k8s.ServiceName{Namespace: "default", Name: s.Name}, Port: "p", Protocol: s.Protocol, Family: s.Family,
		},
		AffinitySeconds: s.Affinity,
	}
	if s.Closes {
		sp.Removed = &k8s.Removed{}
	}
	for i := range s.Cluster {
		e := k8s.Endpoint{Addr: netip.AddrPortFrom(s.at(10, 11+i), 80), Local: i < s.Local}
		if i < len(s.Weights) {
			e.MoreWeight = s.Weights[i] - 1
		}
		sp.ClusterEndpoints = append(sp.ClusterEndpoints, e)
		if s.Protocol == "UDP" || s.Closes {
			sp.Serving = append(sp.Serving, e.Addr)
		}
		if e.Local {
			sp.LocalEndpoints = append(sp.LocalEndpoints, e)
		}
	}
	for _, t := range s.Types {
		f := k8s.Frontend{Type: t, Port: 80, Policy: s.External, WhenEmpty: k8s.Reject}
		switch t {
		case k8s.ClusterIP:
			f.Address, f.Policy = s.at(40, 1+s.VIP), s.Internal
		case k8s.ExternalIP:
			f.Address = s.at(30, 1+s.VIP)
		case k8s.LoadBalancer:
			f.Address, f.SourceRanges = s.at(20, 1+s.VIP), s.Ranges
		case k8s.NodePort:
			f.Address, f.Port = s.NodePortAt, uint16(30000+s.VIP)
		}
		if f.Policy == "" {
			f.Policy = k8s.Cluster
		}
		if f.Policy == k8s.Local && s.Cluster > 0 {
			f.WhenEmpty = k8s.Drop
		}
		sp.Frontends = append(sp.Frontends, f)
	}
	return sp
}

// at returns an address of the shape's family.
func (s Shape) at(net, host int) netip.Addr {
	if s.Family == k8s.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:%x::%x", net, host))
	}
	return netip.AddrFrom4([4]byte{byte(net), byte(host >> 16), byte(host >> 8), byte(host)})
}
