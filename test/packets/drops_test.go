//go:build linux

package packets

import (
	"fmt"
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// datagrams sends n of them, each from a socket of its own, because a refusal fails the next write of a socket.
func (c *cluster) datagrams(t *testing.T, from *testbed.Host, to string, n int) {
	t.Helper()
	for range n {
		conn, err := from.DialUDP(c.ctx, to, testbed.DialOptions{})
		must(t, err)
		_, err = conn.Write([]byte("hello"))
		conn.Close()
		must(t, err)
	}
}

// Every packet that is dropped or refused counts once, for its reason and its Service. What was counted stays when the Service has
// endpoints again.
func TestDrops(t *testing.T) {
	for name, plane := range map[string]struct {
		options testbed.Options
		flags   []string
	}{
		"ovs":      {},
		"iptables": {testbed.Options{Plane: testbed.Linux}, []string{"--mode", "iptables"}},
	} {
		t.Run(name, func(t *testing.T) {
			if plane.options.Plane == testbed.Linux {
				nightly.Only(t, "the gate counts those of Open vSwitch")
				needsIPTables(t)
			}
			c := newCluster(t, plane.options, append(plane.flags, "--service-cidr", "40.0.0.0/24")...)
			c.servePods(t)
			udp := protocol(v1.ProtocolUDP)
			web, none := service("web", "40.0.0.1", udp), service("none", "40.0.0.2", udp)
			local := service("local", "40.0.0.3", udp, exposed(30080), externalLocal)
			ranged := service("ranged", "40.0.0.4", udp, func(s *v1.Service) {
				loadBalancer("20.0.0.2")(s)
				s.Spec.LoadBalancerSourceRanges = []string{"192.168.77.0/24"}
			})
			c.put(web, none, local, ranged, slice(web, 8080, at(c.pods[0].IP4)), slice(none, 8080),
				slice(local, 8080, at(c.remotes[0].IP4)), slice(ranged, 8080, at(c.pods[0].IP4)))
			c.runWith("--service-metrics")
			c.settle()

			client := c.pods[1].Host
			c.datagrams(t, client, "40.0.0.2:80", 3)
			c.datagrams(t, c.External, hostPort(testbed.NodeIP4, 30080), 5)
			c.datagrams(t, c.External, "20.0.0.2:80", 7)
			c.datagrams(t, client, "40.0.0.1:81", 11)
			c.datagrams(t, client, "40.0.0.99:80", 13)
			c.datagrams(t, client, "40.0.0.1:80", 17) // served
			want := map[string]map[k8s.DropReason]uint64{
				"none": {k8s.DropNoEndpoint: 3}, "local": {k8s.DropNoLocalEndpoint: 5}, "ranged": {k8s.DropSourceRange: 7}, "web": nil,
			}
			counted := func() error {
				now := c.counters(t)
				for name, by := range want {
					if !maps.Equal(now[name].Dropped, by) {
						return fmt.Errorf("%s: %v dropped, want %v", name, now[name].Dropped, by)
					}
				}
				return nil
			}
			c.eventually("the drops of each Service", counted)
			label := func(name string) string {
				return fmt.Sprintf(`nkp_service_dropped_packets_total{ip_family="IPv4",namespace="default",port="http",protocol="UDP",reason="%s"`, name)
			}
			c.scrapeUntil(map[string]float64{
				`nkp_dropped_packets_total{reason="no_endpoint"}`: 3, `nkp_dropped_packets_total{reason="no_local_endpoint"}`: 5,
				`nkp_dropped_packets_total{reason="source_range"}`: 7, `nkp_dropped_packets_total{reason="unserved_port"}`: 11,
				`nkp_dropped_packets_total{reason="unallocated_address"}`: 13,
				label("no_endpoint") + `,service="none"}`:                 3, label("source_range") + `,service="ranged"}`: 7,
			})
			out, _, _ := c.nkp("services", "--socket", c.socket())
			says(t, "services", out, `refused, no endpoint: 3 packets\n(.*\n)*.*dropped, outside loadBalancerSourceRanges: 7 packets\n`)

			if plane.flags != nil {
				says(t, "services", out, `(?m)^counters: packets and bytes: n/a: .*nf_conntrack_acct`)
			}

			inForce := c.settle
			if plane.flags == nil {
				inForce = func() { c.inForce(t) }
			}
			c.put(slice(none, 8080, at(c.pods[0].IP4)))
			inForce()
			c.datagrams(t, client, "40.0.0.2:80", 19)
			if plane.flags == nil {
				c.uncached(t) // else the switch counts them for the flow that is there when it collects
			}
			c.put(slice(none, 8080))
			inForce()
			c.datagrams(t, client, "40.0.0.2:80", 2)
			want["none"] = map[k8s.DropReason]uint64{k8s.DropNoEndpoint: 5}
			c.eventually("the drops after the endpoint", counted)
		})
	}
}
