//go:build linux

package faults

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
)

const (
	serverPort = 8080
	stable     = 40 // Services that no fault is aimed at
	disrupted  = 10 // Services whose endpoints, flows and pods faults change or remove
	firstPort  = 30000
)

// svc is a Service and its endpoints.
type svc struct {
	name     string
	vip      netip.Addr
	nodePort int32 // 0: none
	affinity bool
	udp      bool
	local    bool // externalTrafficPolicy Local
	pods     []*testbed.Pod
}

// makeServices fills c.services: stable ones of every kind first, then those that will be disrupted.
func (c *cluster) makeServices() {
	for i := range stable + disrupted {
		s := &svc{name: fmt.Sprintf("stable-%d", i), vip: netip.AddrFrom4([4]byte{40, 0, 0, byte(1 + i)})}
		if i >= stable {
			s.name = fmt.Sprintf("disrupted-%d", i)
		}
		if i%4 == 3 {
			s.vip = netip.MustParseAddr(fmt.Sprintf("fd00:40::%x", 1+i))
		}
		s.affinity = i%5 == 4
		if i%3 == 0 {
			s.nodePort = firstPort + int32(i)
			s.local = i%2 == 0
		}
		for j := range 1 + i%len(c.servers) {
			s.pods = append(s.pods, c.servers[(i+j)%len(c.servers)])
		}
		if s.local {
			s.pods = append(s.pods, c.servers[0])
		}
		c.services = append(c.services, s)
	}
}

func (c *cluster) stableServices() []*svc    { return c.services[:stable] }
func (c *cluster) disruptedServices() []*svc { return c.services[stable:] }

// scramble assigns random endpoints to the disrupted Services, none to some.
func (c *cluster) scramble(r *rand.Rand, pods []*testbed.Pod) {
	for _, s := range c.disruptedServices() {
		s.pods = nil
		for _, p := range pods {
			if r.IntN(2) == 0 {
				s.pods = append(s.pods, p)
			}
		}
	}
}

// put writes the manifests: the node, c.services, and extra ones that nobody uses.
func (c *cluster) put(extra int) error {
	objects := []any{harness.Node()}
	for _, s := range c.services {
		objects = append(objects, s.service(), s.slice())
	}
	for i := range extra {
		s := &svc{name: fmt.Sprintf("extra-%d", i), vip: netip.AddrFrom4([4]byte{41, 0, byte(i >> 8), byte(i)}), pods: c.servers}
		objects = append(objects, s.service(), s.slice())
	}
	return harness.WriteManifests(c.manifest, objects)
}

func (s *svc) service() *v1.Service {
	family := v1.IPv4Protocol
	if s.vip.Is6() {
		family = v1.IPv6Protocol
	}
	o := &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: "default"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: s.vip.String(), ClusterIPs: []string{s.vip.String()}, IPFamilies: []v1.IPFamily{family},
			Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}},
		},
	}
	if s.udp {
		o.Spec.Ports[0].Protocol = v1.ProtocolUDP
	}
	if s.affinity {
		o.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	}
	if s.nodePort != 0 {
		o.Spec.Type = v1.ServiceTypeNodePort
		o.Spec.Ports[0].NodePort = s.nodePort
		if s.local {
			o.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		}
	}
	return o
}

func (s *svc) slice() *discoveryv1.EndpointSlice {
	name, port, protocol := "http", int32(serverPort), v1.ProtocolTCP
	if s.udp {
		protocol = v1.ProtocolUDP
	}
	o := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: s.name + "-1", Namespace: "default",
			Labels: map[string]string{discoveryv1.LabelServiceName: s.name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	if s.vip.Is6() {
		o.AddressType = discoveryv1.AddressTypeIPv6
	}
	seen := map[string]bool{}
	for _, p := range s.pods {
		if seen[p.Name] {
			continue
		}
		seen[p.Name] = true
		node, ready := harness.OtherNode, true
		if p.Local {
			node = nodeName
		}
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.IP(s.vip).String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return o
}

// target is an address that a client connects to, and the pods that may answer.
type target struct {
	name    string // the Service and the kind of address
	to      netip.AddrPort
	pods    map[string]bool // that may answer, by name
	control netip.AddrPort  // one of them directly
}

// targets returns the ClusterIPs of Services, or their NodePorts at the node's address for clients outside the node.
func targets(services []*svc, external bool) (list []target) {
	for _, s := range services {
		g := target{name: s.name + " by ClusterIP", to: netip.AddrPortFrom(s.vip, 80), pods: map[string]bool{}}
		if external {
			if s.nodePort == 0 {
				continue
			}
			node := testbed.NodeIP4
			if s.vip.Is6() {
				node = testbed.NodeIP6
			}
			g.name, g.to = s.name+" by NodePort", netip.AddrPortFrom(node, uint16(s.nodePort))
		}
		for _, p := range s.pods {
			if !external || !s.local || p.Local {
				g.pods[p.Name] = true
				g.control = netip.AddrPortFrom(p.IP(s.vip), serverPort)
			}
		}
		list = append(list, g)
	}
	return list
}
