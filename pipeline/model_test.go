package pipeline

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// testConfig is a dual-stack node with its addresses on the bridge, two pods and a gateway.
func testConfig() Config {
	return Config{
		Layout:        DefaultLayout(),
		NodeIPs:       []netip.Addr{addr("172.16.0.2"), addr("fd00:ac::2")},
		LocalIPs:      []netip.Addr{addr("172.16.0.2"), addr("fd00:ac::2")},
		HairpinIPs:    []netip.Addr{addr("169.254.110.107"), addr("fd6e:6b70:6e6b::1")},
		NodeMAC:       flow.MAC{2, 0, 0, 0, 0, 2},
		GatewayMAC:    flow.MAC{2, 0, 0, 0, 0, 1},
		Uplink:        1,
		Detector:      k8s.Detector{CIDRs: []netip.Prefix{prefix("10.0.0.0/16"), prefix("fd00::/32")}},
		ServiceCIDRs:  []netip.Prefix{prefix("40.0.0.0/16"), prefix("fd00:40::/112")},
		LocalDelivery: true,
		Counters:      true,
		Fragments:     true,
		Pods: []Pod{
			{IP: addr("10.0.0.11"), OFPort: 11, MAC: flow.MAC{2, 0, 0, 0, 0, 0x11}},
			{IP: addr("10.0.0.12"), OFPort: 12, MAC: flow.MAC{2, 0, 0, 0, 0, 0x12}},
		},
	}
}

// randomShape makes Service port number i of a random kind; vip says which addresses it gets.
func randomShape(rng *rand.Rand, i, vip int) shape {
	pick := func(ps ...k8s.Policy) k8s.Policy { return ps[rng.IntN(len(ps))] }
	s := shape{
		Name: fmt.Sprint("s", i), VIP: vip, Family: k8s.IPv4,
		Protocol: []k8s.Protocol{"TCP", "UDP", "SCTP"}[rng.IntN(3)],
		Cluster:  []int{0, 1, 2, 3, 10, 100}[rng.IntN(6)],
		Internal: pick(k8s.Cluster, k8s.Cluster, k8s.Local), External: pick(k8s.Cluster, k8s.Local),
		Types: []k8s.FrontendType{k8s.ClusterIP},
	}
	if rng.IntN(3) == 0 {
		s.Family = k8s.IPv6
	}
	if s.Cluster > 0 {
		s.Local = rng.IntN(min(s.Cluster, 3) + 1)
	}
	for _, t := range []k8s.FrontendType{k8s.NodePort, k8s.ExternalIP, k8s.LoadBalancer} {
		if rng.IntN(3) == 0 {
			s.Types = append(s.Types, t)
		}
	}
	if rng.IntN(4) == 0 {
		s.Affinity = 10 + rng.IntN(3)
	}
	if rng.IntN(4) == 0 && s.Family == k8s.IPv4 {
		s.Ranges = []netip.Prefix{prefix("192.168.0.0/24"), prefix("172.16.0.0/16")}[:1+rng.IntN(2)]
	}
	return s
}

// shuffled returns the numbers below n in a random order.
func shuffled(rng *rand.Rand, n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	rng.Shuffle(n, func(i, j int) { s[i], s[j] = s[j], s[i] })
	return slices.Clip(s)
}
