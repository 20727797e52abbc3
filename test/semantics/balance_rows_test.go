//go:build linux

package semantics

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// answers returns who answers n connections, one after the other.
func (c *cluster) answers(t *testing.T, from *testbed.Host, n int, to target) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, a := range to.addresses() {
		if _, err := from.Ask(c.ctx, "tcp", a.String()); err != nil {
			t.Fatal(err) // rather than wait for each of many
		}
		who, errs := from.Many(c.ctx, n, 1, a.String())
		if len(errs) > 0 {
			t.Fatalf("%s -> %s: %v", from.Name, a, errs[0])
		}
		for w, k := range who {
			all[w] += k
		}
	}
	return all
}

// sole returns the one host that answers, and fails the test if there are several.
func (c *cluster) sole(t *testing.T, from *testbed.Host, to target) string {
	t.Helper()
	who := c.answers(t, from, 6, to)
	if len(who) != 1 {
		t.Errorf("%s -> %v port %d: answered by %v, want the same each time", from.Name, to.dual, to.port, who)
	}
	for w := range who {
		return w
	}
	return ""
}

// sessionAffinity ClientIP: a client keeps its endpoint, at all addresses of the port, for timeoutSeconds after its last
// new connection.
func TestRow19SessionAffinity(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		const timeout = 2 // seconds, of pins that end
		all := []*testbed.Host{c.here, c.here2, c.there, c.there2}
		web := c.serve(service("web", clusterIP(1), everywhere(1), affinity(3600)), all...)
		const short = 10 // Services with a short timeout: 10, 11, …
		var shorts []*v1.Service
		for n := short; n < short+8; n++ {
			shorts = append(shorts, c.serve(service(nth("short", n), clusterIP(n), affinity(timeout)), c.here, c.there))
		}
		ported := service("ports", clusterIP(2), affinity(3600), ports(
			v1.ServicePort{Name: "one", Port: 81, Protocol: v1.ProtocolTCP}, v1.ServicePort{Name: "two", Port: 82, Protocol: v1.ProtocolTCP}))
		c.put(ported)
		for i, h := range []*testbed.Host{c.here, c.there} {
			for _, f := range ported.Spec.IPFamilies {
				sl := c.slice(ported, f, 8080, ready(h))
				sl.Name += ported.Spec.Ports[i].Name
				sl.Ports = sl.Ports[i : i+1]
				c.put(sl)
			}
		}
		c.serve(service("udp", clusterIP(3), protocol(v1.ProtocolUDP), affinity(3600)), all...)
		for n := 30; n < 36; n++ {
			c.serve(service(nth("local", n), clusterIP(n), everywhere(n), affinity(3600), externalLocal), c.here, c.there)
		}
		c.apply()
		cluster, node, external, lb := c.frontends(1)
		for _, family := range []func(target) target{v4, v6} {
			t.Run("a client keeps its endpoint at all addresses/"+familyOf(family(cluster).addresses()[0].Addr()), func(t *testing.T) {
				for _, from := range []*testbed.Host{c.pod, c.External, c.Remote} {
					pinned := c.sole(t, from, family(cluster))
					for _, to := range []target{node, external, lb} {
						if who := c.sole(t, from, family(to)); who != pinned {
							t.Errorf("%s is answered by %s at the ClusterIP and by %s at port %d of %v", from.Name, pinned, who, to.port, to.dual)
						}
					}
				}
			})
		}
		clients := c.addClients(20)
		t.Run("each client has its own", func(t *testing.T) {
			seen := map[string]int{}
			for _, d := range clients {
				p := probe{from: c.pod, proto: "tcp", local: d}
				for _, to := range cluster.addresses() {
					pinned := ""
					for range 3 {
						a, err := p.ask(c, to)
						must(t, err)
						if pinned != "" && a.Pod != pinned {
							t.Errorf("client %v is answered by %s and %s", d, pinned, a.Pod)
						}
						pinned = a.Pod
					}
					seen[pinned]++
				}
			}
			if len(seen) < 3 { // by chance, of 40 choices: 6 pairs of endpoints, each with probability 2^-40
				t.Errorf("20 clients of each family use only %v of 4 endpoints", seen)
			}
		})
		t.Run("ports of one Service do not share it", func(t *testing.T) {
			c.expect(t,
				probe{name: "one", from: c.pod, to: clusterIP(2).on(81), want: by(c.here)},
				probe{name: "the other", from: c.pod, to: clusterIP(2).on(82), want: by(c.there)})
		})
		t.Run("UDP", func(t *testing.T) {
			for _, to := range clusterIP(3).on(80).addresses() {
				who := map[string]bool{}
				p := probe{from: c.pod, proto: "udp"}
				for range 8 {
					a, err := p.ask(c, to)
					must(t, err)
					who[a.Pod] = true
				}
				if len(who) != 1 {
					t.Errorf("%s: answered by %s", to, keys(who))
				}
			}
		})
		t.Run("only endpoints of the policy in force", func(t *testing.T) {
			for n := 30; n < 36; n++ {
				cluster, node, _, _ := c.frontends(n)
				c.answers(t, c.Remote, 1, cluster) // pins it to either
				if who := c.answers(t, c.Remote, 3, node); len(who) != 1 || who[c.here.Name] == 0 {
					t.Errorf("policy Local is answered by %v", who)
				}
			}
		})

		// The pins are made while there are two endpoints, by another client for each Service: a client may get the same
		// endpoint of Services that have the same. As long as they hold, further endpoints change nothing.
		pins := c.pin(t, shorts, clients)
		for _, s := range shorts {
			c.endpoints(s, ready(all...)...)
		}
		c.apply()
		t.Run("it ends", func(t *testing.T) {
			// A switch ends idle flows when it next looks. To ask renews a pin, so each try waits for the whole timeout again.
			for late := 1500 * time.Millisecond; ; late *= 2 {
				time.Sleep(timeout*time.Second + late)
				if _, ended := c.moved(t, pins, 0); ended > 0 {
					return
				}
				if late > wait.Limit {
					t.Fatalf("%v after the last connections %d pins of 2 endpoints out of 4 all are where they were", timeout*time.Second+late, len(pins))
				}
			}
		})
		t.Run("it goes with the endpoint", func(t *testing.T) {
			pinned := c.sole(t, c.pod, v4(cluster))
			var left []*testbed.Host
			for _, h := range all {
				if h.Name != pinned {
					left = append(left, h)
				}
			}
			c.endpoints(web, ready(left...)...)
			c.apply()
			if who := c.answers(t, c.pod, 4, v4(cluster)); len(who) != 1 || who[pinned] > 0 {
				t.Errorf("after %s went, %v answer", pinned, who)
			}
		})
	})
}

// pin is a client of a Service with session affinity and its endpoint.
type pin struct {
	client probe
	to     netip.AddrPort
	who    string
	asked  time.Time // begin of the last connection
}

// ask connects a few times and returns who answered, the same each time.
func (p *pin) ask(t *testing.T, c *cluster) string {
	t.Helper()
	who := ""
	for range 3 {
		a, err := p.client.ask(c, p.to)
		must(t, err)
		if who != "" && a.Pod != who {
			t.Errorf("%v -> %s: answered by %s and %s", p.client.local, p.to, who, a.Pod)
		}
		who = a.Pod
	}
	return who
}

// pin has one client connect to each Service, over each family.
func (c *cluster) pin(t *testing.T, services []*v1.Service, clients []dual) (pins []*pin) {
	t.Helper()
	for i, s := range services {
		for _, ip := range s.Spec.ClusterIPs {
			p := &pin{client: probe{from: c.pod, proto: "tcp", local: clients[i]}, to: netip.AddrPortFrom(netip.MustParseAddr(ip), 80), asked: time.Now()}
			p.who = p.ask(t, c)
			pins = append(pins, p)
		}
	}
	return pins
}

// moved connects to all once more and returns how many are answered by another endpoint than at first: all, and those whose connection
// before began no longer than within ago. The others have been moved by a machine that stood still.
func (c *cluster) moved(t *testing.T, pins []*pin, within time.Duration) (early, all int) {
	t.Helper()
	for _, p := range pins {
		now := time.Now()
		if p.ask(t, c) != p.who {
			all++
			if time.Since(p.asked) < within {
				early++
			}
		}
		p.asked = now
	}
	return early, all
}

// Each new connection renews a pin.
func TestRow19Renewal(t *testing.T) {
	nightly.Only(t, "it takes two minutes; pins that end are in TestRow19SessionAffinity, the switch's learned flow is in pipeline")
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		const timeout = 60 // seconds; a machine that stands still for the rest of it moves connections that do not count
		clients := c.addClients(8)
		var services []*v1.Service
		for i := range clients {
			services = append(services, c.serve(service(nth("web", i), clusterIP(10+i), affinity(timeout)), c.here))
		}
		c.apply()
		pins := c.pin(t, services, clients)
		for _, s := range services {
			c.endpoints(s, ready(c.here, c.here2, c.there, c.there2)...)
		}
		c.apply()
		for range 3 {
			time.Sleep(timeout * time.Second * 6 / 10)
			if early, _ := c.moved(t, pins, timeout*time.Second); early > 0 {
				t.Errorf("%d of %d connections were moved", early, len(pins))
			}
		}
	})
}

// addClients gives the client pod n more addresses of each family: each is a client of its own.
func (c *cluster) addClients(n int) (clients []dual) {
	c.t.Helper()
	for i := range n {
		d := numbered("10.0.0.", "fd00:a::", 100+i)
		for _, a := range d.on(0).addresses() {
			p := netip.PrefixFrom(a.Addr(), a.Addr().BitLen())
			must(c.t, c.pod.AddAddr("eth0", p))
			if c.plane.bed.Plane == testbed.Linux { // where the node routes
				must(c.t, c.Node.AddRoute(p, netip.Addr{}, c.devices[c.pod]))
			}
		}
		clients = append(clients, d)
	}
	return clients
}

// New connections are spread evenly at random; open ones stay where they are, even when their endpoint leaves the Service.
func TestRow20LoadBalance(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		web := c.serve(service("web", clusterIP(1), everywhere(1)), c.here, c.here2, c.there, c.there2)
		c.apply()
		cluster, node, _, _ := c.frontends(1)
		for what, call := range map[string]struct {
			from *testbed.Host
			to   target
		}{"ClusterIP": {c.pod, v4(cluster)}, "ClusterIP over IPv6": {c.pod, v6(cluster)}, "NodePort": {c.External, v4(node)}} {
			t.Run("evenly/"+what, func(t *testing.T) {
				n := nightly.Count(200, 2000)
				who := c.answers(t, call.from, n, call.to)
				lo, hi := chance.Bounds(n, 1.0/4)
				for _, h := range []*testbed.Host{c.here, c.here2, c.there, c.there2} {
					if k := who[h.Name]; k < lo || k > hi {
						t.Errorf("%s got %d of %d connections among 4 endpoints, want %d to %d", h.Name, k, n, lo, hi)
					}
				}
			})
		}
		type connection struct {
			what string
			*testbed.Held
		}
		var open []connection
		hold := func(from *testbed.Host, to target) {
			for _, a := range to.addresses() {
				for range 4 {
					h, err := from.Hold(c.ctx, a.String(), testbed.DialOptions{})
					must(t, err)
					open = append(open, connection{fmt.Sprintf("%s -> %s, held by %s", from.Name, a, h.Who), h})
				}
			}
		}
		hold(c.pod, cluster)
		hold(c.Node, cluster)
		hold(c.External, cluster)
		hold(c.External, node)
		stay := func(when string) {
			t.Run("open connections stay/"+when, func(t *testing.T) {
				for _, o := range open {
					if err := o.Check(); err != nil {
						t.Errorf("%s: %v", o.what, err)
					}
				}
			})
		}
		c.endpoints(web, ready(c.here, c.here2, c.there, c.there2, c.pod)...)
		c.apply()
		stay("when an endpoint comes")
		c.endpoints(web, ready(c.here2)...)
		c.apply()
		stay("when their endpoint leaves")
		c.expect(t, probe{name: "new ones go where endpoints are", from: c.External, to: node, want: by(c.here2)})
		c.endpoints(web, ep{host: c.here2, terminating: true}, ep{host: c.there})
		c.apply()
		stay("when their endpoint terminates")
		c.expect(t, probe{name: "new ones avoid what terminates", from: c.pod, to: cluster, want: by(c.there)})
		c.remove(web)
		c.apply()
		stay("when the Service is deleted")
	})
}
