//go:build linux

package packets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A datagram larger than the MTU reaches the endpoint whole, and so does an answer of the same size, also as a connection's
// first: from a pod to an endpoint behind the uplink, on the same bridge, on the node and to itself, and from outside to a
// NodePort. The kernel's conntrack reassembles it, and the switch fragments it again on its way out; Open vSwitch's own hands on
// the fragments one by one.
func TestFragments(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	_, err := c.Node.ServeUDP(8080)
	must(t, err)
	udp := protocol(v1.ProtocolUDP)
	type end struct {
		name   string
		v4, v6 netip.Addr
	}
	pod := func(p *testbed.Pod) end { return end{p.Name, p.IP4, p.IP6} }
	ends := []end{pod(c.remotes[0]), pod(c.pods[1]), pod(c.pods[0]), {c.Node.Name, testbed.NodeIP4, testbed.NodeIP6}}
	for i, e := range ends {
		s4 := service(nth("v4", i), fmt.Sprintf("40.0.0.%d", i+1), udp, exposed(int32(30040+i)))
		s6 := service(nth("v6", i), fmt.Sprintf("fd00:40::%d", i+1), udp, exposed(int32(30060+i)))
		c.put(s4, slice(s4, 8080, at(e.v4)), s6, slice(s6, 8080, at(e.v6)))
	}
	// The choice among several endpoints must be the same for all fragments: by slots, by flows, and with session affinity.
	all4 := service("all4", "40.0.0.11", udp)
	all6 := service("all6", "fd00:40::11", udp)
	pinned := service("pinned", "40.0.0.12", udp, affinity(60))
	ip4s := []netip.Addr{c.pods[1].IP4, c.pods[2].IP4, c.remotes[0].IP4, c.remotes[1].IP4}
	c.put(all4, slice(all4, 8080, ats(ip4s...)...), pinned, slice(pinned, 8080, ats(ip4s...)...),
		all6, slice(all6, 8080, ats(c.pods[1].IP6, c.pods[2].IP6, c.remotes[0].IP6, c.remotes[1].IP6)...))
	wide := service("wide", "40.0.0.13", udp)
	// Only the port tells these apart; no fragment but the first has it.
	two := service("two", "40.0.0.14", udp, func(s *v1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "other", Port: 81, Protocol: v1.ProtocolUDP})
	})
	first, second := slice(two, 8080, at(c.pods[1].IP4)), slice(two, 8080, at(c.remotes[0].IP4))
	second.Name, second.Ports[0].Name = "two-2", &two.Spec.Ports[1].Name
	none := service("none", "40.0.0.15", udp)
	only := func(clients string) func(*v1.Service) {
		return func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = []string{clients} }
	}
	in := service("in", "40.0.0.16", udp, loadBalancer("20.0.0.1"), only("192.168.0.0/24"))
	out := service("out", "40.0.0.17", udp, loadBalancer("20.0.0.2"), only("192.168.1.0/24"))
	c.put(two, first, second, none, in, slice(in, 8080, at(c.pods[1].IP4)), out, slice(out, 8080, at(c.pods[1].IP4)))
	c.put(wide, slice(wide, 8080, c.addAddresses(t, c.remotes[1], 60)...)) // spread by flows
	c.begin()
	ask := func(from *testbed.Host, to, want string, size int) {
		t.Helper()
		payload := bytes.Repeat([]byte("fragment"), size/8)
		a, err := from.AskWith(c.ctx, "udp", to, testbed.AskOptions{Payload: payload})
		if err != nil || want != "" && a.Pod != want || a.Bytes != len(payload) || a.Size != len(payload) {
			t.Errorf("%s -> %s: %d bytes reached %q, %d came back, %v; want %d at %q\n%s", from.Name, to, a.Bytes, a.Pod, a.Size, err,
				len(payload), want, c.explain("udp", to))
		}
	}
	for i, e := range ends {
		for _, size := range []int{4000, 64, 40000} {
			ask(c.pods[0].Host, fmt.Sprintf("40.0.0.%d:80", i+1), e.name, size)
			ask(c.pods[0].Host, fmt.Sprintf("[fd00:40::%d]:80", i+1), e.name, size)
			ask(c.External, hostPort(testbed.NodeIP4, uint16(30040+i)), e.name, size)
			ask(c.External, hostPort(testbed.NodeIP6, uint16(30060+i)), e.name, size)
		}
	}
	for range 20 {
		for _, to := range []string{"40.0.0.11:80", "[fd00:40::11]:80", "40.0.0.12:80", "40.0.0.13:80"} {
			ask(c.pods[0].Host, to, "", 4000)
		}
	}
	ask(c.pods[0].Host, hostPort(c.pods[1].IP4, 8080), c.pods[1].Name, 4000)
	ask(c.pods[0].Host, hostPort(c.remotes[0].IP6, 8080), c.remotes[0].Name, 4000)
	for range 3 {
		ask(c.pods[0].Host, "40.0.0.14:80", c.pods[1].Name, 4000)
		ask(c.pods[0].Host, "40.0.0.14:81", c.remotes[0].Name, 4000)
	}
	large := testbed.AskOptions{Payload: make([]byte, 4000)}
	dropped := large
	dropped.Until = func(context.Context) error { ask(c.External, "20.0.0.1:80", c.pods[1].Name, 4000); return nil }
	if a, err := c.External.AskWith(c.ctx, "udp", "20.0.0.2:80", dropped); !errors.Is(err, testbed.ErrTimeout) {
		t.Errorf("outside of the source ranges: %v, %v", a, err)
	}
	c.eventually("the fragments that were dropped", func() error {
		if n := c.counters(t)["out"].Dropped[k8s.DropSourceRange]; n == 0 {
			return errors.New("none")
		}
		return nil
	})
	for _, to := range []string{"40.0.0.15:80", "40.0.0.1:81"} { // no endpoints, and no such port
		if a, err := c.pods[0].AskWith(c.ctx, "udp", to, large); !errors.Is(err, testbed.ErrRefused) {
			t.Errorf("%s: %v, %v; want it refused", to, a, err)
		}
	}
	c.awaitCounters(t, map[string]uint64{"v4-0": 6, "v6-1": 6}) // one for each datagram that was sent

	if testbed.DefaultDatapath() != testbed.UserDatapath {
		return
	}
	// One sender's fragments of packets that never become complete use up what the datapath holds.
	_, err = c.Appctl("dpctl/ipf-set-max-nfrags", "20")
	must(t, err)
	_, err = c.Ofctl("add-flow", c.Bridge, "priority=60000,ip,nw_frag=later,actions=drop")
	must(t, err)
	conn, err := c.pods[0].DialUDP(c.ctx, "40.0.0.1:80", testbed.DialOptions{})
	must(t, err)
	defer conn.Close()
	for range 40 {
		_, err := conn.Write(make([]byte, 4000))
		must(t, err)
	}
	c.statusSays("fragments of incomplete packets, of at most 20", "dpctl/ipf-set-max-nfrags N")
}
