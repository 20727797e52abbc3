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

// shape describes a Service port; servicePort makes it.
type shape struct {
	name               string
	protocol           k8s.Protocol
	family             k8s.Family
	cluster, local     int // endpoints
	types              []k8s.FrontendType
	external, internal k8s.Policy
	affinity           int
	ranges             []netip.Prefix
	vip                int // which addresses it has
}

func (s shape) servicePort() *k8s.ServicePort {
	v6 := s.family == k8s.IPv6
	at := func(net, host int) netip.Addr {
		if v6 {
			return addr(fmt.Sprintf("fd00:%x::%x", net, host))
		}
		return addr(fmt.Sprintf("%d.%d.%d.%d", net, host>>16&255, host>>8&255, host&255))
	}
	if s.protocol == "" {
		s.protocol = "TCP"
	}
	if s.family == 0 {
		s.family = k8s.IPv4
	}
	sp := &k8s.ServicePort{
		Name: k8s.PortName{
			ServiceName: k8s.ServiceName{Namespace: "default", Name: s.name}, Port: "p", Protocol: s.protocol, Family: s.family,
		},
		AffinitySeconds: s.affinity,
	}
	for i := range s.cluster {
		e := k8s.Endpoint{Addr: netip.AddrPortFrom(at(10, 11+i), 80), Local: i < s.local}
		sp.ClusterEndpoints = append(sp.ClusterEndpoints, e)
		if s.protocol == "UDP" {
			sp.Serving = append(sp.Serving, e.Addr)
		}
		if e.Local {
			sp.LocalEndpoints = append(sp.LocalEndpoints, e)
		}
	}
	for _, t := range s.types {
		f := k8s.Frontend{Type: t, Port: 80, Policy: s.external, WhenEmpty: k8s.Reject}
		switch t {
		case k8s.ClusterIP:
			f.Address, f.Policy = at(40, 1+s.vip), s.internal
		case k8s.NodePort:
			f.Port = uint16(30000 + s.vip)
		case k8s.ExternalIP:
			f.Address = at(30, 1+s.vip)
		case k8s.LoadBalancer:
			f.Address, f.SourceRanges = at(20, 1+s.vip), s.ranges
		}
		if f.Policy == "" {
			f.Policy = k8s.Cluster
		}
		if f.Policy == k8s.Local && len(sp.ClusterEndpoints) > 0 {
			f.WhenEmpty = k8s.Drop
		}
		sp.Frontends = append(sp.Frontends, f)
	}
	return sp
}

// randomShape makes Service port number i of a random kind; vip says which addresses it gets.
func randomShape(rng *rand.Rand, i, vip int) shape {
	pick := func(ps ...k8s.Policy) k8s.Policy { return ps[rng.IntN(len(ps))] }
	s := shape{
		name: fmt.Sprint("s", i), vip: vip, family: k8s.IPv4,
		protocol: []k8s.Protocol{"TCP", "UDP", "SCTP"}[rng.IntN(3)],
		cluster:  []int{0, 1, 2, 3, 10, 100}[rng.IntN(6)],
		internal: pick(k8s.Cluster, k8s.Cluster, k8s.Local), external: pick(k8s.Cluster, k8s.Local),
		types: []k8s.FrontendType{k8s.ClusterIP},
	}
	if rng.IntN(3) == 0 {
		s.family = k8s.IPv6
	}
	if s.cluster > 0 {
		s.local = rng.IntN(min(s.cluster, 3) + 1)
	}
	for _, t := range []k8s.FrontendType{k8s.NodePort, k8s.ExternalIP, k8s.LoadBalancer} {
		if rng.IntN(3) == 0 {
			s.types = append(s.types, t)
		}
	}
	if rng.IntN(4) == 0 {
		s.affinity = 10 + rng.IntN(3)
	}
	if rng.IntN(4) == 0 && s.family == k8s.IPv4 {
		s.ranges = []netip.Prefix{prefix("192.168.0.0/24"), prefix("172.16.0.0/16")}[:1+rng.IntN(2)]
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
