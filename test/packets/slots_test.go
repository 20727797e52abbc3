//go:build linux

package packets

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// When an endpoint goes or comes, only the choices that must move do: those of the endpoint that went, or so many as the new one
// gets. The same client ports connect again and again, without conntrack entries, to Services of several sizes. A restart of nkp
// writes nothing; an endpoint that goes while nkp is stopped moves its own choices only.
func TestOnlyNecessaryChoicesMove(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	es := c.manyAddresses(t, c.remotes[0], 301)
	sizes := []int{2, 10, 300}
	if nightly.Is() {
		sizes = []int{2, 3, 10, 64, 100, 300}
	}
	ports := nightly.Count(60, 300)
	services := make([]*v1.Service, len(sizes))
	put := func(endpoints func(n int) []discoveryv1.Endpoint) {
		t.Helper()
		for i, n := range sizes {
			services[i] = service(fmt.Sprint("s", n), fmt.Sprintf("40.0.0.%d", i+1))
			c.put(services[i], slice(services[i], 8080, endpoints(n)...))
		}
	}
	chosen := func() (who [][]string) {
		t.Helper()
		c.settle()
		c.flush()
		for i := range sizes {
			to := fmt.Sprintf("40.0.0.%d:80", i+1)
			list := make([]string, ports)
			for p := range list {
				a, err := c.pods[0].AskWith(c.ctx, "tcp", to, testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: 20000 + p, Reset: true}})
				if err != nil {
					t.Fatalf("%s from port %d: %v\n%s", to, 20000+p, err, c.explain("tcp", to))
				}
				list[p] = strings.TrimPrefix(a.Pod, "::ffff:")
			}
			who = append(who, list)
		}
		return who
	}
	// moved checks what moved between two rounds, of which one had an endpoint more than the other.
	moved := func(when string, before, after [][]string, without discoveryv1.Endpoint) {
		t.Helper()
		for i, n := range sizes {
			all, must := 0, 0
			for p := range ports {
				if before[i][p] != after[i][p] {
					all++
				}
				if before[i][p] == without.Addresses[0] || after[i][p] == without.Addresses[0] {
					must++
				}
			}
			t.Logf("%s, %3d endpoints: %3d of %d choices move, %.2f shares", when, n, all, ports, float64(all*n)/float64(ports))
			if all != must {
				t.Errorf("%s, %d endpoints: %d choices moved, %d of them from or to endpoint %s", when, n, all, must, without.Addresses[0])
			}
		}
	}
	gone := es[1]
	all := func(n int) []discoveryv1.Endpoint { return append([]discoveryv1.Endpoint{gone, es[0]}, es[2:n]...) }
	put(all)
	c.run()
	first := chosen()
	put(func(n int) []discoveryv1.Endpoint { return all(n)[1:] })
	second := chosen()
	moved("an endpoint goes", first, second, gone)
	newcomer := es[300]
	put(func(n int) []discoveryv1.Endpoint { return append(all(n)[1:], newcomer) })
	third := chosen()
	for i, n := range sizes {
		if n == 2 { // between one endpoint and two the others are not chosen by slots
			third[i] = second[i]
		}
	}
	moved("another comes", second, third, newcomer)

	groups := func() string {
		out, err := c.Ofctl("dump-groups", c.Bridge)
		must(t, err)
		return out
	}
	third, before, same := chosen(), groups(), c.flowsNow(t)
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.runWith("--audit-period", "1s")
	c.settle()
	c.audited(t)
	if log, err := c.agent.Log.String(), same(); strings.Contains(log, "bringing the switch in step") || groups() != before || err != nil {
		t.Errorf("a restart changed something: %v\n%s", err, log)
	}
	must(t, c.agent.Stop(syscall.SIGKILL))
	put(func(n int) []discoveryv1.Endpoint { return all(n)[1:] })
	c.run()
	moved("an endpoint goes while nkp is stopped", third, chosen(), newcomer)

	// Another program deletes the groups, and with them the flows that lead to them.
	second = chosen()
	_, err := c.Ofctl("del-groups", c.Bridge)
	must(t, err)
	moved("all groups were deleted and repaired", second, chosen(), newcomer)
}
