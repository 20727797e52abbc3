//go:build linux

package packets

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// packetsVar is how many packets TestTraceOfRandomServices sends.
const packetsVar = "NKP_TRACE_PACKETS"

// randomServices returns Services of random kinds, and the addresses to send packets to: their frontends, and ports and addresses
// that none serves.
func randomServices(c *cluster, rng *rand.Rand, n int) (objects []any, targets []probe) {
	protocols := map[v1.Protocol]string{v1.ProtocolTCP: "tcp", v1.ProtocolUDP: "udp"}
	is := func(percent int) bool { return rng.IntN(100) < percent }
	for i := range n {
		six, proto := is(30), v1.ProtocolTCP
		vip, node := fmt.Sprintf("40.0.0.%d", i+1), testbed.NodeIP4
		if six {
			vip, node = fmt.Sprintf("fd00:40::%x", i+1), testbed.NodeIP6
		}
		if is(40) {
			proto = v1.ProtocolUDP
		}
		s := service(nth("random", i), vip, protocol(proto))
		to := func(ip netip.Addr, port uint16) {
			targets = append(targets, probe{proto: protocols[proto], to: hostPort(ip, port)})
		}
		to(netip.MustParseAddr(vip), 80)
		if is(20) {
			to(netip.MustParseAddr(vip), 81)
		}
		if is(30) {
			internalLocal(s)
		}
		if is(20) {
			s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		}
		if is(60) {
			exposed(int32(30100 + i))(s)
			to(node, uint16(30100+i))
		}
		if !six && is(50) {
			ip := fmt.Sprintf("20.0.0.%d", i+1)
			loadBalancer(ip)(s)
			to(netip.MustParseAddr(ip), 80)
			if is(40) {
				s.Spec.LoadBalancerSourceRanges = []string{[]string{"10.0.0.0/16", "192.168.0.0/24", "198.51.100.0/24"}[rng.IntN(3)]}
			}
		}
		if s.Spec.Type != v1.ServiceTypeClusterIP && s.Spec.Type != "" && is(40) {
			externalLocal(s)
		}
		var ips []netip.Addr
		for _, p := range []*testbed.Pod{c.pods[0], c.remotes[0]} {
			if is(60) {
				ips = append(ips, p.IP(netip.MustParseAddr(vip)))
			}
		}
		objects = append(objects, s, slice(s, 8080, ats(ips...)...))
	}
	return objects, append(targets, probe{proto: "tcp", to: "40.0.0.250:80"}, probe{proto: "udp", to: "[fd00:40::ffff]:80"})
}

// TestTraceOfRandomServices sends random packets to random Services, and compares what trace says with what becomes of them.
func TestTraceOfRandomServices(t *testing.T) {
	nightlyOr(t, packetsVar, "it draws random Services")
	needsIPTables(t)
	for _, mode := range []string{"iptables", "nftables"} {
		t.Run(mode, func(t *testing.T) {
			traceRandomServices(t, mode)
		})
	}
}

func traceRandomServices(t *testing.T, mode string) {
	seed, packets := nightly.Seed(t), number(t, packetsVar, 60)
	rng := rand.New(rand.NewPCG(seed, 0))
	const perCluster, atOnce = 200, 8
	said := map[string]int{}
	for first := 0; first < packets; first += perCluster {
		c := newCluster(t, testbed.Options{Plane: testbed.Linux}, "--mode", mode, "--service-cidr", serviceCIDRs)
		objects, targets := randomServices(c, rng, 40)
		c.put(objects...)
		c.run()
		c.settle()
		c.servePods(t)
		var mu sync.Mutex
		var all sync.WaitGroup
		turns := make(chan struct{}, atOnce)
		for i := range min(perCluster, packets-first) {
			p := targets[len(targets)-1] // of which one packet is dropped at least
			if i > 0 {
				p = targets[rng.IntN(len(targets))]
			}
			p.from = []*testbed.Host{c.pods[0].Host, c.pods[1].Host, c.Node, c.External}[rng.IntN(4)]
			turns <- struct{}{}
			all.Go(func() {
				defer func() { <-turns }()
				r, status := c.trace(t, p.proto, p.from.IP(netip.MustParseAddrPort(p.to).Addr()).String(), p.to, "--live")
				if r.Live == nil || !r.Live.Agrees || status != 0 {
					t.Errorf("%s: status %d, %+v", p, status, r.Live)
				}
				mu.Lock()
				said[r.Verdict]++
				mu.Unlock()
				c.happens(t, p.from, p.proto, p.to, r)
				if t.Failed() {
					t.Logf("%s: %s, masquerade %s, endpoints %v", p, r.Verdict, r.Masquerade, r.Endpoints)
				}
			})
		}
		all.Wait()
	}
	t.Logf("%d packets: %v", packets, said)
	for _, verdict := range []string{"deliver", "drop", "reject"} {
		if said[verdict] == 0 {
			t.Errorf("no packet of verdict %s: %v", verdict, said)
		}
	}
}
