//go:build linux

package semantics

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// nodeObject is the Node on which the proxy runs: its pods' ranges, its addresses, in zone-a.
func (c *cluster) nodeObject() *v1.Node {
	n := &v1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "8e3a2c66-9f50-4d5c-8a6b-0d7f6f1f3c01", Labels: map[string]string{v1.LabelTopologyZone: "zone-a"}},
		Spec:       v1.NodeSpec{PodCIDRs: []string{testbed.PodCIDR4.String(), testbed.PodCIDR6.String()}},
	}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	for _, a := range []netip.Addr{c.Node.IP4, c.Node.IP6} {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a.String()})
	}
	return n
}

// change is what is special about a Service.
type change func(*v1.Service)

// service makes a Service with port 80, named http. With addresses of both families it has both.
func service(name string, ip dual, changes ...change) *v1.Service {
	s := &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{}},
		Spec: v1.ServiceSpec{
			Type:  v1.ServiceTypeClusterIP,
			Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}},
		},
	}
	if ip.v4.IsValid() {
		s.Spec.ClusterIPs, s.Spec.IPFamilies = append(s.Spec.ClusterIPs, ip.v4.String()), append(s.Spec.IPFamilies, v1.IPv4Protocol)
	}
	if ip.v6.IsValid() {
		s.Spec.ClusterIPs, s.Spec.IPFamilies = append(s.Spec.ClusterIPs, ip.v6.String()), append(s.Spec.IPFamilies, v1.IPv6Protocol)
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	policy := v1.IPFamilyPolicySingleStack
	if len(s.Spec.ClusterIPs) == 2 {
		policy = v1.IPFamilyPolicyRequireDualStack
	}
	s.Spec.IPFamilyPolicy = &policy
	for _, f := range changes {
		f(s)
	}
	return s
}

// ports replaces the usual port.
func ports(list ...v1.ServicePort) change { return func(s *v1.Service) { s.Spec.Ports = list } }

func protocol(p v1.Protocol) change { return func(s *v1.Service) { s.Spec.Ports[0].Protocol = p } }

// nodePort makes the Service one of type NodePort, if it is a plain one.
func nodePort(n int32) change {
	return func(s *v1.Service) {
		s.Spec.Ports[0].NodePort = n
		if s.Spec.Type == v1.ServiceTypeClusterIP {
			s.Spec.Type = v1.ServiceTypeNodePort
		}
	}
}

// loadBalancer makes the Service one of type LoadBalancer, reached at the given addresses. A nil mode is that of VIPs.
func loadBalancer(mode *v1.LoadBalancerIPMode, ips ...dual) change {
	return func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		for _, d := range ips {
			for _, a := range d.on(0).addresses() {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: a.Addr().String(), IPMode: mode})
			}
		}
	}
}

func externalIPs(ips ...dual) change {
	return func(s *v1.Service) {
		for _, d := range ips {
			for _, a := range d.on(0).addresses() {
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, a.Addr().String())
			}
		}
	}
}

// everywhere returns the Service a frontend of every kind: number n of all address ranges, NodePort 30000 + n.
func everywhere(n int) change {
	return func(s *v1.Service) {
		loadBalancer(nil, vip(n))(s)
		externalIPs(vip(100 + n))(s)
		nodePort(int32(30000 + n))(s)
	}
}

// frontends are the targets of a Service with clusterIP(n) and everywhere(n).
func (c *cluster) frontends(n int) (cluster, node, external, lb target) {
	return clusterIP(n).on(80), of(c.Node).on(uint16(30000 + n)), vip(100 + n).on(80), vip(n).on(80)
}

func externalLocal(s *v1.Service) {
	s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
}

func internalLocal(s *v1.Service) {
	local := v1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = &local
}

func sourceRanges(ranges ...string) change {
	return func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = ranges }
}

func affinity(seconds int32) change {
	return func(s *v1.Service) {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

// ep is an endpoint. Its zero conditions are those of a pod that is ready.
type ep struct {
	host *testbed.Host
	port int32 // 0: 8080
	// notReady and terminating as in the conditions; a terminating endpoint is not ready. It serves unless notServing.
	notReady, terminating, notServing bool
}

// ready are endpoints of pods that are ready.
func ready(hosts ...*testbed.Host) (es []ep) {
	for _, h := range hosts {
		es = append(es, ep{host: h})
	}
	return es
}

// onNode reports whether a host runs on the node under test.
func (c *cluster) onNode(h *testbed.Host) bool {
	return h == c.Node || testbed.PodCIDR4.Contains(h.IP4) || testbed.PodCIDR6.Contains(h.IP6)
}

// endpoints replaces all endpoints of a Service: slices of each of its families, one for each port number. Each port of
// the Service leads to the endpoint's port.
func (c *cluster) endpoints(s *v1.Service, es ...ep) {
	c.t.Helper()
	byPort := map[int32][]ep{}
	for _, e := range es {
		if e.port == 0 {
			e.port = 8080
		}
		byPort[e.port] = append(byPort[e.port], e)
	}
	var list []any
	for _, family := range s.Spec.IPFamilies {
		for port, es := range byPort {
			list = append(list, c.slice(s, family, port, es))
		}
	}
	c.objects["endpoints of "+s.Namespace+"/"+s.Name] = list
}

func (c *cluster) slice(s *v1.Service, family v1.IPFamily, port int32, es []ep) *discoveryv1.EndpointSlice {
	sl := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%s-%d", s.Name, strings.ToLower(string(family)), port), Namespace: s.Namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
		},
		AddressType: discoveryv1.AddressType(family),
	}
	for _, p := range s.Spec.Ports {
		sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &port, Protocol: &p.Protocol})
	}
	for _, e := range es {
		a := e.host.IP4
		if family == v1.IPv6Protocol {
			a = e.host.IP6
		}
		sl.Endpoints = append(sl.Endpoints, c.endpoint(e, a))
	}
	return sl
}

func (c *cluster) endpoint(e ep, a netip.Addr) discoveryv1.Endpoint {
	node, ready, serving, terminating := otherNode, !e.notReady && !e.terminating, !e.notServing && (e.terminating || !e.notReady), e.terminating
	if c.onNode(e.host) {
		node = nodeName
	}
	return discoveryv1.Endpoint{
		Addresses: []string{a.String()}, NodeName: &node,
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
	}
}

// put adds or replaces objects; apply puts them in force.
func (c *cluster) put(objects ...metav1.Object) {
	for _, o := range objects {
		c.objects[harness.Key(o)] = []any{o}
	}
}

// remove takes objects away, Services with their endpoints.
func (c *cluster) remove(objects ...metav1.Object) {
	for _, o := range objects {
		delete(c.objects, harness.Key(o))
		delete(c.objects, "endpoints of "+o.GetNamespace()+"/"+o.GetName())
	}
}

// serve puts a Service with endpoints at ready pods.
func (c *cluster) serve(s *v1.Service, hosts ...*testbed.Host) *v1.Service {
	c.t.Helper()
	c.put(s)
	c.endpoints(s, ready(hosts...)...)
	return s
}

func nth(name string, i int) string { return fmt.Sprintf("%s-%d", name, i) }
