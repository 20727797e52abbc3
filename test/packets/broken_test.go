//go:build linux

package packets

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/testbed"
)

// broken is a situation in which a connection does not come about, and what names the cause.
type broken struct {
	name string
	// breaks brings the situation about, on a cluster whose Service default/web at 40.0.0.1:80 works.
	breaks func(t *testing.T, c *cluster, web *v1.Service)
	// from and to are the connection that fails.
	from func(c *cluster) *testbed.Host
	to   string
	// live: trace is asked to look at the switch, too.
	live bool
	// What the commands must say, as regular expressions; "" where they have nothing to say about it.
	status, services, trace string
}

func aPod(c *cluster) *testbed.Host    { return c.pods[1].Host }
func outsider(c *cluster) *testbed.Host { return c.External }

// For what commonly goes wrong with a Service, the commands name the cause: docs/runbook.md goes by these words. That an
// API server does not answer is tested where there is one, in test/e2e.
func TestBrokenSituations(t *testing.T) {
	for _, b := range []broken{
		{
			name: "wrong endpoint port",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.put(slice(web, 9999, at(c.pods[0].IP4)))
			},
			from: aPod, to: "40.0.0.1:80",
		},
		{
			name: "no endpoint has the port's name",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				s := slice(web, 8080, at(c.pods[0].IP4))
				name := "https"
				s.Ports[0].Name = &name
				c.put(s)
			},
			from: aPod, to: "40.0.0.1:80",
		},
		{
			name: "no endpoint",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.put(slice(web, 8080, endpointWith(at(c.pods[0].IP4), notReady)))
			},
			from: aPod, to: "40.0.0.1:80",
		},
		{
			name: "policy Local on the wrong node",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				exposed(30080)(web)
				externalLocal(web)
				c.put(web, slice(web, 8080, at(c.remotes[0].IP4)))
			},
			from: outsider, to: hostPort(testbed.NodeIP4, 30080),
		},
		{
			name: "source range excludes the client",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				loadBalancer("50.0.0.1")(web)
				web.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
				c.put(web)
			},
			from: outsider, to: "50.0.0.1:80",
		},
		{
			name: "ipMode Proxy",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				loadBalancer("50.0.0.1", proxyMode)(web)
				c.put(web)
			},
			from: outsider, to: "50.0.0.1:80",
		},
		{
			name: "port taken on the node",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				var l net.Listener
				must(t, c.Node.Do(func() (err error) { l, err = net.Listen("tcp", ":30080"); return err }))
				t.Cleanup(func() { l.Close() })
				exposed(30080)(web)
				c.put(web)
			},
			from: outsider, to: hostPort(testbed.NodeIP4, 30080),
		},
		{
			name: "another Service at the same address",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				older := service("older", "40.0.0.2", func(s *v1.Service) { s.Spec.ExternalIPs = []string{"50.0.0.9"} })
				web.Spec.ExternalIPs = []string{"50.0.0.9"}
				web.CreationTimestamp.Time = time.Now()
				c.put(older, web)
			},
			from: outsider, to: "50.0.0.9:80",
		},
		{
			name: "flow deleted by hand",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Ofctl("del-flows", c.Bridge, "table=1,tcp,nw_dst=40.0.0.1,tp_dst=80")
				must(t, err)
			},
			from: aPod, to: "40.0.0.1:80", live: true,
		},
		{
			name: "bridge gone",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Vsctl("del-br", c.Bridge)
				must(t, err)
			},
			from: aPod, to: "40.0.0.1:80", live: true,
		},
	} {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, testbed.Options{})
			web := service("web", "40.0.0.1")
			c.put(web, slice(web, 8080, at(c.pods[0].IP4)))
			c.runWith("--ovs-wait", "10s", "--audit-period", "1h")
			c.settle()
			c.exposeControl(t)
			b.breaks(t, c, web); time.Sleep(3*time.Second)
			b.check(t, c)
		})
	}
}

// check waits until all three commands say what they must.
func (b *broken) check(t *testing.T, c *cluster) {
	t.Helper()
	trace := []string{"trace", "--from", b.from(c).IP(testbed.NodeIP4).String(), "--to", b.to}
	if b.live {
		trace = append(trace, "--live", "--ovsdb", c.DB(), "--bridge", c.Bridge)
	}
	for _, q := range []struct {
		want string
		args []string
	}{
		{b.status, []string{"status"}},
		{b.services, []string{"services", "default/web", "-o", "wide"}},
		{b.trace, trace},
	} {
		deadline := time.Now().Add(settleLimit)
		for {
			out, errOut, _ := c.nkp(append(q.args, "--socket", c.socket())...)
			if regexp.MustCompile(q.want).MatchString(out + errOut) {
				t.Logf("%s", out+errOut)
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("nkp %s does not say %q:\n%s%s", strings.Join(q.args, " "), q.want, out, errOut)
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	_ = fmt.Sprint
	_ = filepath.Join
}
