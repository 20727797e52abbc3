//go:build linux

package packets

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Whatever the mode, the agent listens where SECURITY.md says and nowhere else; a listener that is turned off is off, and
// profiling adds none.
func TestListensInEveryMode(t *testing.T) {
	nightly.Only(t, "TestListens has the usual mode")
	documented := documentedListeners(t)
	quiet := []string{"--healthz-bind-address", "", "--metrics-bind-address", "", "--socket", ""}
	for _, tc := range []struct {
		name  string
		bed   testbed.Options
		flags []string
		off   bool
	}{
		{"iptables", testbed.Options{NodeOutside: true}, []string{"--mode", "iptables"}, false},
		{"ovs, iptables for the node's own traffic", testbed.Options{NodeOutside: true}, []string{"--mode", "ovs", "--host-traffic", "iptables"}, false},
		{"ovs, with profiling", testbed.Options{}, []string{"--mode", "ovs", "--profiling"}, false},
		{"iptables, all off", testbed.Options{NodeOutside: true}, append([]string{"--mode", "iptables"}, quiet...), true},
		{"ovs, all off", testbed.Options{}, append([]string{"--mode", "ovs"}, quiet...), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, tc.bed)
			c.servePods(t)
			const check = 32100
			s := service("web", "40.0.0.1", func(s *v1.Service) {
				if !tc.off {
					s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal, check
					s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "20.0.0.1"}}
				}
			})
			c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
			c.runWith(append([]string{"--ovs-wait", "10s"}, tc.flags...)...)
			var want []string
			for _, where := range documented {
				where = strings.Replace(where, "/run/nkp/nkp.sock", c.socket(), 1)
				where = strings.Replace(where, "0.0.0.0", "[::]", 1) // Go listens in both families
				if !tc.off {
					want = append(want, strings.Replace(where, "ADDRESS:healthCheckNodePort", fmt.Sprint("0.0.0.0:", check), 1))
				}
			}
			slices.Sort(want)
			client := c.Node
			if !tc.bed.NodeOutside {
				client = c.pods[0].Host
			}
			c.eventually("nkp serves", func() error { // all that it sets up is there
				_, err := client.Ask(c.ctx, "tcp", "40.0.0.1:80")
				return err
			})
			c.listensAt(t, want)
			// Nothing comes later: until a change is in force.
			c.put(slice(s, 8080, at(c.remotes[1].IP4)))
			c.eventually("a change is in force", func() error {
				a, err := client.AskWith(c.ctx, "tcp", "40.0.0.1:80", testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
				if err == nil && a.Pod != c.remotes[1].Name {
					err = fmt.Errorf("%s answers", a.Pod)
				}
				return err
			})
			have, err := listeners(c.agent.Cmd.Process.Pid)
			must(t, err)
			if !slices.Equal(have, want) {
				t.Errorf("the agent listens at\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
			}
			if found, _ := filepath.Glob(c.socket()); tc.off && len(found) > 0 {
				t.Error("there is a socket all the same")
			}
		})
	}
}
