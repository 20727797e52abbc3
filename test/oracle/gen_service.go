package oracle

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nkp-proxy/nkp/k8s"
)

var (
	externalPool = []string{"192.0.2.1", "192.0.2.2", "192.0.2.02", "2001:db8::1", "2001:db8::2", "2001:DB8:0::2"}
	externalOdd  = []string{"", " 192.0.2.1", "example", "0.0.0.0", "::", "fe80::1%eth0", "::ffff:192.0.2.9", "192.0.2.1/32",
		"192.0.2.256", "192.0.2", "192.0.2.0000000003", "192.0.2.", "1:2:3:4:5:6:7:8:9", "0x7f.0.0.1"}
	rangePool = []string{"10.0.0.0/8", "192.168.1.7/24", "0.0.0.0/0", "::/0", "2001:db8::/32", "fd00::1/128", "10.1.2.3/32",
		"010.0.0.0/8", " 10.2.0.0/16 ", "10.0.0.0/8"}
	rangeOdd = []string{"", " ", "any", "10.0.0.0/33", "10.0.0.1", "::ffff:10.0.0.0/104", "::ffff:0:0/96", "::ffff:0:0/64",
		"10.0.0.0/08", "fd00::/064", "\t::/0\n", "10.0.0.0 /8", "10.0.0.0/+8", "10.0.0.0/-1", "10.0.0.0/", "/8", "fd00::%eth0/64",
		"10.0.0/8", "10.0.0.0/8/8", "10.0.0.0/008", "1.2.3.4/000"}
)

// service makes a Service as a user might write it.
func (g *generator) service(name k8s.ServiceName) *v1.Service {
	o := &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
	}
	if g.chance(0.7) {
		o.CreationTimestamp = metav1.NewTime(time.Unix(1700000000+int64(g.IntN(3)), 0).UTC())
	}
	if g.chance(0.06) {
		o.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": pick(g, "", "other")}
	}
	if g.chance(0.1) {
		o.Annotations = map[string]string{v1.AnnotationLoadBalancerSourceRangesKey: "10.9.0.0/16"}
	}
	s := &o.Spec
	s.Type = pick(g, "", v1.ServiceTypeClusterIP, v1.ServiceTypeClusterIP, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort,
		v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, v1.ServiceTypeLoadBalancer, v1.ServiceTypeLoadBalancer)
	if g.chance(0.04) {
		s.Type, s.ExternalName = v1.ServiceTypeExternalName, "example.org"
	}
	g.clusterIPs(s)
	g.ports(s)
	g.frontends(o)
	g.policies(s)
	s.PublishNotReadyAddresses = g.chance(0.1)
	if g.chance(0.2) {
		text := pick(g, "PreferClose", "PreferSameNode", "PreferSameZone")
		s.TrafficDistribution = &text
	}
	return o
}

func (g *generator) clusterIPs(s *v1.ServiceSpec) {
	if g.chance(0.06) {
		s.ClusterIP = v1.ClusterIPNone
		s.ClusterIPs = []string{v1.ClusterIPNone}
		return
	}
	if g.chance(0.03) {
		return
	}
	n := g.IntN(12)
	v4, v6 := fmt.Sprintf("10.96.0.%d", n), fmt.Sprintf("fd00:96::%d", n)
	switch g.IntN(6) {
	case 0, 1:
		s.ClusterIPs, s.IPFamilies = []string{v4}, []v1.IPFamily{v1.IPv4Protocol}
	case 2:
		s.ClusterIPs, s.IPFamilies = []string{v6}, []v1.IPFamily{v1.IPv6Protocol}
	case 3, 4:
		s.ClusterIPs, s.IPFamilies = []string{v4, v6}, []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	case 5:
		s.ClusterIPs, s.IPFamilies = []string{v6, v4}, []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}
	}
	s.ClusterIP = s.ClusterIPs[0]
	switch {
	case g.odd(0.05):
		s.IPFamilies = nil
	case g.odd(0.03):
		s.ClusterIPs = s.ClusterIPs[:1]
	case g.odd(0.03):
		s.ClusterIPs = nil
	case g.odd(0.03):
		s.ClusterIPs, s.IPFamilies = nil, nil
	case g.odd(0.02):
		s.IPFamilies = s.IPFamilies[:1]
	}
}

func (g *generator) ports(s *v1.ServiceSpec) {
	type key struct {
		name     string
		protocol v1.Protocol
		number   int32
	}
	names, numbers := map[key]bool{}, map[key]bool{}
	count := pick(g, 1, 1, 2, 3)
	for range count {
		p := v1.ServicePort{
			Name:       pick(g, "http", "dns", "admin", ""),
			Protocol:   pick(g, "", v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP),
			Port:       pick[int32](g, 80, 53, 443, 30001),
			TargetPort: pick(g, intstr.IntOrString{}, intstr.FromInt32(8080), intstr.FromString("web")),
		}
		if g.regular && count > 1 && p.Name == "" {
			p.Name = "more"
		}
		protocol := p.Protocol
		if protocol == "" {
			protocol = v1.ProtocolTCP
		}
		name := key{name: p.Name, protocol: protocol}
		if g.regular {
			name.protocol = ""
		}
		if names[name] || numbers[key{"", protocol, p.Port}] && g.regular {
			continue
		}
		names[name], numbers[key{"", protocol, p.Port}] = true, true
		if (s.Type == v1.ServiceTypeNodePort || s.Type == v1.ServiceTypeLoadBalancer) && g.chance(0.85) || g.odd(0.05) {
			p.NodePort = 30000 + g.Int32N(5)
			if at := (key{"nodePort", protocol, p.NodePort}); numbers[at] && g.regular {
				p.NodePort = 0
			} else {
				numbers[at] = true
			}
		}
		s.Ports = append(s.Ports, p)
	}
}

// frontends adds externalIPs, ingress addresses and source ranges.
func (g *generator) frontends(o *v1.Service) {
	if g.chance(0.3) {
		for range 1 + g.IntN(3) {
			o.Spec.ExternalIPs = append(o.Spec.ExternalIPs, g.text(externalPool, externalOdd))
		}
	}
	if o.Spec.Type == v1.ServiceTypeLoadBalancer && g.chance(0.8) || g.odd(0.05) {
		for range 1 + g.IntN(3) {
			o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, g.ingress())
		}
	}
	if o.Spec.Type == v1.ServiceTypeLoadBalancer && g.chance(0.5) || g.odd(0.05) {
		for range 1 + g.IntN(3) {
			o.Spec.LoadBalancerSourceRanges = append(o.Spec.LoadBalancerSourceRanges, g.text(rangePool, rangeOdd))
		}
	}
}

func (g *generator) text(good, bad []string) string {
	if g.odd(0.25) {
		return pick(g, bad...)
	}
	return pick(g, good...)
}

func (g *generator) ingress() v1.LoadBalancerIngress {
	var ing v1.LoadBalancerIngress
	if g.chance(0.15) {
		ing.Hostname = "lb.example.org"
	}
	if ing.Hostname == "" || g.chance(0.3) {
		ing.IP = g.text(externalPool, externalOdd)
	}
	if ing.IP != "" && g.chance(0.5) {
		mode := pick(g, v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)
		if g.odd(0.05) {
			mode = "Other"
		}
		ing.IPMode = &mode
	}
	return ing
}

func (g *generator) policies(s *v1.ServiceSpec) {
	if g.chance(0.6) {
		policy := pick(g, v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)
		s.InternalTrafficPolicy = &policy
	}
	s.ExternalTrafficPolicy = pick(g, "", v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal, v1.ServiceExternalTrafficPolicyLocal)
	if g.chance(0.2) {
		s.HealthCheckNodePort = 32000
	}
	s.SessionAffinity = pick(g, "", v1.ServiceAffinityNone, v1.ServiceAffinityClientIP)
	switch g.IntN(5) {
	case 0:
		seconds := pick[int32](g, 1, 60, 10800, 86400)
		s.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
	case 1:
		s.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{}}
	case 2:
		s.SessionAffinityConfig = &v1.SessionAffinityConfig{}
	}
}
