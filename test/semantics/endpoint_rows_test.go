//go:build linux

package semantics

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// Dual stack: each family by itself.
func TestRow07DualStack(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		only4 := func(d dual) dual { d.v6 = dual{}.v6; return d }
		only6 := func(d dual) dual { d.v4 = dual{}.v4; return d }
		c.serve(service("both", clusterIP(1), everywhere(1)), c.here)
		c.serve(service("four", only4(clusterIP(2)), everywhere(2)), c.here)
		c.serve(service("six", only6(clusterIP(3)), everywhere(3)), c.here)
		c.elsewhere(only6(vip(2)), only6(vip(102)), only4(vip(3)), only4(vip(103)))
		for _, port := range []int{30002, 30003} {
			c.listen(c.Node, port)
		}
		c.apply()
		cluster1, node1, external1, lb1 := c.frontends(1)
		cluster2, node2, external2, lb2 := c.frontends(2)
		cluster3, node3, external3, lb3 := c.frontends(3)
		remote := c.Remote // outside the cluster's pods, and not the host of the addresses elsewhere
		c.expect(t,
			probe{name: "both families: ClusterIP", from: c.pod, to: cluster1, want: by(c.here)},
			probe{name: "both families: NodePort", from: remote, to: node1, want: by(c.here)},
			probe{name: "both families: externalIP", from: remote, to: external1, want: by(c.here)},
			probe{name: "both families: load balancer", from: remote, to: lb1, want: by(c.here)},
			probe{name: "IPv4 only: ClusterIP", from: c.pod, to: v4(cluster2), want: by(c.here)},
			probe{name: "IPv4 only: NodePort", from: remote, to: v4(node2), want: by(c.here)},
			probe{name: "IPv4 only: NodePort of the other family is the node's own", from: remote, to: v6(node2), want: by(c.Node)},
			probe{name: "IPv4 only: externalIP", from: remote, to: v4(external2), want: by(c.here)},
			probe{name: "IPv4 only: externalIP of the other family does not count", from: remote, to: v6(external2), want: by(c.External)},
			probe{name: "IPv4 only: load balancer", from: remote, to: v4(lb2), want: by(c.here)},
			probe{name: "IPv4 only: load balancer of the other family does not count", from: remote, to: v6(lb2), want: by(c.External)},
			probe{name: "IPv6 only: ClusterIP", from: c.pod, to: v6(cluster3), want: by(c.here)},
			probe{name: "IPv6 only: NodePort", from: remote, to: v6(node3), want: by(c.here)},
			probe{name: "IPv6 only: NodePort of the other family is the node's own", from: remote, to: v4(node3), want: by(c.Node)},
			probe{name: "IPv6 only: externalIP of the other family does not count", from: remote, to: v4(external3), want: by(c.External)},
			probe{name: "IPv6 only: load balancer of the other family does not count", from: remote, to: v4(lb3), want: by(c.External)},
		)
	})
}

// TCP, UDP and SCTP alike; one port number may serve them at different endpoints.
func TestRow08Protocols(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		// The Service's port is the endpoints' own, for switches that cannot change SCTP ports.
		all := service("all", clusterIP(1))
		var list []v1.ServicePort
		for i, p := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} {
			list = append(list, v1.ServicePort{Name: string("tus"[i]), Port: 8080, Protocol: p, NodePort: 30001})
		}
		all.Spec.Ports, all.Spec.Type = list, v1.ServiceTypeLoadBalancer
		loadBalancer(nil, vip(1))(all)
		externalIPs(vip(101))(all)
		c.put(all)
		hosts := []*testbed.Host{c.here, c.there, c.here2}
		for i, p := range list {
			for _, f := range all.Spec.IPFamilies {
				sl := c.slice(all, f, 8080, ready(hosts[i]))
				sl.Name += "-" + p.Name
				sl.Ports = []discoveryv1.EndpointPort{{Name: &list[i].Name, Port: &list[i].Port, Protocol: &list[i].Protocol}}
				c.put(sl)
			}
		}
		c.apply()
		var probes []probe
		for i, proto := range []string{"tcp", "udp", "sctp"} {
			probes = append(probes,
				probe{name: "ClusterIP/" + proto, from: c.pod, proto: proto, to: clusterIP(1).on(8080), want: by(hosts[i])},
				probe{name: "externalIP/" + proto, from: c.there2, proto: proto, to: vip(101).on(8080), want: by(hosts[i])},
				probe{name: "load balancer/" + proto, from: c.External, proto: proto, to: vip(1).on(8080), want: by(hosts[i])},
			)
			if proto != "sctp" {
				probes = append(probes, probe{name: "NodePort/" + proto, from: c.Remote, proto: proto, to: of(c.Node).on(30001), want: by(hosts[i])})
			}
		}
		c.expect(t, probes...)
	})
}
