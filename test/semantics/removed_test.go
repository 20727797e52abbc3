//go:build linux

package semantics

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

func removedEndpoints(policy string) change {
	return func(s *v1.Service) {
		s.Annotations = map[string]string{k8s.AnnotationRemovedEndpoints: policy}
	}
}

// heldConnections are open connections through a Service by the endpoint that answered them.
type heldConnections map[string][]*testbed.Held

// hold opens n connections in turn by each way.
func (c *cluster) hold(n int, ways ...probe) heldConnections {
	c.t.Helper()
	all := heldConnections{}
	for i := 0; i < n; {
		for _, w := range ways {
			for _, to := range w.to.addresses() {
				k, err := w.from.Hold(c.ctx, to.String(), testbed.DialOptions{})
				must(c.t, err)
				all[k.Who] = append(all[k.Who], k)
				i++
			}
		}
	}
	return all
}

// ended checks that all connections of an endpoint end with a reset, those of others not at all.
func (all heldConnections) ended(t *testing.T, who string) {
	t.Helper()
	if len(all[who]) == 0 {
		t.Fatalf("%s has no connection", who)
	}
	deadline := time.Now().Add(wait.Limit)
	for i, k := range all[who] {
		err := k.Check()
		for ; err == nil && time.Now().Before(deadline); err = k.Check() {
			time.Sleep(10 * time.Millisecond)
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("connection %d of %d to %s, %s: %v, want a reset", i, len(all[who]), who, k.Conn().RemoteAddr(), err)
		}
	}
	delete(all, who)
	all.stay(t, "the others")
}

func (all heldConnections) stay(t *testing.T, what string) {
	t.Helper()
	n := 0
	for who, list := range all {
		for _, k := range list {
			if err := k.Check(); err != nil {
				t.Fatalf("%s: a connection to %s by %s: %v", what, who, k.Conn().RemoteAddr(), err)
			}
			n++
		}
	}
	t.Logf("%s: %d connections stay", what, n)
}

// With nkp's annotation removed-endpoints, TCP connections to an endpoint that is removed end with a reset at their next segment,
// and none of the others: at once, after the start if it was removed before, and after a time, across a restart.
func TestRow20RemovedEndpoints(t *testing.T) {
	onEveryPlaneWith(t, setup{needs: ownSettings}, func(t *testing.T, c *cluster) {
		more, err := c.AddPods(testbed.PodSpec{}, testbed.PodSpec{}, testbed.PodSpec{}, testbed.PodSpec{}, testbed.PodSpec{}, testbed.PodSpec{})
		must(t, err)
		hosts := []*testbed.Host{c.here, c.here2, c.there, c.there2}
		for _, p := range more {
			c.listen(p.Host, 8080)
			hosts = append(hosts, p.Host)
		}
		web := c.serve(service("web", clusterIP(1), everywhere(1), removedEndpoints("close")), hosts...)
		kept := c.serve(service("kept", clusterIP(2), everywhere(2)), hosts...)
		wrong := c.serve(service("wrong", clusterIP(3), removedEndpoints("closed")), c.here)
		c.apply()

		cluster, node, external, lb := c.frontends(1)
		all := c.hold(1000, probe{from: c.pod, to: cluster}, probe{from: c.Node, to: cluster}, probe{from: c.External, to: node},
			probe{from: c.pod, to: external}, probe{from: c.External, to: lb})
		cluster, node, _, _ = c.frontends(2)
		others := c.hold(50, probe{from: c.pod, to: cluster}, probe{from: c.External, to: node})
		remove := func(h *testbed.Host) {
			for i := range hosts {
				if hosts[i] == h {
					hosts = append(hosts[:i], hosts[i+1:]...)
					break
				}
			}
			c.endpoints(web, ready(hosts...)...)
			c.endpoints(kept, ready(hosts...)...)
		}

		list := ready(hosts...)
		list[0].notReady, list[0].notServing = true, true
		list[1].terminating = true
		c.endpoints(web, list...)
		c.apply()
		time.Sleep(1500 * time.Millisecond) // longer than an endpoint may take from one slice to another
		all.stay(t, "not ready")

		remove(c.here)
		c.apply()
		all.ended(t, c.here.Name)

		must(t, c.proxy.Stop(syscall.SIGKILL))
		remove(c.there)
		c.start()
		all.ended(t, c.there.Name)

		drain := fmt.Sprintf("drain=%v", wait.Limit/15) // longer than a restart takes
		removedEndpoints(drain)(web)
		c.apply()
		remove(c.here2)
		c.apply()
		all.stay(t, "drain")
		must(t, c.proxy.Stop(syscall.SIGKILL))
		c.start()
		all.stay(t, "drain, and a restart")
		all.ended(t, c.here2.Name)

		others.stay(t, "a Service without the annotation")
		out, _ := c.run(c.bin, "services", "web", "-o", "json", "--socket", c.socket())
		var services struct {
			Services []struct{ Counters k8s.Counters }
		}
		must(t, json.Unmarshal([]byte(out), &services))
		for _, s := range services.Services {
			if s.Counters.Dropped[k8s.DropRemovedEndpoint] == 0 {
				t.Errorf("no segment was reset, so that other endpoints got them: %+v", s.Counters)
			}
		}

		hosts = nil
		c.endpoints(web)
		c.apply()
		for who := range all {
			heldConnections{who: all[who]}.ended(t, who)
		}

		for _, ask := range []struct{ command, want string }{
			{"services web -o wide", "TCP connections to removed endpoints are closed (" + drain + ")"},
			{"services web -o json", `"removedEndpoints": "` + drain + `"`},
			{"status", fmt.Sprintf("Service %s/%s: metadata.annotations[%s]: \"closed\" is neither", wrong.Namespace, wrong.Name,
				k8s.AnnotationRemovedEndpoints)},
			{"status", "1 Service with TCP connections to removed endpoints closed, 0 removed endpoints draining"},
		} {
			argv := append([]string{c.bin}, strings.Fields(ask.command)...)
			if out, _ := c.run(append(argv, "--socket", c.socket())...); !strings.Contains(out, ask.want) {
				t.Errorf("nkp %s does not say %q:\n%s", ask.command, ask.want, tail(out, 3000))
			}
		}
	})
}

// With policy Local and source ranges the connections of the last endpoint of this node end, too.
func TestRow20RemovedLocalEndpoint(t *testing.T) {
	onEveryPlaneWith(t, setup{needs: ownSettings}, func(t *testing.T, c *cluster) {
		s := c.serve(service("local", clusterIP(1), everywhere(1), externalLocal, removedEndpoints("close"),
			sourceRanges(c.External.IP4.String()+"/32", c.External.IP6.String()+"/128")), c.here, c.there)
		c.apply()
		_, node, _, lb := c.frontends(1)
		all := c.hold(20, probe{from: c.External, to: node}, probe{from: c.External, to: lb})
		c.endpoints(s, ready(c.there)...)
		c.apply()
		all.ended(t, c.here.Name)
	})
}

// Connections to an endpoint that was removed and has come back stay, although entries to it are deleted once more later.
func TestRow20RemovedEndpointComesBack(t *testing.T) {
	onEveryPlaneWith(t, setup{needs: ownSettings}, func(t *testing.T, c *cluster) {
		s := c.serve(service("back", clusterIP(1), removedEndpoints("close")), c.here, c.there)
		c.apply()
		time.Sleep(4 * time.Second) // nothing is to be deleted any more
		cluster, _, _, _ := c.frontends(1)
		c.endpoints(s, ready(c.there)...)
		c.apply()
		time.Sleep(1500 * time.Millisecond)
		c.endpoints(s, ready(c.here)...)
		c.apply()
		all := c.hold(8, probe{from: c.pod, to: cluster})
		time.Sleep(3 * time.Second)
		all.stay(t, "back")
	})
}
