//go:build linux

package semantics

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// weights sets nkp's annotation for the addresses of hosts.
func weights(of map[*testbed.Host]int) change {
	return func(s *v1.Service) {
		var list []string
		for h, w := range of {
			list = append(list, fmt.Sprintf("%s=%d,%s=%d", h.IP4, w, h.IP6, w))
		}
		s.Annotations = map[string]string{k8s.AnnotationWeights: strings.Join(list, ",")}
	}
}

// With nkp's annotation weights, new connections are divided by weight: 7 to 3 exactly on planes whose slots or probabilities are not
// rounded, within 2 % on the bridge. The endpoint that goes, and the one that is drained, take nobody else's connections with them.
func TestRow20Weights(t *testing.T) {
	onEveryPlaneWith(t, setup{needs: ownSettings}, func(t *testing.T, c *cluster) {
		rounding := 0.02
		if c.plane.bed.Plane == testbed.Linux {
			rounding = 0
		}
		web := c.serve(service("web", clusterIP(1), everywhere(1), weights(map[*testbed.Host]int{c.here: 7, c.there: 3})),
			c.here, c.there, c.there2)
		sticky := service("sticky", clusterIP(2), affinity(3600), weights(map[*testbed.Host]int{c.here: k8s.MaxWeight}))
		c.serve(sticky, c.here, c.there)
		c.apply()
		cluster, node, _, lb := c.frontends(1)
		ways := map[string]probe{
			"ClusterIP": {from: c.pod, to: v4(cluster)}, "ClusterIP over IPv6": {from: c.pod, to: v6(cluster)},
			"NodePort": {from: c.External, to: v4(node)}, "load balancer": {from: c.pod, to: v4(lb)},
		}
		divided := func(when string, shares map[*testbed.Host]float64) {
			t.Helper()
			for what, way := range ways {
				n := nightly.Count(500, 3000)
				who := c.answers(t, way.from, n, way.to)
				t.Logf("%s, %s: %v", when, what, who)
				for h, p := range shares {
					lo, _ := chance.Bounds(n, p*(1-rounding))
					_, hi := chance.Bounds(n, min(1, p*(1+rounding)))
					if k := who[h.Name]; k < lo || k > hi {
						t.Errorf("%s, %s: %s got %d of %d connections, want %d to %d", when, what, h.Name, k, n, lo, hi)
					}
				}
			}
		}
		divided("weights 7, 3 and 1", map[*testbed.Host]float64{c.here: 7. / 11, c.there: 3. / 11, c.there2: 1. / 11})

		open := c.hold(40, probe{from: c.pod, to: cluster}, probe{from: c.External, to: node}, probe{from: c.Node, to: cluster})
		c.endpoints(web, ready(c.here, c.there)...)
		c.apply()
		open.stay(t, "one endpoint less")
		divided("one endpoint less", map[*testbed.Host]float64{c.here: .7, c.there: .3})

		for _, ask := range []struct{ command, want string }{
			{"services web -o wide", ", weight 7: in force"},
			{"trace --from " + c.pod.IP4.String() + " --to " + v4(cluster).addresses()[0].String(), ", weight 3"},
			{"trace --live --from " + c.pod.IP4.String() + " --to " + v4(cluster).addresses()[0].String(), "deliver"},
			{"status", "Service default/sticky: metadata.annotations[" + k8s.AnnotationWeights + "]: has no effect with session affinity"},
		} {
			argv := append([]string{c.bin}, strings.Fields(ask.command)...)
			if out, _ := c.run(append(argv, "--socket", c.socket())...); !strings.Contains(out, ask.want) {
				t.Errorf("nkp %s does not say %q:\n%s", ask.command, ask.want, tail(out, 3000))
			}
		}

		weights(map[*testbed.Host]int{c.here: 0})(web)
		c.apply()
		open.stay(t, "drained")
		divided("drained", map[*testbed.Host]float64{c.here: 0, c.there: 1})
		weights(map[*testbed.Host]int{c.here: 3, c.there: 7})(web)
		c.apply()
		open.stay(t, "turned round")
		divided("turned round", map[*testbed.Host]float64{c.here: .3, c.there: .7})

		t.Run("session affinity", func(t *testing.T) {
			to, seen := clusterIP(2).on(80), map[string]int{}
			clients := c.addClients(40)
			for _, d := range clients {
				p := probe{from: c.pod, proto: "tcp", local: d}
				for _, to := range to.addresses() {
					a, err := p.ask(c, to)
					must(t, err)
					seen[a.Pod]++
				}
			}
			n := 2 * len(clients)
			if lo, hi := chance.Bounds(n, .5); seen[c.here.Name] < lo || seen[c.here.Name] > hi {
				t.Errorf("weights divide clients: %v, want %d to %d of %d by either", seen, lo, hi, n)
			}
		})
	})
}
