//go:build linux

package packets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// ask opens one connection and fails the test if the answer does not come from the wanted pod.
func (c *cluster) ask(t *testing.T, from *testbed.Host, proto, to, want string) testbed.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
	defer cancel()
	a, err := from.Ask(ctx, proto, to)
	if err != nil {
		t.Errorf("%s -> %s %s: %v\n%s", from.Name, proto, to, err, c.explain(proto, to))
		return a
	}
	if a.Pod != want {
		t.Errorf("%s -> %s %s: answered by %s, want %s", from.Name, proto, to, a.Pod, want)
	}
	return a
}

// explain returns what a reader of a failure wants: nkp's flows for the address and the tracked connections.
func (c *cluster) explain(proto, to string) string {
	ap, err := netip.ParseAddrPort(to)
	if err != nil {
		return ""
	}
	flows, _ := c.Ofctl("dump-flows", c.Bridge)
	var b strings.Builder
	for line := range strings.Lines(flows) {
		if strings.Contains(line, "="+ap.Addr().String()+",") || strings.Contains(line, "table=30") || strings.Contains(line, "n_packets=") && !strings.Contains(line, "n_packets=0") {
			b.WriteString(line)
		}
	}
	ct, _ := c.Appctl("dpctl/dump-conntrack")
	return fmt.Sprintf("flows hit, and those for %s (%s):\n%stracked:\n%s", ap.Addr(), proto, tail(b.String(), 3000), tail(ct, 2000))
}

// servePods makes every pod serve on port 8080 for all three protocols.
func (c *cluster) servePods(t *testing.T) {
	t.Helper()
	for _, p := range append(append([]*testbed.Pod{}, c.pods...), c.remotes...) {
		for _, serve := range []func(int) (*testbed.Server, error){p.ServeTCP, p.ServeUDP, p.ServeSCTP} {
			_, err := serve(8080)
			must(t, err)
		}
	}
}

// The main job: a pod reaches a ClusterIP whose endpoint is behind the uplink, on the same bridge and subnet, or the
// client itself; over every protocol and family; delivered straight or through the gateway.
func TestClusterIP(t *testing.T) {
	for _, delivery := range []string{"on", "off"} {
		t.Run("local-delivery="+delivery, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, testbed.Options{}, "--local-delivery", delivery)
			c.servePods(t)
			client := c.pods[0]
			endpoints := []struct {
				where string
				pod   *testbed.Pod
			}{{"remote", c.remotes[0]}, {"same bridge", c.pods[1]}, {"the client itself", c.pods[0]}}
			type probe struct{ name, proto, to, want string }
			var probes []probe
			n := 0
			for _, e := range endpoints {
				for _, proto := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} {
					for _, v6 := range []bool{false, true} {
						n++
						vip, ip := fmt.Sprintf("40.0.0.%d", n), e.pod.IP4
						port := int32(8080)
						if v6 {
							vip, ip = fmt.Sprintf("fd00:40::%x", n), e.pod.IP6
						}
						s := service(fmt.Sprint("s", n), vip, protocol(proto))
						if proto == v1.ProtocolSCTP && !onKernelDatapath() {
							s.Spec.Ports[0].Port = port // the userspace datapath does not translate SCTP ports
						}
						c.put(s, slice(s, port, at(ip)))
						to := hostPort(netip.MustParseAddr(vip), uint16(s.Spec.Ports[0].Port))
						probes = append(probes, probe{fmt.Sprintf("%s/%s/%s", e.where, proto, s.Spec.IPFamilies[0]), strings.ToLower(string(proto)), to, e.pod.Name})
					}
				}
			}
			c.run()
			c.settle()
			for _, p := range probes {
				t.Run(p.name, func(t *testing.T) {
					if p.proto == "sctp" && !onKernelDatapath() {
						c.flush() // its tracker knows no SCTP ports: one endpoint per client
					}
					a := c.ask(t, client.Host, p.proto, p.to, p.want)
					if p.want != client.Name && !t.Failed() && a.Client.Addr() != client.IP(netip.MustParseAddrPort(p.to).Addr()) {
						t.Errorf("the endpoint saw %v, want the client's own address", a.Client)
					}
				})
			}
		})
	}
}

// Where policy sits in the gateway, Service packets between local pods pass it: what the router refuses stays refused.
// Straight delivery is past it.
func TestGatewayPolicyIsNotBypassed(t *testing.T) {
	t.Parallel()
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{})
	c.servePods(t)
	_, err := c.Exec(c.Router, "ip", "route", "add", "blackhole", c.pods[1].IP4.String()+"/32")
	must(t, err)
	c.put(s, slice(s, 8080, at(c.pods[1].IP4)))
	c.run()
	c.settle()
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.pods[1].Name)
	_, err = c.Vsctl("set", "Bridge", c.Bridge, "external_ids:nsx-managed=true")
	must(t, err)
	c.settle()
	must(t, c.Settle())
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	if a, err := c.pods[0].Ask(ctx, "tcp", "40.0.0.1:80"); err == nil {
		t.Errorf("answered by %s past the gateway", a.Pod)
	}
	if out, _, _ := c.nkp("status", "--socket", c.socket()); !strings.Contains(out, "through the gateway") {
		t.Errorf("status does not say that packets go through the gateway:\n%s", out)
	}
}

// The same port number may serve two protocols at different endpoints.
func TestOnePortTwoProtocols(t *testing.T) {
	t.Parallel()
	tcp, udp := service("tcp", "40.0.0.10"), service("udp", "40.0.0.10", protocol(v1.ProtocolUDP))
	c := start(t, tcp, udp)
	c.servePods(t)
	c.put(slice(tcp, 8080, at(c.pods[1].IP4)), slice(udp, 8080, at(c.remotes[1].IP4)))
	c.settle()
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.10:80", c.pods[1].Name)
	c.ask(t, c.pods[0].Host, "udp", "40.0.0.10:80", c.remotes[1].Name)
}

// A Service without endpoints refuses at once, on every protocol and family, and so does a port that a Service's
// address does not serve.
func TestReject(t *testing.T) {
	t.Parallel()
	c := start(t,
		service("tcp4", "40.0.0.1"), service("udp4", "40.0.0.2", protocol(v1.ProtocolUDP)),
		service("tcp6", "fd00:40::1"), service("udp6", "fd00:40::2", protocol(v1.ProtocolUDP)))
	for _, tc := range []struct{ proto, to string }{
		{"tcp", "40.0.0.1:80"}, {"udp", "40.0.0.2:80"}, {"tcp", "[fd00:40::1]:80"}, {"udp", "[fd00:40::2]:80"},
		{"tcp", "40.0.0.2:81"}, {"udp", "[fd00:40::1]:53"},
	} {
		began := time.Now()
		ctx, cancel := context.WithTimeout(c.ctx, 3*time.Second)
		_, err := c.pods[0].Ask(ctx, tc.proto, tc.to)
		cancel()
		if !errors.Is(err, testbed.ErrRefused) || time.Since(began) > 2*time.Second {
			t.Errorf("%s %s: %v after %v; want refused at once", tc.proto, tc.to, err, time.Since(began))
		}
	}
}

// Traffic that is none of a Service's passes as if nkp were not there.
func TestBystanders(t *testing.T) {
	t.Parallel()
	s := service("web", "40.0.0.1")
	c := start(t, s)
	c.servePods(t)
	c.put(slice(s, 8080, at(c.pods[1].IP4)))
	c.settle()
	a, b, r := c.pods[0], c.pods[1], c.remotes[0]
	for _, to := range []*testbed.Pod{b, r} {
		for _, ip := range []netip.Addr{to.IP4, to.IP6} {
			for _, proto := range []string{"tcp", "udp"} {
				c.ask(t, a.Host, proto, hostPort(ip, 8080), to.Name)
				c.ask(t, c.Node, proto, hostPort(ip, 8080), to.Name)
			}
			if _, err := a.Ping(c.ctx, ip); err != nil {
				t.Errorf("ping %s: %v", ip, err)
			}
		}
	}
	c.ask(t, c.External, "tcp", hostPort(b.IP4, 8080), b.Name)
}

// A client port that was used through a Service and is then used directly to the same endpoint, or the other way
// round, works both times.
func TestPortReuse(t *testing.T) {
	t.Parallel()
	s4, s6 := service("web4", "40.0.0.1"), service("web6", "fd00:40::1")
	c := newCluster(t, testbed.Options{}, "--port-reuse-guards") // by name: the switch under test may have a fault with them
	c.put(s4, s6)
	c.run()
	c.settle()
	c.servePods(t)
	for _, endpoint := range []*testbed.Pod{c.pods[1], c.remotes[0]} {
		c.put(slice(s4, 8080, at(endpoint.IP4)), slice(s6, 8080, at(endpoint.IP6)))
		c.settle()
		for i, tc := range []struct{ first, second string }{
			{"40.0.0.1:80", hostPort(endpoint.IP4, 8080)},
			{hostPort(endpoint.IP4, 8080), "40.0.0.1:80"},
			{"[fd00:40::1]:80", hostPort(endpoint.IP6, 8080)},
			{hostPort(endpoint.IP6, 8080), "[fd00:40::1]:80"},
		} {
			port := 20000 + i
			for _, to := range []string{tc.first, tc.second} {
				ctx, cancel := context.WithTimeout(c.ctx, 3*time.Second)
				a, err := c.pods[0].AskWith(ctx, "tcp", to, testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: port}})
				cancel()
				if err != nil || a.Pod != endpoint.Name {
					t.Errorf("%s then %s, from port %d: %s: answered by %q, %v", tc.first, tc.second, port, to, a.Pod, err)
				}
			}
		}
	}
}

// Guards that an earlier run of nkp had leave conntrack entries behind, by which some releases of Open vSwitch crash. A run
// without guards deletes them, and the connections go on.
func TestOldGuardsAreForgotten(t *testing.T) {
	t.Parallel()
	web := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{}, "--port-reuse-guards")
	endpoint := c.pods[1]
	c.put(web, slice(web, 8080, at(endpoint.IP4)))
	c.run()
	c.settle()
	_, err := endpoint.ServeTCP(8080)
	must(t, err)
	direct, err := c.pods[0].Hold(c.ctx, hostPort(endpoint.IP4, 8080), testbed.DialOptions{})
	must(t, err)
	guarded := func() int {
		out, err := c.Appctl("dpctl/dump-conntrack", "zone=1001")
		must(t, err)
		return strings.Count(out, "dport=8080") - strings.Count(out, "mark=")
	}
	if guarded() == 0 {
		t.Fatal("the direct connection is not tracked")
	}
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.flags = []string{"--port-reuse-guards=false"}
	c.run()
	c.settle()
	crashes := !(&ovsdb.Switch{DatapathType: testbed.DefaultDatapath(), OVSVersion: c.Version()}).Has(ovsdb.NullNAT)
	deadline := time.Now().Add(settleLimit)
	for crashes && guarded() > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d entries of the guards are left", guarded())
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := direct.Check(); err != nil {
		t.Errorf("the direct connection broke: %v", err)
	}
}

// NodePorts, external and load balancer addresses from outside: masqueraded under policy Cluster; under policy Local
// the client's address is kept, and only this node's endpoints answer.
func TestFromOutside(t *testing.T) {
	t.Parallel()
	expose := func(policy v1.ServiceExternalTrafficPolicy, nodePort int32, lb, external string, ranges ...string) func(*v1.Service) {
		return func(s *v1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = v1.ServiceTypeLoadBalancer, policy
			s.Spec.Ports[0].NodePort = nodePort
			s.Spec.ExternalIPs = []string{external}
			s.Spec.LoadBalancerSourceRanges = ranges
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: lb}}
		}
	}
	cluster := service("cluster", "40.0.0.1", expose(v1.ServiceExternalTrafficPolicyCluster, 30080, "20.0.0.1", "20.0.0.101"))
	local := service("local", "40.0.0.2", expose(v1.ServiceExternalTrafficPolicyLocal, 30081, "20.0.0.2", "20.0.0.102"))
	elsewhere := service("elsewhere", "40.0.0.3", expose(v1.ServiceExternalTrafficPolicyLocal, 30082, "20.0.0.3", "20.0.0.103"))
	ranged := service("ranged", "40.0.0.4", expose(v1.ServiceExternalTrafficPolicyCluster, 30083, "20.0.0.4", "20.0.0.104", "192.168.1.0/24"))
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	c.put(cluster, local, elsewhere, ranged)
	c.run()
	c.settle()
	c.servePods(t)
	here, there := c.pods[1], c.remotes[0]
	c.put(slice(cluster, 8080, at(there.IP4)), slice(local, 8080, at(here.IP4)), slice(elsewhere, 8080, at(there.IP4)), slice(ranged, 8080, at(here.IP4)))
	c.settle()
	client := c.External
	for _, to := range []string{hostPort(testbed.NodeIP4, 30080), "20.0.0.1:80", "20.0.0.101:80"} {
		a := c.ask(t, client, "tcp", to, there.Name)
		if a.Client.Addr() != testbed.NodeIP4 {
			t.Errorf("%s: the endpoint saw %v, want the node's address", to, a.Client)
		}
	}
	for _, to := range []string{hostPort(testbed.NodeIP4, 30081), "20.0.0.2:80", "20.0.0.102:80"} {
		a := c.ask(t, client, "tcp", to, here.Name)
		if a.Client.Addr() != client.IP4 {
			t.Errorf("%s: the endpoint saw %v, want the client's own address", to, a.Client)
		}
	}
	// Policy Local, endpoints elsewhere only: silence, so that a load balancer notices; a pod is served all the same.
	silent := func(to string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(c.ctx, time.Second)
		defer cancel()
		if _, err := client.Ask(ctx, "tcp", to); !errors.Is(err, testbed.ErrTimeout) {
			t.Errorf("%s: %v; want no answer", to, err)
		}
	}
	silent(hostPort(testbed.NodeIP4, 30082))
	silent("20.0.0.3:80")
	a := c.ask(t, c.pods[0].Host, "tcp", hostPort(testbed.NodeIP4, 30082), there.Name)
	if a.Client.Addr() != c.pods[0].IP4 {
		t.Errorf("a pod's short circuit was masqueraded: the endpoint saw %v", a.Client)
	}
	// Source ranges bind the load balancer's address only.
	silent("20.0.0.4:80")
	c.ask(t, client, "tcp", hostPort(testbed.NodeIP4, 30083), here.Name)
	c.ask(t, client, "tcp", "20.0.0.104:80", here.Name)
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.4:80", here.Name)
}

// Where the node lives on the bridge, nkp learns the gateway from the kernel, also if it comes to be known later.
func TestGatewayIsFound(t *testing.T) {
	t.Parallel()
	s := service("web", "40.0.0.1", func(s *v1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, 30080
	})
	c := start(t, s)
	c.servePods(t)
	c.put(slice(s, 8080, at(c.remotes[0].IP4)))
	c.settle()
	var err error
	for deadline := time.Now().Add(settleLimit); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(c.ctx, time.Second)
		var a testbed.Answer
		a, err = c.External.Ask(ctx, "tcp", hostPort(testbed.NodeIP4, 30080)) // its answer makes the node look for the router
		cancel()
		if err == nil && a.Pod == c.remotes[0].Name {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("no way back through the gateway: %v", err)
}

// The same over IPv6.
func TestFromOutsideIPv6(t *testing.T) {
	t.Parallel()
	expose := func(policy v1.ServiceExternalTrafficPolicy, nodePort int32) func(*v1.Service) {
		return func(s *v1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = v1.ServiceTypeNodePort, policy
			s.Spec.Ports[0].NodePort = nodePort
		}
	}
	cluster := service("cluster", "fd00:40::1", expose(v1.ServiceExternalTrafficPolicyCluster, 30080))
	local := service("local", "fd00:40::2", expose(v1.ServiceExternalTrafficPolicyLocal, 30081))
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	c.put(cluster, local)
	c.run()
	c.settle()
	c.servePods(t)
	here, there := c.pods[1], c.remotes[0]
	c.put(slice(cluster, 8080, at(there.IP6)), slice(local, 8080, at(here.IP6)))
	c.settle()
	if a := c.ask(t, c.External, "tcp", hostPort(testbed.NodeIP6, 30080), there.Name); a.Client.Addr() != testbed.NodeIP6 {
		t.Errorf("policy Cluster: the endpoint saw %v, want the node's address", a.Client)
	}
	if a := c.ask(t, c.External, "tcp", hostPort(testbed.NodeIP6, 30081), here.Name); a.Client.Addr() != c.External.IP6 {
		t.Errorf("policy Local: the endpoint saw %v, want the client's own address", a.Client)
	}
}

// An endpoint may be the node itself (a pod on the host's network, the API server) or another node.
func TestEndpointsOnNodes(t *testing.T) {
	t.Parallel()
	s := service("kubernetes", "40.0.0.1")
	c := start(t, s)
	for _, n := range []*testbed.Host{c.Node, c.Remote} {
		_, err := n.ServeTCP(6443)
		must(t, err)
		c.put(slice(s, 6443, at(n.IP4)))
		c.settle()
		for _, p := range c.pods {
			if a := c.ask(t, p.Host, "tcp", "40.0.0.1:80", n.Name); a.Client.Addr() != p.IP4 {
				t.Errorf("%s saw %v, want the pod's own address %v", n.Name, a.Client, p.IP4)
			}
		}
	}
}

// internalTrafficPolicy Local: this node's endpoints or nothing.
func TestInternalLocal(t *testing.T) {
	t.Parallel()
	local := v1.ServiceInternalTrafficPolicyLocal
	s := service("web", "40.0.0.1", func(s *v1.Service) { s.Spec.InternalTrafficPolicy = &local })
	c := start(t, s)
	c.servePods(t)
	c.put(slice(s, 8080, ats(c.pods[1].IP4, c.remotes[0].IP4, c.remotes[1].IP4)...))
	c.settle()
	for range 20 {
		c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.pods[1].Name)
	}
}
