//go:build linux

package packets

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

func external(ips ...string) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, ips...) }
}

// sameAsTraced asks for a frontend and compares with what trace says, with and without a look at the switch.
func (c *cluster) sameAsTraced(t *testing.T, from *testbed.Host, proto, to, want string) {
	t.Helper()
	r, status := c.trace(t, proto, from.IP(netip.MustParseAddrPort(to).Addr()).String(), to, "--live")
	if r.Verdict != want || r.Live == nil || !r.Live.Agrees || status != 0 {
		t.Errorf("%s -> %s/%s: trace says %s, want %s; status %d\n%s\ninstalled: %+v",
			from.Name, to, proto, r.Verdict, want, status, strings.Join(r.Steps, "\n"), r.Live)
	}
	c.happens(t, from, proto, to, r)
	if t.Failed() {
		t.Log(c.explain(proto, to))
	}
}

// A SYN to a Service range passes the connection tracker by (table 3). What has an address there and is no
// ClusterIP is reached all the same. The ranges change while nkp runs: a frontend that comes to lie inside, or
// outside, stays reachable, and so does what is connected. An address of the node inside a range is odd, and the
// node's all the same: NodePorts are served there, and its own listeners are reached.
func TestServiceRangeMoves(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--host-traffic", "ovs")
	_, err := c.Node.ServeTCP(8081)
	must(t, err)
	here, there := c.pods[1], c.remotes[0]
	four := service("four", "40.0.0.1", external("20.0.0.5"), exposed(30080))
	six := service("six", "fd00:40::1", external("fd00:20::5"), exposed(30081))
	pinned := service("pinned", "40.0.0.2", external("20.0.0.6"), affinity(600), exposed(30082))
	away := service("away", "40.0.0.3", loadBalancer("20.0.0.7", externalLocal))
	ranged := service("ranged", "40.0.0.4", loadBalancer("20.0.0.8", func(s *v1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/16"}
	}))
	empty := service("empty", "40.0.0.5", external("20.0.0.9"))
	first := *c.objects["ranges"].(*networkingv1.ServiceCIDR)
	c.begin(four, slice(four, 8080, at(here.IP4)), six, slice(six, 8080, at(here.IP6)),
		pinned, slice(pinned, 8080, at(there.IP4)), away, slice(away, 8080, at(there.IP4)),
		ranged, slice(ranged, 8080, at(here.IP4)), empty)
	client := c.pods[0]
	held, err := client.Hold(c.ctx, "20.0.0.5:80", testbed.DialOptions{})
	must(t, err)
	defer held.Close()
	type probe struct {
		from     *testbed.Host
		to, want string
	}
	var probes []probe
	for _, to := range []string{"20.0.0.5:80", "[fd00:20::5]:80", "20.0.0.6:80", hostPort(testbed.NodeIP4, 30080),
		hostPort(testbed.NodeIP6, 30081), hostPort(testbed.NodeIP4, 30082)} {
		probes = append(probes, probe{client.Host, to, "deliver"}, probe{c.External, to, "deliver"})
	}
	for _, to := range []string{"40.0.0.1:80", "[fd00:40::1]:80", "40.0.0.2:80", "20.0.0.7:80", "20.0.0.8:80"} {
		probes = append(probes, probe{client.Host, to, "deliver"})
	}
	probes = append(probes, probe{c.Node, "20.0.0.5:80", "deliver"}, probe{client.Host, "20.0.0.9:80", "reject"},
		probe{c.External, "20.0.0.7:80", "drop"}, probe{c.External, "20.0.0.8:80", "drop"},
		probe{client.Host, hostPort(testbed.NodeIP4, 8081), "untouched"},
		probe{c.External, hostPort(testbed.NodeIP6, 8081), "untouched"})
	original, inside := first.Spec.CIDRs, []string{"20.0.0.0/24", "fd00:20::/112"}
	withNode := append(inside, "172.16.0.2/32", "fd00:ac::2/128")
	for _, cidrs := range [][]string{original, append(inside, original...), original, withNode} {
		next := first
		next.Spec.CIDRs = cidrs
		c.objects["ranges"] = &next
		c.write()
		c.settle()
		for _, p := range probes {
			t.Run(fmt.Sprintf("%s to %s, ranges %v", p.from.Name, p.to, cidrs), func(t *testing.T) {
				c.sameAsTraced(t, p.from, "tcp", p.to, p.want)
			})
		}
		if err := held.Check(); err != nil {
			t.Errorf("ranges %v: what was connected: %v", cidrs, err)
		}
	}
	t.Run("another port of an external address inside", func(t *testing.T) {
		c.sameAsTraced(t, client.Host, "tcp", "20.0.0.5:81", "drop")
	})
}
