//go:build linux

package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// packet is one question and what must come of it.
type packet struct {
	what  string
	from  *testbed.Host
	proto string
	to    string
	by    []string   // who may answer; none: nobody does
	as    netip.Addr // whom the server sees; zero: anyone
	err   error      // testbed.ErrRefused or ErrTimeout, if nobody answers
	// control is asked by the same host after a packet that nobody answers (ErrTimeout), and is answered or refused: the packet was
	// dropped, and not just late.
	control string
}

func (p packet) check(t *testing.T) {
	t.Helper()
	var o testbed.AskOptions
	if errors.Is(p.err, testbed.ErrTimeout) {
		o.Until = func(ctx context.Context) error {
			if _, err := p.from.Ask(ctx, p.proto, p.control); err != nil && !errors.Is(err, testbed.ErrRefused) {
				return fmt.Errorf("control: %w", err)
			}
			return nil
		}
	}
	a, err := p.from.AskWith(t.Context(), p.proto, p.to, o)
	switch {
	case p.err != nil && !errors.Is(err, p.err):
		t.Errorf("%s: %s %s -> %s: answer %+v, error %v, want %v", p.what, p.proto, p.from.Name, p.to, a, err, p.err)
	case p.err == nil && err != nil:
		t.Errorf("%s: %v", p.what, err)
	case p.err == nil && !slices.Contains(p.by, a.Pod):
		t.Errorf("%s: %s %s -> %s: answered by %s, want one of %v", p.what, p.proto, p.from.Name, p.to, a.Pod, p.by)
	case p.err == nil && p.as.IsValid() && a.Client.Addr() != p.as:
		t.Errorf("%s: %s %s -> %s: the server saw %s, want %s", p.what, p.proto, p.from.Name, p.to, a.Client.Addr(), p.as)
	}
}

// What a packet meets at each kind of frontend, from each side, in both families and over both back ends.
func TestPackets(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		o := defaults(backend)
		o.Tracker.ServiceCIDRs = []netip.Prefix{testbed.ServiceRanges[0], testbed.ServiceRanges[1]}
		loadBalancer := func(n int) []string {
			return []string{"type: LoadBalancer", fmt.Sprintf(`externalIPs: [20.0.0.%d, "fd00:20::%d"]`, 100+n, 100+n)}
		}
		status := func(n int) string {
			return fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: 20.0.0.%d}, {ip: \"fd00:20::%d\"}]}}\n", n, n)
		}
		p := start(t, b, o, nodeObject+
			service("all", 1, loadBalancer(1)...)+status(1)+endpoints("all", pods...)+
			service("self", 2, "type: NodePort")+endpoints("self", pods[0])+
			service("here", 3, append(loadBalancer(3), "externalTrafficPolicy: Local")...)+status(3)+endpoints("here", pods[0], pods[2])+
			service("there", 4, append(loadBalancer(4), "externalTrafficPolicy: Local")...)+status(4)+endpoints("there", pods[2])+
			service("none", 5, loadBalancer(5)...)+status(5)+endpoints("none")+
			clusterIPOnly(service("inside", 6, "internalTrafficPolicy: Local"))+endpoints("inside", pods[2])+
			service("ranges", 7, append(loadBalancer(7), `loadBalancerSourceRanges: [10.0.0.11/32, "fd00:a::11/128", 172.16.0.0/16, "fd00:ac::/32"]`)...)+
			status(7)+endpoints("ranges", pods[2]))

		reason := "asked for"
		if backend == onNFTables {
			reason = "the kernel has what it needs"
		}
		if got := p.status(); got.Backend != string(backend) || got.Reason != reason || (got.Version == "") != (backend == onNFTables) {
			t.Errorf("status: %+v", got)
		}
		all, remote := []string{"pod-11", "pod-12", "remote-11"}, []string{"remote-11"}
		pod, other, outside := pods[0].Host, pods[1].Host, b.External
		var wg sync.WaitGroup
		defer wg.Wait()
		for _, v6 := range []bool{false, true} {
			vip := func(n, port int) string {
				if v6 {
					return fmt.Sprintf("[fd00:40::%d]:%d", n, port)
				}
				return fmt.Sprintf("40.0.0.%d:%d", n, port)
			}
			lb := func(n, port int) string {
				if v6 {
					return fmt.Sprintf("[fd00:20::%d]:%d", n, port)
				}
				return fmt.Sprintf("20.0.0.%d:%d", n, port)
			}
			node := func(port int) string {
				if v6 {
					return fmt.Sprintf("[%s]:%d", b.Node.IP6, port)
				}
				return fmt.Sprintf("%s:%d", b.Node.IP4, port)
			}
			ip := func(h *testbed.Host) netip.Addr {
				if v6 {
					return h.IP6
				}
				return h.IP4
			}
			for _, c := range []packet{
				{"a pod keeps its address", pod, "tcp", vip(1, 80), all, netip.Addr{}, nil, ""},
				{"a pod keeps its address", pod, "udp", vip(4, 53), remote, ip(pod), nil, ""},
				{"the node is masqueraded", b.Node, "tcp", vip(1, 80), all, ip(b.Node), nil, ""},
				{"a client outside is masqueraded", outside, "udp", vip(4, 53), remote, ip(b.Node), nil, ""},
				{"a pod that is its own endpoint", pod, "tcp", vip(2, 80), []string{"pod-11"}, ip(b.Node), nil, ""},
				{"NodePort", outside, "tcp", node(30001), all, netip.Addr{}, nil, ""},
				{"NodePort, masqueraded", outside, "tcp", node(30002), []string{"pod-11"}, ip(b.Node), nil, ""},
				{"NodePort from the node", b.Node, "udp", node(31001), all, netip.Addr{}, nil, ""},
				{"NodePort from a pod", pod, "tcp", node(30001), all, netip.Addr{}, nil, ""},
				{"external IP", outside, "tcp", lb(101, 80), all, netip.Addr{}, nil, ""},
				{"load balancer", outside, "udp", lb(1, 53), all, netip.Addr{}, nil, ""},
				{"policy Local keeps the client", outside, "tcp", lb(3, 80), []string{"pod-11"}, ip(outside), nil, ""},
				{"policy Local, NodePort", outside, "udp", node(31003), []string{"pod-11"}, ip(outside), nil, ""},
				{"policy Local, none here", outside, "tcp", lb(4, 80), nil, netip.Addr{}, testbed.ErrTimeout, lb(1, 80)},
				{"policy Local, a pod goes anywhere", other, "tcp", lb(4, 80), remote, ip(other), nil, ""},
				{"policy Local, the node goes anywhere", b.Node, "tcp", node(30004), remote, ip(b.Node), nil, ""},
				{"no endpoints", pod, "tcp", vip(5, 80), nil, netip.Addr{}, testbed.ErrRefused, ""},
				{"no endpoints", b.Node, "tcp", vip(5, 80), nil, netip.Addr{}, testbed.ErrRefused, ""},
				{"no endpoints, NodePort", outside, "tcp", node(30005), nil, netip.Addr{}, testbed.ErrRefused, ""},
				{"no endpoints, load balancer", outside, "udp", lb(5, 53), nil, netip.Addr{}, testbed.ErrRefused, ""},
				{"internal policy Local, none here", pod, "tcp", vip(6, 80), nil, netip.Addr{}, testbed.ErrTimeout, vip(1, 80)},
				{"source range", pod, "tcp", lb(7, 80), remote, netip.Addr{}, nil, ""},
				{"source range, the node itself", b.Node, "tcp", lb(7, 80), remote, netip.Addr{}, nil, ""},
				{"outside all source ranges", other, "tcp", lb(7, 80), nil, netip.Addr{}, testbed.ErrTimeout, lb(1, 80)},
				{"outside all source ranges", outside, "udp", lb(7, 53), nil, netip.Addr{}, testbed.ErrTimeout, lb(1, 53)},
				{"source ranges are the load balancer's alone", outside, "tcp", node(30007), remote, netip.Addr{}, nil, ""},
				{"a port that is not served", pod, "tcp", vip(1, 81), nil, netip.Addr{}, testbed.ErrRefused, ""},
				{"a ClusterIP that no Service has", pod, "tcp", vip(99, 80), nil, netip.Addr{}, testbed.ErrTimeout, vip(1, 80)},
			} {
				wg.Go(func() { c.check(t) })
			}
		}
		for _, c := range []packet{
			{"NodePort at localhost", b.Node, "tcp", "127.0.0.1:30001", all, netip.Addr{}, nil, ""},
			{"NodePort at localhost", b.Node, "udp", "127.0.0.1:31002", []string{"pod-11"}, b.Node.IP4, nil, ""},
			{"no NodePort at ::1", b.Node, "tcp", "[::1]:30001", nil, netip.Addr{}, testbed.ErrRefused, ""},
		} {
			c.check(t)
		}
	})
}
