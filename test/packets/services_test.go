//go:build linux

package packets

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// ask opens one connection and fails the test if the answer does not come from the wanted pod.
func (c *cluster) ask(t *testing.T, from *testbed.Host, proto, to, want string) testbed.Answer {
	t.Helper()
	a, err := from.Ask(c.ctx, proto, to)
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

// A pod reaches a ClusterIP whose endpoint is behind the uplink, on the same bridge and subnet, or the client itself; over every
// protocol and family; delivered through the gateway. Straight delivery is in the rows of test/semantics.
func TestClusterIP(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--local-delivery", "off")
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
}

// Where policy sits in the gateway, Service packets between local pods pass it: what the router refuses stays refused.
// Straight delivery is past it.
func TestGatewayPolicyIsNotBypassed(t *testing.T) {
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
	c.unanswered(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.direct(t, c.pods[0].Host))
	if out, _, _ := c.nkp("status", "--socket", c.socket()); !strings.Contains(out, "through the gateway") {
		t.Errorf("status does not say that packets go through the gateway:\n%s", out)
	}
}

// Traffic that is none of a Service's passes as if nkp were not there.
func TestBystanders(t *testing.T) {
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
				ctx, cancel := context.WithTimeout(c.ctx, 25*time.Second) // the first connection's entry is gone after 30 s
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
	if crashes {
		wait.For(t, "the guards' entries are deleted", func() bool { return guarded() == 0 })
	}
	if err := direct.Check(); err != nil {
		t.Errorf("the direct connection broke: %v", err)
	}
}

// Where the node lives on the bridge, nkp learns the gateway from the kernel, also if it comes to be known later.
func TestGatewayIsFound(t *testing.T) {
	s := service("web", "40.0.0.1", func(s *v1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, 30080
	})
	c := start(t, s)
	c.servePods(t)
	c.put(slice(s, 8080, at(c.remotes[0].IP4)))
	c.settle()
	c.eventually("the way back through the gateway", func() error {
		ctx, cancel := context.WithTimeout(c.ctx, time.Second) // then it tries again: the answer makes the node look for the router
		defer cancel()
		a, err := c.External.Ask(ctx, "tcp", hostPort(testbed.NodeIP4, 30080))
		if err == nil && a.Pod != c.remotes[0].Name {
			t.Fatalf("%s answers", a.Pod)
		}
		return err
	})
}
