//go:build linux

package fallback

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// traffic makes new connections to Services at random, without a pause, and keeps some open, until it is stopped.
type traffic struct {
	c        *cluster
	stop     context.CancelFunc
	done     sync.WaitGroup
	made     atomic.Int32
	mu       sync.Mutex // protects failures
	failures []string
	held     []*testbed.Held
}

func (c *cluster) traffic(services int) *traffic {
	c.t.Helper()
	ctx, stop := context.WithCancel(c.t.Context())
	f := &traffic{c: c, stop: stop}
	for i := range 20 {
		client := c.clients[i%len(c.clients)]
		if len(c.clients) > 2 {
			client = c.pods[i%len(c.pods)].Host
		}
		h, err := client.Hold(ctx, fmt.Sprintf("%s:80", vip(i*services/20)), testbed.DialOptions{})
		must(c.t, err)
		f.held = append(f.held, h)
	}
	seed := nightly.Seed(c.t)
	for w, from := range c.clients {
		f.done.Go(func() { // ends with ctx
			random := rand.New(rand.NewPCG(seed, uint64(w)))
			for ctx.Err() == nil {
				i := random.IntN(services)
				to := fmt.Sprintf("%s:80", vip(i))
				if i%10 == 0 && w < 2 {
					to = fmt.Sprintf("%s:%d", testbed.NodeIP4, nodePort(i))
				}
				_, err := from.AskWith(ctx, "tcp", to, testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
				if ctx.Err() != nil {
					return
				}
				f.made.Add(1)
				if err != nil {
					f.mu.Lock()
					f.failures = append(f.failures, time.Now().Format("15:04:05.000 ")+err.Error())
					f.mu.Unlock()
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	f.more()
	return f
}

// more waits until more connections were made.
func (f *traffic) more() {
	f.c.t.Helper()
	before := f.made.Load()
	wait.For(f.c.t, "new connections", func() bool { return f.made.Load() >= before+int32(20*len(f.c.clients)) })
}

// end stops the traffic; nothing of it may have failed.
func (f *traffic) end() {
	f.c.t.Helper()
	f.more()
	f.stop()
	f.done.Wait()
	for _, h := range f.held {
		if err := h.Check(); err != nil {
			f.c.t.Error("an established connection:", err)
		}
	}
	f.c.t.Logf("%d connections made, %d failed, %d held", f.made.Load(), len(f.failures), len(f.held))
	for i, s := range f.failures {
		if i < 10 {
			f.c.t.Error(s)
		}
	}
}

// From each of kube-proxy's modes to each of nkp's, and back: no connection fails, held ones stay, and whoever is
// in charge follows the API server. From iptables to iptables each takes the other's rules over; elsewhere what
// kube-proxy had installed is gone, and nkp cleanup removes nkp's once kube-proxy serves.
func TestTakeOver(t *testing.T) {
	testbed.Linux.Require(t)
	for _, tc := range []struct {
		from, backend, to string
		services          int
		left              string // by kube-proxy, until nkp serves; "": nkp takes it over
	}{
		{"iptables", "nf_tables", "iptables", 1000, ""},
		{"iptables", "legacy", "iptables", 1000, ""},
		{"nftables", "nf_tables", "nftables", 200, "table ip kube-proxy"},
		{"nftables", "nf_tables", "iptables", 200, "table ip kube-proxy"},
		{"iptables", "nf_tables", "nftables", 200, "KUBE-SERVICES"},
		{"iptables", "legacy", "nftables", 200, "KUBE-SERVICES"},
	} {
		t.Run(fmt.Sprintf("%s (%s) to %s", tc.from, tc.backend, tc.to), func(t *testing.T) {
			c := newCluster(t, tc.services, 10)
			installed := func() string {
				rules, _ := c.bed.Node.Exec(t.Context(), "nft", "list", "ruleset")
				legacy, _ := c.bed.Node.Exec(t.Context(), "iptables-legacy-save")
				return rules + legacy
			}
			old := c.serveByKubeProxy(tc.from, tc.backend, tc.services)
			c.reach(tc.services-1, "")
			c.inCharge(1)
			if !strings.Contains(installed(), tc.left) {
				t.Fatalf("kube-proxy has not installed %q", tc.left)
			}

			f := c.traffic(tc.services)
			old.stop()
			mode := []string{"--mode", tc.to}
			if tc.from == tc.to && tc.to == "iptables" {
				mode = append(mode, "--iptables-backend", tc.backend)
			}
			nkp := c.startNKPWith(mode...)
			c.waitInStep()
			if tc.left != "" {
				wait.For(t, "nkp to remove kube-proxy's rules", func() bool {
					s := installed()
					return !strings.Contains(s, tc.left) && !strings.Contains(s, "table ip6 kube-proxy")
				})
			}
			c.inCharge(2)
			if tc.left != "" && tc.to == "iptables" {
				// kube-proxy's mode nftables begins by deleting the chains of its own mode iptables, which are nkp's, too, and serves seconds
				// later. By way of nkp's mode nftables nothing fails.
				nkp.stop()
				nkp = c.startNKPWith("--mode", "nftables")
				c.waitInStep()
				wait.For(t, "nkp to remove those of its mode iptables", func() bool { return !strings.Contains(installed(), "KUBE-SERVICES") })
			}

			nkp.stop()
			c.serveByKubeProxy(tc.from, tc.backend, tc.services)
			if tc.left != "" {
				c.cleanup("--mode", "nftables")
			}
			c.inCharge(3)
			f.end()
		})
	}
}

// From each of kube-proxy's modes to nkp on a bridge, and back, where the node's address is on a NIC beside the bridge: of what the
// node's own processes and clients outside do through Services no connection fails, and held ones stay. With the address on the bridge
// TestLeaveToKubeProxy (package fallback) shows that kube-proxy is recognized on the way back.
func TestTakeOverBesideTheBridge(t *testing.T) {
	testbed.OVS.Require(t)
	const services = 200
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			c := newClusterIn(t, testbed.Options{NodeOutside: true, Standalone: true}, services, 10) // the bridge forwards before nkp is there
			old := c.serveByKubeProxy(mode, "nf_tables", services)
			c.reach(services-1, "")
			c.inCharge(1)
			f := c.traffic(services)
			old.stop()
			bridge := []string{"--ovsdb", c.bed.DB(), "--bridge", c.bed.Bridge}
			nkp := c.startNKPWith(append([]string{"--mode", "ovs", "--host-traffic", mode, "--uplink-port", testbed.UplinkName}, bridge...)...)
			c.waitInStep()
			c.inCharge(2)
			if out, err := c.pods[0].Ask(t.Context(), "tcp", fmt.Sprintf("%s:80", vip(2))); err != nil {
				t.Errorf("a pod's connection through the bridge: %v, %v", out, err)
			}
			nkp.stop()
			c.serveByKubeProxy(mode, "nf_tables", services)
			c.cleanup(append([]string{"--mode", "ovs"}, bridge...)...) // also what served beside the bridge
			c.inCharge(3)
			f.end()
		})
	}
}

// inCharge checks that the proxy which serves follows the API server.
func (c *cluster) inCharge(i int) {
	c.t.Helper()
	p := c.pods[i]
	c.api.slice(c.sliceObject(i, p))
	c.follows(i, p.Name)
	c.api.slice(c.sliceObject(i, c.pods...))
}

// serveByKubeProxy starts kube-proxy and waits until it serves.
func (c *cluster) serveByKubeProxy(mode, backend string, services int) *proxy {
	c.t.Helper()
	p := c.startKubeProxy(mode, backend)
	if mode == "nftables" {
		c.waitTable("kube-proxy", services)
	} else {
		p.waitLog("SyncProxyRules complete", 2)
	}
	return p
}

// cleanup runs nkp cleanup on the node.
func (c *cluster) cleanup(flags ...string) {
	c.t.Helper()
	bin, err := testbed.NKP()
	if err == nil {
		_, err = c.bed.Node.Exec(c.t.Context(), append([]string{bin, "cleanup", "--socket", c.socket()}, flags...)...)
	}
	must(c.t, err)
}

// waitTable waits until an nftables table of the node leads to the last Service, too.
func (c *cluster) waitTable(name string, services int) {
	c.t.Helper()
	wait.For(c.t, "table "+name+" to lead to the Services", func() bool {
		out, err := c.bed.Node.Exec(c.t.Context(), "nft", "list", "table", "ip", name)
		return err == nil && strings.Contains(out, vip(services-1).String()+" ")
	})
}

// From nkp's iptables mode to nftables and back, by way of a kill in between: no connection fails, held ones stay, and nothing of the
// other mode is left, so that only what is in charge follows the API server.
func TestModeChange(t *testing.T) {
	testbed.Linux.Require(t)
	for _, backend := range []string{"nf_tables", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			const services = 200
			c := newCluster(t, services, 10)
			iptables, nftables := []string{"--mode", "iptables", "--iptables-backend", backend}, []string{"--mode", "nftables"}
			infix := map[string]string{"nf_tables": "-nft", "legacy": "-legacy"}[backend]
			has := func(argv ...string) string {
				out, _ := c.bed.Node.Exec(t.Context(), argv...)
				return out
			}
			nkp := c.startNKPWith(iptables...)
			c.waitInStep()
			f := c.traffic(services)
			for i, mode := range [][]string{nftables, iptables, nftables, iptables} {
				nkp.stop()
				nkp = c.startNKPWith(mode...)
				if i == 2 { // killed before it has removed anything, or after
					f.more()
					_ = nkp.cmd.Process.Kill()
					nkp.stop()
					nkp = c.startNKPWith(mode...)
				}
				c.waitInStep()
				wait.For(t, "the other mode's rules to be removed", func() bool {
					if mode[1] == "nftables" {
						return !strings.Contains(has("iptables"+infix+"-save")+has("ip6tables"+infix+"-save"), "KUBE-SERVICES")
					}
					return !strings.Contains(has("nft", "list", "tables"), "nkp")
				})
				c.inCharge(i)
			}
			f.end()
		})
	}
}
