//go:build linux

package semantics

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// externalTrafficPolicy Local: outside traffic stays on this node and keeps its source; pods and the node are served by
// all endpoints.
func TestRow15ExternalTrafficPolicyLocal(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		c.serve(service("web", clusterIP(1), everywhere(1), externalLocal), c.here, c.there)
		c.serve(service("plain", clusterIP(2), externalIPs(vip(102)), externalLocal), c.here, c.there)
		c.serve(service("udp", clusterIP(3), protocol(v1.ProtocolUDP), everywhere(3), externalLocal), c.here, c.there)
		c.serve(service("two", clusterIP(4), everywhere(4), externalLocal), c.here, c.here2, c.there, c.there2)
		c.serve(service("on-node", clusterIP(5), everywhere(5), externalLocal), c.Node, c.there)
		c.listen(c.Node, 8080)
		c.listen(c.Node, 30001)
		c.apply()
		cluster, node, external, lb := c.frontends(1)
		local, all := by(c.here).keep(), by(c.here, c.there)
		own := by(c.Node)
		c.expect(t,
			probe{name: "from outside to the NodePort", from: c.External, to: node, want: local},
			probe{name: "from outside to the externalIP", from: c.External, to: external, want: local},
			probe{name: "from outside to the load balancer", from: c.External, to: lb, want: local},
			probe{name: "from outside, over UDP", from: c.External, proto: "udp", to: vip(3).on(80), want: local},
			probe{name: "from outside, several local endpoints", from: c.External, to: vip(4).on(80), want: by(c.here, c.here2).keep()},
			probe{name: "from another node to the NodePort", from: c.Remote, to: node, want: local},
			probe{name: "from another node to the load balancer", from: c.Remote, to: lb, want: local},
			probe{name: "from a pod to the NodePort", from: c.pod, to: node, want: all.keep()},
			probe{name: "from a pod to the externalIP", from: c.pod, to: external, want: all.keep()},
			probe{name: "from a pod to the load balancer", from: c.pod, to: lb, want: all.keep()},
			probe{name: "from a pod, over UDP", from: c.pod, proto: "udp", to: vip(3).on(80), want: all.keep()},
			probe{name: "from the node to the externalIP", from: c.Node, to: external, want: all.masquerade()},
			probe{name: "from the node to the load balancer", from: c.Node, to: lb, want: all.masquerade()},
			probe{name: "from the node to its NodePort", from: c.Node, to: node, want: all.masquerade(), needs: ownAddresses, without: &own},
			probe{name: "the ClusterIP is not concerned", from: c.pod, to: cluster, want: all.keep()},
			probe{name: "the node itself may be the local endpoint", from: c.External, to: vip(5).on(80), want: by(c.Node).keep()},
			probe{name: "the node itself may be the local endpoint, by NodePort", from: c.External, to: of(c.Node).on(30005), want: by(c.Node).keep()},
			probe{name: "type ClusterIP with externalIPs, from outside", from: c.External, to: vip(102).on(80), want: local},
			probe{name: "type ClusterIP with externalIPs, from a pod", from: c.pod, to: vip(102).on(80), want: all.keep()},
		)
	})
}

// internalTrafficPolicy Local: ClusterIP traffic stays on this node; other frontends are not concerned.
func TestRow16InternalTrafficPolicyLocal(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		c.serve(service("web", clusterIP(1), everywhere(1), internalLocal), c.here, c.there)
		c.serve(service("both", clusterIP(2), everywhere(2), internalLocal, externalLocal), c.here, c.there)
		c.apply()
		cluster, node, external, lb := c.frontends(1)
		cluster2, node2, _, _ := c.frontends(2)
		all := by(c.here, c.there).masquerade()
		c.expect(t,
			probe{name: "from a pod", from: c.pod, to: cluster, want: by(c.here).keep()},
			probe{name: "from the node", from: c.Node, to: cluster, want: by(c.here)},
			probe{name: "from outside", from: c.External, to: cluster, want: by(c.here).masquerade()},
			probe{name: "from another node's pod", from: c.there2, to: cluster, want: by(c.here).keep()},
			probe{name: "the NodePort is not concerned", from: c.External, to: node, want: all},
			probe{name: "the externalIP is not concerned", from: c.External, to: external, want: all},
			probe{name: "the load balancer is not concerned", from: c.External, to: lb, want: all},
			probe{name: "a pod at the NodePort is not concerned", from: c.pod, to: node, want: all},
			probe{name: "both policies Local: ClusterIP", from: c.pod, to: cluster2, want: by(c.here).keep()},
			probe{name: "both policies Local: NodePort from outside", from: c.External, to: node2, want: by(c.here).keep()},
			probe{name: "both policies Local: NodePort from a pod", from: c.pod, to: node2, want: by(c.here, c.there).keep()},
		)
	})
}

// Without endpoints: refused if there are none at all; dropped if policy Local has none here but others do.
func TestRow17NoEndpoints(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		c.serve(service("none", clusterIP(1), everywhere(1)))
		c.serve(service("none-udp", clusterIP(2), protocol(v1.ProtocolUDP), everywhere(2)))
		c.serve(service("none-local", clusterIP(3), everywhere(3), externalLocal, internalLocal))
		c.serve(service("external", clusterIP(4), everywhere(4), externalLocal), c.there)
		c.serve(service("internal", clusterIP(5), everywhere(5), internalLocal), c.there)
		c.serve(service("external-udp", clusterIP(6), protocol(v1.ProtocolUDP), everywhere(6), externalLocal), c.there)
		held := c.serve(service("held", clusterIP(7)), c.here)
		for n := range 6 {
			c.listen(c.Node, 30001+n) // answers what the proxy leaves alone
		}
		c.apply()
		var probes []probe
		for _, s := range []struct {
			n     int
			proto string
			what  string
		}{{1, "tcp", "none at all"}, {2, "udp", "none at all, over UDP"}, {3, "tcp", "none at all under policies Local"}} {
			cluster, node, external, lb := c.frontends(s.n)
			probes = append(probes,
				probe{name: s.what + ": ClusterIP from a pod", from: c.pod, proto: s.proto, to: cluster, want: refused},
				probe{name: s.what + ": ClusterIP from the node", from: c.Node, proto: s.proto, to: cluster, want: refused},
				probe{name: s.what + ": ClusterIP from outside", from: c.External, proto: s.proto, to: cluster, want: refused},
				probe{name: s.what + ": NodePort from a pod", from: c.pod, proto: s.proto, to: node, want: refused},
				probe{name: s.what + ": NodePort from outside", from: c.External, proto: s.proto, to: node, want: refused},
				probe{name: s.what + ": externalIP from a pod", from: c.pod, proto: s.proto, to: external, want: refused},
				probe{name: s.what + ": externalIP from outside", from: c.External, proto: s.proto, to: external, want: refused},
				probe{name: s.what + ": load balancer from a pod", from: c.pod, proto: s.proto, to: lb, want: refused},
				probe{name: s.what + ": load balancer from the node", from: c.Node, proto: s.proto, to: lb, want: refused, needs: refuseNode},
				probe{name: s.what + ": externalIP from the node", from: c.Node, proto: s.proto, to: external, want: refused, needs: refuseNode},
				probe{name: s.what + ": load balancer from outside", from: c.External, proto: s.proto, to: lb, want: refused})
		}
		cluster, node, external, lb := c.frontends(4)
		internal, node5, _, lb5 := c.frontends(5)
		_, node6, _, lb6 := c.frontends(6)
		there := by(c.there)
		c.expect(t, append(probes,
			probe{name: "external policy, none here: NodePort from outside", from: c.External, to: node, want: dropped},
			probe{name: "external policy, none here: externalIP from outside", from: c.External, to: external, want: dropped},
			probe{name: "external policy, none here: load balancer from outside", from: c.External, to: lb, want: dropped},
			probe{name: "external policy, none here: NodePort from outside, over UDP", from: c.External, proto: "udp", to: node6, want: dropped},
			probe{name: "external policy, none here: load balancer from outside, over UDP", from: c.External, proto: "udp", to: lb6, want: dropped},
			probe{name: "external policy, none here: a pod is served at the NodePort", from: c.pod, to: node, want: there.keep()},
			probe{name: "external policy, none here: a pod is served at the load balancer", from: c.pod, to: lb, want: there.keep()},
			probe{name: "external policy, none here: the node is served at the load balancer", from: c.Node, to: lb, want: there.masquerade()},
			probe{name: "external policy, none here: the ClusterIP is not concerned", from: c.pod, to: cluster, want: there},
			probe{name: "internal policy, none here: from a pod", from: c.pod, to: internal, want: dropped},
			probe{name: "internal policy, none here: from the node", from: c.Node, to: internal, want: dropped},
			probe{name: "internal policy, none here: from outside", from: c.External, to: internal, want: dropped},
			probe{name: "internal policy, none here: the NodePort is not concerned", from: c.External, to: node5, want: there},
			probe{name: "internal policy, none here: the load balancer is not concerned", from: c.pod, to: lb5, want: there},
		)...)

		var open []*testbed.Held
		for _, to := range clusterIP(7).on(80).addresses() {
			h, err := c.pod.Hold(c.ctx, to.String(), testbed.DialOptions{})
			must(t, err)
			open = append(open, h)
		}
		c.endpoints(held)
		c.apply()
		c.expect(t, probe{name: "the endpoints go: new connections are refused", from: c.pod, to: clusterIP(7).on(80), want: refused})
		t.Run("the endpoints go: open connections stay", func(t *testing.T) {
			for _, h := range open {
				if err := h.Check(); err != nil {
					t.Error(err)
				}
			}
		})
		c.endpoints(held, ready(c.there)...)
		c.apply()
		c.expect(t, probe{name: "endpoints come", from: c.pod, to: clusterIP(7).on(80), want: by(c.there)})
	})
}

// What no Service has: other ports of ClusterIPs are refused, unallocated addresses of the Service ranges are dropped;
// all else is left alone.
func TestRow18UnknownPortsAndAddresses(t *testing.T) {
	const ranges = "40.0.0.0/24,fd00:40::/112"
	prepare := func(c *cluster) {
		c.elsewhere(clusterIP(1), clusterIP(2), clusterIP(50), vip(1), vip(50))
		c.listen(c.External, 81)
		c.serve(service("web", clusterIP(1), loadBalancer(nil, vip(1))), c.here)
		c.serve(service("empty", clusterIP(2)))
		c.serve(service("udp", clusterIP(3), protocol(v1.ProtocolUDP)), c.here)
	}
	check := func(t *testing.T, c *cluster, unallocated outcome) {
		passes := by(c.External)
		c.expect(t,
			probe{name: "another port of a ClusterIP, from a pod", from: c.pod, to: clusterIP(1).on(81), want: refused, needs: unknownPorts, without: &passes},
			probe{name: "another port of a ClusterIP, from the node", from: c.Node, to: clusterIP(1).on(81), want: refused, needs: unknownPorts, without: &passes},
			probe{name: "another protocol of a ClusterIP", from: c.pod, proto: "udp", to: clusterIP(1).on(80), want: refused, needs: unknownPorts, without: &passes},
			probe{name: "another port of a Service without endpoints", from: c.pod, to: clusterIP(2).on(81), want: refused, needs: unknownPorts, without: &passes},
			probe{name: "the port itself", from: c.pod, to: clusterIP(1).on(80), want: by(c.here)},
			probe{name: "an address that no Service has, from a pod", from: c.pod, to: clusterIP(50).on(80), want: unallocated, needs: unknownPorts, without: &passes},
			probe{name: "an address that no Service has, from the node", from: c.Node, to: clusterIP(50).on(80), want: unallocated, needs: unknownPorts, without: &passes},
			probe{name: "an address that no Service has, over UDP", from: c.pod, proto: "udp", to: clusterIP(50).on(80), want: unallocated, needs: unknownPorts, without: &passes},
			probe{name: "another port of a load balancer's address is left alone", from: c.pod, to: vip(1).on(81), want: passes},
			probe{name: "an address outside the ranges is left alone", from: c.pod, to: vip(50).on(80), want: passes},
		)
	}
	t.Run("ranges given by flag", func(t *testing.T) {
		onEveryPlaneWith(t, setup{nkpFlags: []string{"--service-cidr", ranges}, before: prepare}, func(t *testing.T, c *cluster) {
			check(t, c, dropped)
		})
	})
	t.Run("ranges given by objects", func(t *testing.T) {
		onEveryPlaneWith(t, setup{before: prepare}, func(t *testing.T, c *cluster) {
			check(t, c, by(c.External)) // no range is known
			object := &networkingv1.ServiceCIDR{
				TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}, ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			}
			for _, p := range testbed.ServiceRanges[:2] {
				object.Spec.CIDRs = append(object.Spec.CIDRs, netip.PrefixFrom(p.Addr(), p.Bits()).String())
			}
			c.put(object)
			c.apply()
			t.Run("known", func(t *testing.T) { check(t, c, dropped) })
		})
	})
}
