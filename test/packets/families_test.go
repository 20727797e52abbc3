//go:build linux

package packets

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// The same clients, Services and endpoints need at most 1.1 times as many cached flows and upcalls over IPv6 as over IPv4. Open vSwitch
// before 3.5 tracks prefixes of IPv4 addresses only, so that a flow that matches a full IPv6 address can make the datapath cache a flow
// for each address (pipeline/README.md, "IPv6 addresses"). The endpoints are on this node and on three others, in the same cluster range.
// Nearly every hash slot of each client and Service is used, so that chance decides little.
func TestFamiliesCostTheSame(t *testing.T) {
	nightly.Only(t, "it measures what a family costs")
	const nodes, perNode, services = 3, 12, 4
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC, "--service-cidr", serviceCIDRs,
		"--cluster-cidr", "10.0.0.0/16,fd00:a::/56")
	families := []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	far, near := c.remotes[0], c.pods[2]
	for _, p := range []*testbed.Pod{far, near} {
		_, err := p.ServeTCP(8080)
		must(t, err)
	}
	elsewhere := map[v1.IPFamily][]netip.Addr{}
	for n := range nodes {
		for family, r := range map[v1.IPFamily]string{
			v1.IPv4Protocol: fmt.Sprintf("10.0.%d.0/24", 2+n), v1.IPv6Protocol: fmt.Sprintf("fd00:a:0:%x::/64", 2+n),
		} {
			p := netip.MustParsePrefix(r)
			must(t, c.Router.AddRoute(p, c.Remote.IP(p.Addr()), "remote"))
			must(t, c.Remote.AddRoute(p, far.IP(p.Addr()), far.Name))
			ip := p.Addr()
			for range perNode {
				ip = ip.Next()
				must(t, far.AddAddr("lo", netip.PrefixFrom(ip, ip.BitLen())))
				elsewhere[family] = append(elsewhere[family], ip)
			}
		}
	}
	direct, clusterIPs, lbIPs := map[v1.IPFamily][]string{}, map[v1.IPFamily][]string{}, map[v1.IPFamily][]string{}
	for _, family := range families {
		all := elsewhere[family]
		for _, ip := range all {
			direct[family] = append(direct[family], hostPort(ip, 8080))
		}
		for i := range services {
			ip, lb := fmt.Sprintf("40.0.0.%d", 1+i), fmt.Sprintf("20.0.0.%d", 1+i)
			if family == v1.IPv6Protocol {
				ip, lb = fmt.Sprintf("fd00:40::%x", 1+i), fmt.Sprintf("fd00:20::%x", 1+i)
			}
			s := service(nth("web"+strings.ToLower(string(family)), i), ip, loadBalancer(lb))
			c.put(s, slice(s, 8080, ats(all[i*7], all[i*7+perNode], near.IP(all[i]))...))
			clusterIPs[family] = append(clusterIPs[family], hostPort(netip.MustParseAddr(ip), 80))
			lbIPs[family] = append(lbIPs[family], hostPort(netip.MustParseAddr(lb), 80))
		}
	}
	_, err := c.Vsctl("set", "Open_vSwitch", ".", "other_config:max-idle=3600000") // no cached flow expires before it is counted
	must(t, err)
	c.run()
	c.settle()

	pods := []*testbed.Host{c.pods[0].Host, c.pods[1].Host}
	for _, tc := range []struct {
		name        string
		clients     []*testbed.Host
		to          map[v1.IPFamily][]string
		connections int
	}{
		{"pods to pods elsewhere", pods, direct, 4},
		{"pods to Services", pods, clusterIPs, 64},
		{"outside to Services", []*testbed.Host{c.External}, lbIPs, 64},
	} {
		flows, upcalls := map[v1.IPFamily]int{}, map[v1.IPFamily]int{}
		for _, family := range families {
			ask := func(n int) {
				for _, client := range tc.clients {
					for _, to := range tc.to[family] {
						if _, errs := client.Many(c.ctx, n, 4, to); len(errs) > 0 {
							t.Fatalf("%s: %v", tc.name, errs[0])
						}
					}
				}
			}
			ask(1)    // neighbours
			c.flush() // else a port that was used for a Service stalls where there are no guards (pipeline/README.md, Known limits)
			_, err := c.Appctl("dpctl/del-flows")
			must(t, err)
			before := c.upcalls(t)
			ask(tc.connections)
			upcalls[family] = c.upcalls(t) - before
			out, err := c.Appctl("dpctl/dump-flows", "-m")
			must(t, err)
			for line := range strings.Lines(out) {
				if isIP(line) {
					flows[family]++
				}
			}
		}
		for what, n := range map[string]map[v1.IPFamily]int{"cached flows": flows, "upcalls": upcalls} {
			t.Logf("%s: %d %s over IPv4, %d over IPv6", tc.name, n[v1.IPv4Protocol], what, n[v1.IPv6Protocol])
			// Two flows or upcalls more may be neighbour discovery's.
			if n[v1.IPv4Protocol] == 0 || float64(n[v1.IPv6Protocol]) > 1.1*float64(n[v1.IPv4Protocol])+2 {
				t.Errorf("%s: %d %s over IPv6; want 1.1 times those over IPv4 at most", tc.name, n[v1.IPv6Protocol], what)
			}
		}
	}
}
