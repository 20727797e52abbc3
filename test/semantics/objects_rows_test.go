//go:build linux

package semantics

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const proxyLabel = "service.kubernetes.io/service-proxy-name"

// Which Services count: all but those of another proxy and those without a ClusterIP.
func TestRow01ServiceSelection(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		c.elsewhere(clusterIP(2), clusterIP(3), clusterIP(5), vip(106), vip(107))
		ours := c.serve(service("ours", clusterIP(1)), c.here)
		c.serve(service("others", clusterIP(2), label(proxyLabel, "somebody")), c.here)
		c.serve(service("empty-label", clusterIP(3), label(proxyLabel, "")), c.here)
		c.serve(service("other-label", clusterIP(4), label("service.kubernetes.io/service-proxy", "somebody")), c.here)
		later := c.serve(service("later", clusterIP(5)), c.here)
		headless := c.serve(service("headless", clusterIP(6), externalIPs(vip(106))), c.here)
		headless.Spec.ClusterIP, headless.Spec.ClusterIPs = v1.ClusterIPNone, []string{v1.ClusterIPNone}
		name := c.serve(service("name", clusterIP(7), externalIPs(vip(107))), c.here)
		name.Spec = v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "example.org", ExternalIPs: name.Spec.ExternalIPs,
			Ports: name.Spec.Ports}
		c.objects["endpoints of default/name"] = nil // what has no family has no slices
		c.apply()
		c.expect(t,
			probe{name: "a Service is served", from: c.pod, to: clusterIP(1).on(80), want: by(c.here)},
			probe{name: "one with service-proxy-name is not", from: c.pod, to: clusterIP(2).on(80), want: by(c.External)},
			probe{name: "not even with an empty one", from: c.pod, to: clusterIP(3).on(80), want: by(c.External)},
			probe{name: "another label is nothing", from: c.pod, to: clusterIP(4).on(80), want: by(c.here)},
			probe{name: "a headless Service is not, whatever its externalIPs", from: c.pod, to: vip(106).on(80), want: by(c.External)},
			probe{name: "type ExternalName is not, whatever its externalIPs", from: c.pod, to: vip(107).on(80), want: by(c.External)},
			probe{name: "before the label came", from: c.pod, to: clusterIP(5).on(80), want: by(c.here)},
		)
		later.Labels[proxyLabel] = "somebody"
		c.apply()
		c.expect(t,
			probe{name: "a label that comes later takes the Service away", from: c.pod, to: clusterIP(5).on(80), want: by(c.External)},
			probe{name: "and no other", from: c.pod, to: clusterIP(1).on(80), want: by(c.here)},
		)
		delete(later.Labels, proxyLabel)
		c.remove(ours)
		c.elsewhere(clusterIP(1))
		c.apply()
		c.expect(t,
			probe{name: "the label goes and the Service is back", from: c.pod, to: clusterIP(5).on(80), want: by(c.here)},
			probe{name: "a Service that is deleted is gone", from: c.pod, to: clusterIP(1).on(80), want: by(c.External)},
		)
	})
}

// Which EndpointSlices belong to a Service: by label and namespace, not those of headless Services, only the family's.
func TestRow02EndpointSliceSelection(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		web := c.serve(service("web", clusterIP(1)), c.here)
		stray := func(name string, change func(*discoveryv1.EndpointSlice)) {
			for _, f := range web.Spec.IPFamilies {
				sl := c.slice(web, f, 8080, ready(c.there))
				sl.Name += "-" + name
				change(sl)
				c.put(sl)
			}
		}
		stray("headless", func(s *discoveryv1.EndpointSlice) { s.Labels[v1.IsHeadlessService] = "" })
		stray("unlabelled", func(s *discoveryv1.EndpointSlice) { s.Labels = nil })
		stray("namespace", func(s *discoveryv1.EndpointSlice) { s.Namespace = "other" })
		stray("another", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "webb" })
		stray("fqdn", func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses = discoveryv1.AddressTypeFQDN, []string{"there.example.org"}
		})
		// Slices of one family only: the other family has no endpoints.
		four := c.serve(service("four", clusterIP(2)))
		c.put(c.slice(four, v1.IPv4Protocol, 8080, ready(c.there)))
		six := c.serve(service("six", clusterIP(3)))
		c.put(c.slice(six, v1.IPv6Protocol, 8080, ready(c.there)))
		// Several slices make one list.
		many := c.serve(service("many", clusterIP(4)), c.here)
		for _, f := range many.Spec.IPFamilies {
			sl := c.slice(many, f, 8080, ready(c.there))
			sl.Name += "-second"
			c.put(sl)
		}
		c.apply()
		c.expect(t,
			probe{name: "slices of headless Services, without label, elsewhere, of another Service or of names do not count",
				from: c.pod, to: clusterIP(1).on(80), want: by(c.here)},
			probe{name: "the slice's own family is served", from: c.pod, to: v4(clusterIP(2).on(80)), want: by(c.there)},
			probe{name: "the slice's own family is served", from: c.pod, to: v6(clusterIP(3).on(80)), want: by(c.there)},
			probe{name: "the other family is not", from: c.pod, to: v6(clusterIP(2).on(80)), want: refused},
			probe{name: "the other family is not", from: c.pod, to: v4(clusterIP(3).on(80)), want: refused},
			probe{name: "several slices make one list", from: c.pod, to: clusterIP(4).on(80), want: by(c.here, c.there)},
		)
	})
}

// Which port of an endpoint serves a Service port: the one with its name and protocol.
func TestRow03PortMatching(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		extra, err := c.AddPods(testbed.PodSpec{}, testbed.PodSpec{})
		must(t, err)
		on81, on82 := extra[0].Host, extra[1].Host
		c.listen(on81, 8081)
		c.listen(on82, 8082)

		two := service("two", clusterIP(1), ports(
			v1.ServicePort{Name: "http", Port: 80, Protocol: v1.ProtocolTCP},
			v1.ServicePort{Name: "metrics", Port: 9090, Protocol: v1.ProtocolTCP},
			v1.ServicePort{Name: "nobodys", Port: 9091, Protocol: v1.ProtocolTCP},
		))
		two.Spec.Ports[0].TargetPort.IntVal = 7 // never read
		c.put(two)
		http, metrics, udp, tcp := "http", "metrics", v1.ProtocolUDP, v1.ProtocolTCP
		custom := func(s *v1.Service, name string, host *testbed.Host, list ...discoveryv1.EndpointPort) {
			for _, f := range s.Spec.IPFamilies {
				sl := c.slice(s, f, 1, ready(host))
				sl.Name += "-" + name
				sl.Ports = list
				c.put(sl)
			}
		}
		number := func(n int32) *int32 { return &n }
		custom(two, "first", on81,
			discoveryv1.EndpointPort{Name: &http, Port: number(8081), Protocol: &tcp},
			discoveryv1.EndpointPort{Name: &metrics, Port: number(8082), Protocol: &udp}, // not the Service's protocol
		)
		custom(two, "second", on82,
			discoveryv1.EndpointPort{Name: &http, Port: number(8082), Protocol: &tcp},
			discoveryv1.EndpointPort{Name: &metrics, Port: number(8082), Protocol: &tcp},
		)
		odd := service("odd", clusterIP(2))
		c.put(odd)
		custom(odd, "no-port", c.there, discoveryv1.EndpointPort{Name: &http, Protocol: &tcp})
		unnamed := service("unnamed", clusterIP(3), ports(v1.ServicePort{Port: 80, Protocol: v1.ProtocolTCP}))
		c.serve(unnamed, c.here)
		udpOnly := service("udp-only", clusterIP(4))
		c.put(udpOnly)
		custom(udpOnly, "udp", c.there, discoveryv1.EndpointPort{Name: &http, Port: number(8080), Protocol: &udp})
		c.apply()
		c.expect(t,
			probe{name: "the same name leads to another number in each slice", from: c.pod, to: clusterIP(1).on(80), want: by(on81, on82)},
			probe{name: "name and protocol both must match", from: c.pod, to: clusterIP(1).on(9090), want: by(on82)},
			probe{name: "a port that no slice names has no endpoint", from: c.pod, to: clusterIP(1).on(9091), want: refused},
			probe{name: "an endpoint port without number is none", from: c.pod, to: clusterIP(2).on(80), want: refused},
			probe{name: "ports without name match", from: c.pod, to: clusterIP(3).on(80), want: by(c.here)},
			probe{name: "another protocol's port is none", from: c.pod, to: clusterIP(4).on(80), want: refused},
		)
	})
}

// What an endpoint is: its first address; ready unless it says otherwise; local by its node's name.
func TestRow04Endpoint(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		edit := func(s *v1.Service, hosts []*testbed.Host, change func(i int, e *discoveryv1.Endpoint)) {
			c.put(s)
			for _, f := range s.Spec.IPFamilies {
				sl := c.slice(s, f, 8080, ready(hosts...))
				for i := range sl.Endpoints {
					change(i, &sl.Endpoints[i])
				}
				c.put(sl)
			}
		}
		edit(service("addresses", clusterIP(1)), []*testbed.Host{c.here}, func(_ int, e *discoveryv1.Endpoint) {
			other := c.there.IP4.String()
			if c.here.IP6.String() == e.Addresses[0] {
				other = c.there.IP6.String()
			}
			e.Addresses = append(e.Addresses, other)
		})
		edit(service("unconditional", clusterIP(2)), []*testbed.Host{c.here}, func(_ int, e *discoveryv1.Endpoint) {
			e.Conditions = discoveryv1.EndpointConditions{}
		})
		yes, no := true, false
		edit(service("twice", clusterIP(3)), []*testbed.Host{c.here, c.here}, func(i int, e *discoveryv1.Endpoint) {
			if i == 0 {
				e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes}
			}
		})
		// Local is what the node's name says, not the address: of these two only the remote pod's names this node.
		name, other := nodeName, otherNode
		edit(service("named", clusterIP(4), internalLocal), []*testbed.Host{c.here, c.there}, func(i int, e *discoveryv1.Endpoint) {
			e.NodeName = &other
			if i == 1 {
				e.NodeName = &name
			}
		})
		edit(service("nameless", clusterIP(5), internalLocal), []*testbed.Host{c.here, c.here2}, func(i int, e *discoveryv1.Endpoint) {
			if i == 0 {
				e.NodeName = nil
			}
		})
		c.apply()
		c.expect(t,
			probe{name: "only the first address counts", from: c.pod, to: clusterIP(1).on(80), want: by(c.here)},
			probe{name: "without conditions it is ready", from: c.pod, to: clusterIP(2).on(80), want: by(c.here)},
			probe{name: "given twice, the one that does not terminate wins", from: c.pod, to: clusterIP(3).on(80), want: by(c.here)},
			probe{name: "the node's name makes it local", from: c.pod, to: clusterIP(4).on(80), want: by(c.there)},
			probe{name: "without a node's name it is not local", from: c.pod, to: clusterIP(5).on(80), want: by(c.here2)},
		)
	})
}
