//go:build linux

package packets

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A bridge without fail_mode=secure whose controllers are all gone fails open: ovs-vswitchd forwards every packet past nkp's flows.
// No command then says that all is well, and each names the row of the controller.
func TestFailOpen(t *testing.T) {
	c := newCluster(t, testbed.Options{Standalone: true})
	c.servePods(t)
	web := service("web", "40.0.0.1")
	c.put(web, slice(web, 8080, at(c.pods[0].IP4)))
	c.run()
	c.settle()
	client := aPod(c)
	served := func() { t.Helper(); c.ask(t, client, "tcp", "40.0.0.1:80", c.pods[0].Name) }
	served() // standalone does no harm as long as the bridge has no controller
	vsctl := func(args ...string) {
		t.Helper()
		_, err := c.Vsctl(args...)
		must(t, err)
	}

	for _, mend := range [][]string{{"set-fail-mode", c.Bridge, "secure"}, {"del-controller", c.Bridge}} {
		vsctl("set-controller", c.Bridge, "tcp:127.0.0.1:1", "--", "set", "Controller", c.Bridge, "inactivity_probe=0") // no grace
		vsctl("set-fail-mode", c.Bridge, "standalone")
		c.awaitStatus(t, "the bridge has failed open", func(s *api.Status) bool { return !s.InStep && s.Status.FailOpen != "" })
		row := "because fail_mode of bridge br-int is not secure and no controller serves it (Controller tcp:127.0.0.1:1: is_connected=false, "
		c.statusSays("NOT in force: ovs-vswitchd forwards past nkp's flows, see WARNING", row, "run ovs-vsctl "+strings.Join(mend, " "))

		control := c.direct(t, client) // NORMAL still forwards from pod to pod
		_, err := client.AskWith(c.ctx, "tcp", "40.0.0.1:80", testbed.AskOptions{Until: func(context.Context) error { control(); return nil }})
		if err == nil {
			t.Fatal("the Service is served: the bridge has not failed open")
		}
		for _, command := range [][]string{
			{"diff", "--socket", c.socket()},
			append([]string{"diff"}, c.common()...),
			{"trace", "--socket", c.socket(), "--live", "--from", client.IP4.String(), "--to", "40.0.0.1:80"},
		} {
			out, errOut, status := c.nkp(command...)
			if status != 1 || !strings.Contains(out, row) || strings.Contains(out, "del-flows") || strings.Contains(out, "is installed agrees") {
				t.Errorf("nkp %s ends with %d:\n%s%s", strings.Join(command, " "), status, out, errOut)
			}
		}
		health := func(wants map[string]int, gauges ...string) {
			t.Helper()
			c.eventually("health and metrics", func() error {
				for path, want := range wants {
					if got, body, err := c.get(c.Node, "http://127.0.0.1:10256"+path); err != nil || got != want {
						return fmt.Errorf("%s: %d, %v\n%s", path, got, err, body)
					}
				}
				_, text, err := c.get(c.Node, "http://127.0.0.1:10249/metrics")
				for _, g := range gauges {
					if !strings.Contains(text, g+"\n") {
						return fmt.Errorf("no %s, %v", g, err)
					}
				}
				return nil
			})
		}
		health(map[string]int{"/healthz": 503, "/livez": 200}, "nkp_fail_open 1", `nkp_in_step{ip_family="IPv4"} 0`)

		vsctl(mend...)
		c.settle()
		served()
		health(map[string]int{"/healthz": 200, "/livez": 200}, "nkp_fail_open 0", `nkp_in_step{ip_family="IPv4"} 1`)
		if out, errOut, status := c.nkp("diff", "--socket", c.socket()); status != 0 || out != "" {
			t.Errorf("nkp diff ends with %d:\n%s%s", status, out, errOut)
		}
	}
}
