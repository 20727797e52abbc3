//go:build linux

package ui

import (
	"fmt"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A person sees on the page that something is broken, what it is, and that it is well again. The states come one after the other on
// one node, and each ends before the next begins. The pill at the top is looked at in each: it is green in none.
func TestBrokenStates(t *testing.T) {
	n := startNode(t, testbed.OVS, "--audit-period", "1s", "--cost-limit", "3000")
	b := startBrowser(t, n.page(t))
	view := func(hash string) { b.evaluate("location.hash = '" + hash + "'") }
	well := func(t *testing.T) {
		t.Helper()
		b.sees(".pill.good", "in step")
	}
	good, err := os.ReadFile(n.manifest)
	harness.Must(t, err)
	restore := func(t *testing.T) { t.Helper(); harness.Must(t, os.WriteFile(n.manifest, good, 0o644)) }

	for _, state := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"Service without endpoints", func(t *testing.T) {
			n.write(t, harness.OtherNode, service("", "shop", "empty", "40.0.0.20", 0)...)
			view("#/services")
			b.sees(".services tbody.troubled", "shop/empty", "0 of 0")
			b.sees(".pill.bad", "in step, 1 Service port with problems")
			restore(t)
		}},
		{"address that two Services want", func(t *testing.T) {
			first, second := service("", "shop", "first", "40.0.0.21", 0, n.local[0]), service("", "shop", "second", "40.0.0.22", 0, n.local[0])
			for _, objects := range [][]any{first, second} {
				objects[0].(*v1.Service).Spec.ExternalIPs = []string{"172.16.9.9"}
			}
			n.write(t, harness.OtherNode, append(first, second...)...)
			view("#/service/shop/second")
			b.sees(".picture svg", "172.16.9.9:80", "taken by shop/first")
			restore(t)
			view("#/services")
		}},
		{"Service above the cost limit", func(t *testing.T) {
			costly := service("", "shop", "costly", "40.0.0.23", 0, n.local...)
			s := costly[0].(*v1.Service)
			for i := range 250 {
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("172.17.0.%d", i+1))
			}
			n.write(t, harness.OtherNode, costly...)
			b.sees(".services tbody.troubled", "shop/costly", "--cost-limit")
			b.sees(".pill.bad", "with problems")
			restore(t)
		}},
		{"manifest that is not YAML", func(t *testing.T) {
			harness.Must(t, os.WriteFile(n.manifest, []byte("kind: [Service"), 0o644))
			view("#/node")
			b.sees(".problems.bad", "services.json")
			b.sees(".pill.warn", "warning")
			restore(t)
		}},
		{"endpoint whose link is down", func(t *testing.T) {
			_, err := n.local[1].Exec(t.Context(), "ip", "link", "set", "eth0", "down")
			harness.Must(t, err)
			view("#/service/shop/cart")
			b.sees(".picture svg", "50 % lost", "gets 50 %")
			view("#/services")
			b.sees(".pill.bad", "1 Service port with problems")
			_, err = n.local[1].Exec(t.Context(), "ip", "link", "set", "eth0", "up")
			harness.Must(t, err)
		}},
		{"foreign flow in nkp's table", func(t *testing.T) {
			_, err := n.Ofctl("add-flow", n.Bridge, "cookie=0x77,table=30,priority=65000,ip,nw_dst=10.0.9.0/24,actions=drop")
			harness.Must(t, err)
			view("#/node")
			b.sees(".problems.warn", "cookie=0x77")
			b.sees(".pill.warn", "warning")
			_, err = n.Ofctl("del-flows", n.Bridge, "cookie=0x77/-1")
			harness.Must(t, err)
		}},
		{"flow that another program deleted", func(t *testing.T) {
			_, err := n.Ofctl("del-flows", n.Bridge, "table=1,ip,nw_dst=40.0.0.12")
			harness.Must(t, err)
			view("#/node")
			b.sees(".cards", "Repaired1 time", "Last repair", "s ago: another program had changed")
		}},
		{"switch that hangs", func(t *testing.T) {
			harness.Must(t, n.PauseVswitchd(true))
			b.sees(".pill.bad", "switch does not answer")
			harness.Must(t, n.PauseVswitchd(false))
		}},
		{"database that hangs", func(t *testing.T) {
			harness.Must(t, n.PauseOvsdb(true))
			b.sees(".pill.bad", "database does not answer")
			harness.Must(t, n.PauseOvsdb(false))
		}},
		{"agent that hangs", func(t *testing.T) {
			harness.Must(t, n.agent.Freeze())
			b.sees(".pill.bad", "no answer")
			b.sees("#banner", "has not answered")
			harness.Must(t, n.agent.Thaw())
		}},
		{"bridge that is gone", func(t *testing.T) {
			_, err := n.Vsctl("--no-wait", "del-br", n.Bridge)
			harness.Must(t, err)
			b.sees(".pill.bad", "no bridge")
			b.sees(".cards", "does not exist")
		}},
	} {
		well(t)
		if !t.Run(state.name, state.run) {
			return
		}
	}
}
