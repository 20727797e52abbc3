//go:build linux

package packets

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A SYN to a Service range passes the connection tracker by (table 3). What has an address there and is no ClusterIP must be
// reached all the same.

func external(ips ...string) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, ips...) }
}

// sameAsTraced asks for a frontend and compares with what trace says, with and without a look at the switch.
func (c *cluster) sameAsTraced(t *testing.T, from *testbed.Host, proto, to, want string) {
	t.Helper()
	if proto == "sctp" && !onKernelDatapath() {
		c.flush() // its tracker knows no SCTP ports: one endpoint per client
	}
	r, status := c.trace(t, proto, from.IP(netip.MustParseAddrPort(to).Addr()).String(), to, "--live")
	if r.Verdict != want || r.Live == nil || !r.Live.Agrees || status != 0 {
		t.Errorf("%s -> %s/%s: trace says %s, want %s; status %d\n%s\ninstalled: %+v", from.Name, to, proto, r.Verdict, want, status, strings.Join(r.Steps, "\n"), r.Live)
	}
	c.happens(t, from, proto, to, r)
	if t.Failed() {
		t.Log(c.explain(proto, to))
	}
}

func TestFrontendsInsideAServiceRange(t *testing.T) {
	nightly.Only(t, "every kind of frontend with each client; the rows of test/semantics have some")
	c := newCluster(t, testbed.Options{}, "--host-traffic", "ovs")
	c.servePods(t)
	here, there := c.pods[1], c.remotes[0]
	type probe struct {
		name, proto, to, want string
		from                  []*testbed.Host
	}
	pod, stranger := c.pods[0].Host, c.External
	anyone := []*testbed.Host{pod, c.Node, stranger}
	var probes []probe
	n := 0
	add := func(name string, proto v1.Protocol, v6 bool, pods []*testbed.Pod, change func(s *v1.Service, ip string), ask func(p probe)) {
		n++
		ip, own := fmt.Sprintf("40.0.0.%d", 100+n), fmt.Sprintf("40.0.0.%d", n)
		if v6 {
			ip, own = fmt.Sprintf("fd00:40::%x", 256+n), fmt.Sprintf("fd00:40::%x", n)
		}
		s := service(fmt.Sprint("s", n), own, protocol(proto))
		if proto == v1.ProtocolSCTP {
			s.Spec.Ports[0].Port = 8080 // the userspace datapath does not translate SCTP ports
		}
		change(s, ip)
		var ips []netip.Addr
		for _, p := range pods {
			ips = append(ips, p.IP(netip.MustParseAddr(ip)))
		}
		c.put(s, slice(s, 8080, ats(ips...)...))
		ask(probe{name: fmt.Sprintf("%s/%s/%s", name, proto, s.Spec.IPFamilies[0]), proto: strings.ToLower(string(proto)),
			to: hostPort(netip.MustParseAddr(ip), uint16(s.Spec.Ports[0].Port)), want: "deliver", from: anyone})
	}
	plain := func(p probe) { probes = append(probes, p) }
	both := []*testbed.Pod{here, there}
	for _, v6 := range []bool{false, true} {
		for _, proto := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} {
			ends := both
			if proto == v1.ProtocolSCTP {
				ends = both[1:]
			}
			add("externalIP", proto, v6, ends, func(s *v1.Service, ip string) { external(ip)(s) }, plain)
			if proto != v1.ProtocolTCP {
				continue
			}
			add("loadBalancer", proto, v6, ends, func(s *v1.Service, ip string) { loadBalancer(ip)(s) }, plain)
			add("no endpoints", proto, v6, nil, func(s *v1.Service, ip string) { external(ip)(s) }, func(p probe) {
				p.want = "reject"
				plain(p)
			})
		}
		add("affinity", v1.ProtocolTCP, v6, both, func(s *v1.Service, ip string) { external(ip)(s); affinity(600)(s) }, func(p probe) {
			plain(p)
			p.name += " again"
			plain(p)
		})
		add("source ranges", v1.ProtocolTCP, v6, both, func(s *v1.Service, ip string) {
			loadBalancer(ip)(s)
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/16", "fd00:a::/64"}
		}, func(p probe) {
			p.from = p.from[:1]
			plain(p)
			p.from, p.want = []*testbed.Host{stranger}, "drop"
			plain(p)
		})
		local := func(s *v1.Service, ip string) { loadBalancer(ip, externalLocal)(s) }
		add("policy Local", v1.ProtocolTCP, v6, both, local, plain)
		add("policy Local, none here", v1.ProtocolTCP, v6, both[1:], local, func(p probe) {
			p.from = p.from[:2]
			plain(p)
			p.from, p.want = []*testbed.Host{stranger}, "drop"
			plain(p)
		})
		add("another port", v1.ProtocolTCP, v6, both, func(s *v1.Service, ip string) { external(ip)(s) }, func(p probe) {
			p.to, p.want = strings.TrimSuffix(p.to, ":80")+":81", "drop"
			plain(p)
		})
	}
	c.run()
	c.settle()
	for _, p := range probes {
		t.Run(p.name, func(t *testing.T) {
			for _, from := range p.from {
				c.sameAsTraced(t, from, p.proto, p.to, p.want)
			}
		})
	}
}

// The Service ranges change while nkp runs: a frontend that comes to lie inside, or outside, stays reachable, and so does what is
// connected.
func TestServiceRangeMoves(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--host-traffic", "ovs")
	c.servePods(t)
	four := service("four", "40.0.0.1", external("20.0.0.5"))
	six := service("six", "fd00:40::1", external("2001:db8:20::5"))
	pinned := service("pinned", "40.0.0.2", external("20.0.0.6"), affinity(600))
	end := c.pods[1]
	c.put(four, slice(four, 8080, at(end.IP4)), six, slice(six, 8080, at(end.IP6)), pinned, slice(pinned, 8080, at(end.IP4)))
	original := c.objects["ranges"].(*networkingv1.ServiceCIDR).Spec.CIDRs
	current := *c.objects["ranges"].(*networkingv1.ServiceCIDR)
	c.run()
	c.settle()
	client := c.pods[0]
	held, err := client.Hold(c.ctx, "20.0.0.5:80", testbed.DialOptions{})
	must(t, err)
	defer held.Close()
	for _, cidrs := range [][]string{original, append([]string{"20.0.0.0/24", "2001:db8:20::/112"}, original...), original, {"20.0.0.0/24", "2001:db8:20::/112"}} {
		next := current
		next.Spec.CIDRs = cidrs
		c.objects["ranges"] = &next
		c.write()
		c.settle()
		for _, to := range []string{"20.0.0.5:80", "[2001:db8:20::5]:80", "20.0.0.6:80", "40.0.0.1:80", "[fd00:40::1]:80", "40.0.0.2:80"} {
			t.Run(fmt.Sprintf("%s, ranges %v", to, cidrs), func(t *testing.T) {
				c.sameAsTraced(t, client.Host, "tcp", to, "deliver")
			})
		}
		if err := held.Check(); err != nil {
			t.Errorf("ranges %v: what was connected: %v", cidrs, err)
		}
	}
}

// An address of the node inside a Service range is odd, and the node's all the same: NodePorts are served there, and its own
// listeners are reached.
func TestNodeInsideAServiceRange(t *testing.T) {
	nightly.Only(t, "an odd cluster")
	c := newCluster(t, testbed.Options{}, "--host-traffic", "ovs", "--service-cidr", serviceCIDRs+",172.16.0.2/32,fd00:ac::2/128")
	c.servePods(t)
	_, err := c.Node.ServeTCP(8081)
	must(t, err)
	_, err = c.Node.ServeUDP(8081)
	must(t, err)
	end := c.remotes[0]
	n := 0
	var probes [][2]string
	for _, proto := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		for _, a := range []struct{ vip, node, end string }{{"40.0.0.%d", testbed.NodeIP4.String(), end.IP4.String()}, {"fd00:40::%x", testbed.NodeIP6.String(), end.IP6.String()}} {
			for _, change := range []func(*v1.Service){func(*v1.Service) {}, affinity(600)} {
				n++
				s := service(fmt.Sprint("s", n), fmt.Sprintf(a.vip, n), protocol(proto), exposed(int32(30080+n)), change)
				c.put(s, slice(s, 8080, at(netip.MustParseAddr(a.end))))
				probes = append(probes, [2]string{strings.ToLower(string(proto)), hostPort(netip.MustParseAddr(a.node), uint16(30080+n))})
			}
		}
	}
	c.run()
	c.settle()
	for _, from := range []*testbed.Host{c.pods[0].Host, c.External} {
		for _, p := range probes {
			t.Run(fmt.Sprintf("%s to %s/%s", from.Name, p[1], p[0]), func(t *testing.T) {
				c.sameAsTraced(t, from, p[0], p[1], "deliver")
			})
		}
		for _, proto := range []string{"tcp", "udp"} {
			for _, ip := range []netip.Addr{testbed.NodeIP4, testbed.NodeIP6} {
				t.Run(fmt.Sprintf("%s to the node itself, %s/%s", from.Name, ip, proto), func(t *testing.T) {
					c.sameAsTraced(t, from, proto, hostPort(ip, 8081), "untouched")
				})
			}
		}
	}
}
