//go:build linux

package semantics

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// Usable endpoints: those that are ready; without any, those that terminate and still serve. Each policy by itself.
func TestRow05UsableEndpoints(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		put := func(n int, es []ep, changes ...change) {
			s := service(nth("web", n), clusterIP(n), changes...)
			c.put(s)
			c.endpoints(s, es...)
		}
		terminating := ep{host: c.here, terminating: true}
		put(1, []ep{{host: c.here, notReady: true, notServing: true}, {host: c.there}})
		put(2, []ep{terminating, {host: c.there}})
		put(3, []ep{terminating, {host: c.there, notReady: true, notServing: true}})
		put(4, []ep{{host: c.here, terminating: true, notServing: true}})
		put(5, []ep{terminating, {host: c.there}}, everywhere(5), externalLocal)
		put(6, []ep{terminating, {host: c.there}}, internalLocal)
		put(7, []ep{terminating, {host: c.here2}, {host: c.there}}, internalLocal)
		put(8, []ep{{host: c.here, notReady: true}}) // serving, but neither ready nor terminating
		c.apply()
		cluster5, node5, _, lb5 := c.frontends(5)
		c.expect(t,
			probe{name: "one that is not ready is not used", from: c.pod, to: clusterIP(1).on(80), want: by(c.there)},
			probe{name: "one that terminates is not used beside one that is ready", from: c.pod, to: clusterIP(2).on(80), want: by(c.there)},
			probe{name: "one that terminates and serves is used where none is ready", from: c.pod, to: clusterIP(3).on(80), want: by(c.here)},
			probe{name: "one that terminates and does not serve is not", from: c.pod, to: clusterIP(4).on(80), want: refused},
			probe{name: "policy Local falls back on its own: node port", from: c.External, to: node5, want: by(c.here)},
			probe{name: "policy Local falls back on its own: load balancer", from: c.External, to: lb5, want: by(c.here)},
			probe{name: "while policy Cluster does not", from: c.pod, to: cluster5, want: by(c.there)},
			probe{name: "while the short circuit does not", from: c.pod, to: node5, want: by(c.there)},
			probe{name: "internal policy Local falls back", from: c.pod, to: clusterIP(6).on(80), want: by(c.here)},
			probe{name: "but not beside a local one that is ready", from: c.pod, to: clusterIP(7).on(80), want: by(c.here2)},
			probe{name: "serving alone is not enough", from: c.pod, to: clusterIP(8).on(80), want: refused},
		)
	})
}

// Topology: hints by node, then by zone, where all ready endpoints have them and one is for this node.
func TestRow06Topology(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		put := func(n int, es []ep, changes ...change) {
			s := service(nth("web", n), clusterIP(n), changes...)
			c.put(s)
			c.endpoints(s, es...)
		}
		a, b := []string{"zone-a"}, []string{"zone-b"}
		put(1, []ep{{host: c.here, zones: b}, {host: c.there, zones: a}})
		put(2, []ep{{host: c.here, zones: a}, {host: c.there}})
		put(3, []ep{{host: c.here, zones: b}, {host: c.there, zones: []string{"zone-c"}}})
		put(4, []ep{{host: c.here, zones: a, nodes: []string{otherNode}}, {host: c.there, zones: a, nodes: []string{nodeName}}})
		put(5, []ep{{host: c.here, zones: a, nodes: []string{otherNode}}, {host: c.there, zones: b, nodes: []string{otherNode}}})
		put(6, []ep{{host: c.here, zones: b}, {host: c.there, zones: a}}, internalLocal)
		put(7, []ep{{host: c.here, zones: b, terminating: true}, {host: c.there, zones: a, terminating: true}})
		put(8, []ep{{host: c.here, zones: b}, {host: c.there, zones: a}, {host: c.there2, terminating: true}})
		put(9, []ep{{host: c.here, zones: []string{"zone-b", "zone-a"}}, {host: c.there, zones: b}})
		put(10, []ep{{host: c.here, zones: b}, {host: c.there, zones: a}}, everywhere(10), externalLocal)
		put(11, []ep{{host: c.here, zones: b}, {host: c.there, zones: a}}, everywhere(11))
		put(12, []ep{{host: c.here, nodes: []string{nodeName}}, {host: c.there}})
		put(13, []ep{{host: c.here, nodes: []string{nodeName}, zones: b}, {host: c.there, zones: a}})
		c.apply()
		_, node10, _, _ := c.frontends(10)
		_, node11, _, _ := c.frontends(11)
		c.expect(t,
			probe{name: "endpoints for this zone only", from: c.pod, to: clusterIP(1).on(80), want: by(c.there)},
			probe{name: "all, if one has no hint", from: c.pod, to: clusterIP(2).on(80), want: by(c.here, c.there)},
			probe{name: "all, if none is for this zone", from: c.pod, to: clusterIP(3).on(80), want: by(c.here, c.there)},
			probe{name: "hints by node come before those by zone", from: c.pod, to: clusterIP(4).on(80), want: by(c.there)},
			probe{name: "hints by node that name no endpoint here give way", from: c.pod, to: clusterIP(5).on(80), want: by(c.here)},
			probe{name: "all, if one has no hint by node", from: c.pod, to: clusterIP(12).on(80), want: by(c.here, c.there)},
			probe{name: "those by zone, if one has no hint by node", from: c.pod, to: clusterIP(13).on(80), want: by(c.there)},
			probe{name: "policy Local ignores hints", from: c.pod, to: clusterIP(6).on(80), want: by(c.here)},
			probe{name: "the terminating ones ignore hints", from: c.pod, to: clusterIP(7).on(80), want: by(c.here, c.there)},
			probe{name: "only those that are ready need hints", from: c.pod, to: clusterIP(8).on(80), want: by(c.there)},
			probe{name: "an endpoint may be for several zones", from: c.pod, to: clusterIP(9).on(80), want: by(c.here)},
			probe{name: "external policy Local ignores hints", from: c.External, to: node10, want: by(c.here)},
			probe{name: "external policy Cluster follows them", from: c.External, to: node11, want: by(c.there)},
		)
		c.node.Labels[v1.LabelTopologyZone] = "zone-b"
		c.apply()
		c.expect(t,
			probe{name: "the node moves to another zone", from: c.pod, to: clusterIP(1).on(80), want: by(c.here)},
			probe{name: "and so do node ports", from: c.External, to: node11, want: by(c.here)},
		)
		delete(c.node.Labels, v1.LabelTopologyZone)
		c.apply()
		c.expect(t, probe{name: "a node without zone has all", from: c.pod, to: clusterIP(1).on(80), want: by(c.here, c.there)})
	})
}

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
