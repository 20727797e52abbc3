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

// awaitAnswer waits until one pod answers new connections.
func (c *cluster) awaitAnswer(t *testing.T, from *testbed.Host, to, pod string) {
	t.Helper()
	wait.NoError(t, fmt.Sprintf("%s -> %s: %s answers", from.Name, to, pod), func() error {
		a, err := from.AskWith(c.ctx, "tcp", to, testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
		if err == nil && a.Pod != pod {
			err = fmt.Errorf("%s answers", a.Pod)
		}
		return err
	})
}

// tracked waits until the switch tracks a connection to a Service's address.
func (c *cluster) tracked(ip string) {
	c.t.Helper()
	c.eventually("a connection to "+ip+" is tracked", func() error {
		out, err := c.Appctl("dpctl/dump-conntrack", "zone=1001")
		if err == nil && !strings.Contains(out, "dst="+ip+",") {
			err = errors.New(out)
		}
		return err
	})
}

// flowsHave waits until the flows of a bridge's table have a text, or, with yes false, until they do not.
func (c *cluster) flowsHave(yes bool, bridge, table, text string) {
	c.t.Helper()
	c.eventually(table+" of "+bridge, func() error {
		flows, err := c.Ofctl("dump-flows", bridge, table)
		if err == nil && strings.Contains(flows, text) != yes {
			err = fmt.Errorf("%q: want %t of\n%s", text, yes, flows)
		}
		return err
	})
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
	c.begin()
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
	_, err := c.Exec(c.Router, "ip", "route", "add", "blackhole", c.pods[1].IP4.String()+"/32")
	must(t, err)
	c.begin(s, slice(s, 8080, at(c.pods[1].IP4)))
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
	c := newCluster(t, testbed.Options{}, "--port-reuse-guards") // by name: the switch under test may have a fault with them
	c.begin()
	c.reusesPorts(t, v1.ProtocolTCP)
}

func (c *cluster) reusesPorts(t *testing.T, proto v1.Protocol) {
	t.Helper()
	s4, s6 := service("one4", "40.0.0.2", protocol(proto)), service("one6", "fd00:40::2", protocol(proto))
	c.put(s4, s6)
	for i, e := range []*testbed.Pod{c.pods[1], c.remotes[0]} {
		c.put(slice(s4, 8080, at(e.IP4)), slice(s6, 8080, at(e.IP6)))
		c.settle()
		for k, tc := range []struct{ first, second string }{
			{"40.0.0.2:80", hostPort(e.IP4, 8080)},
			{hostPort(e.IP4, 8080), "40.0.0.2:80"},
			{"[fd00:40::2]:80", hostPort(e.IP6, 8080)},
			{hostPort(e.IP6, 8080), "[fd00:40::2]:80"},
		} {
			o := testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: 20000 + 10*i + k}}
			for _, to := range []string{tc.first, tc.second} {
				ctx, cancel := context.WithTimeout(c.ctx, 25*time.Second) // the first connection's entry is gone after 30 s
				a, err := c.pods[0].AskWith(ctx, strings.ToLower(string(proto)), to, o)
				cancel()
				if err != nil || a.Pod != e.Name {
					t.Errorf("%s then %s, from port %d: %s: answered by %q, %v\n%s", tc.first, tc.second, o.LocalPort, to, a.Pod, err,
						c.explain(string(proto), to))
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
	s := service("web", "40.0.0.1", exposed(30080))
	c := start(t, s)
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
