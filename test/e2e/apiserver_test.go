package e2e

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/testbed"
)

const (
	web4, web6   = "40.0.0.10:80", "[fd00:40::a]:80"
	other4       = "40.0.0.20:80"
	late4        = "40.0.0.30:80"
	proxyLabel   = "service.kubernetes.io/service-proxy-name"
	serverURL    = "API server https://127.0.0.1:6443"
	webOnNode    = "172.16.0.2:30010"
	webOnNodeIP6 = "[fd00:ac::2]:30010"
)

// newStory starts a cluster whose API knows: Service web with the pods 0 to 2 of web, Service other with one pod, and nkp
// serves them. Pod 0 is the client.
func newStory(t *testing.T) (c *cluster, client *testbed.Host, web []*testbed.Pod, other *testbed.Pod) {
	t.Helper()
	c = newCluster(t)
	c.createNodes()
	client, web, other = c.pods[0].Host, []*testbed.Pod{c.pods[1], c.pods[2], c.remotes[0]}, c.remotes[1]
	for _, p := range web {
		c.createPod(p, "web")
	}
	c.createPod(other, "other")
	c.createService("web", "web", 10)
	c.createService("other", "other", 20)
	c.startAgent()
	c.eventually("web is served", func() error { return c.answers(client, web4, web...) })
	c.eventually("other is served", func() error { return c.answers(client, other4, other) })
	return c, client, web, other
}

// Objects of a real API server, with slices of the real controller, are served and followed.
func TestFollowsTheAPIServer(t *testing.T) {
	c, client, web, other := newStory(t)
	c.eventually("web is served over IPv6", func() error { return c.answers(client, web6, web...) })
	c.eventually("web is served from outside", func() error { return c.answers(c.External, webOnNode, web...) })
	c.eventually("web is served from outside over IPv6", func() error { return c.answers(c.External, webOnNodeIP6, web...) })
	must(t, has(c.status(), serverURL+": synced", "the switch holds what it should"))
	must(t, c.fails(client, "40.0.0.99:80", testbed.ErrTimeout)) // in the ServiceCIDR that the server has, and nobody's

	out, status := c.nkp(append([]string{"diff"}, c.flags()...)...)
	if status != 0 {
		t.Errorf("nkp diff ends with %d: %s", status, out)
	}
	out, _ = c.nkp(append([]string{"plan", "-o", "json"}, c.flags()...)...)
	must(t, has(out, `"name": "web"`, `"address": "fd00:40::a"`, `"10.0.0.12:8080"`))

	c.deletePod(web[0])
	c.eventually("a pod that is gone is not asked any more", func() error { return c.answers(client, web4, web[1:]...) })
	c.deletePod(web[1])
	c.deletePod(web[2])
	c.eventually("without pods it refuses", func() error { return c.fails(client, web4, testbed.ErrRefused) })
	c.createPod(c.pods[0], "web")
	c.eventually("a new pod is asked", func() error { return c.answers(c.pods[1].Host, web4, c.pods[0]) })

	c.label("other", proxyLabel, `"somebody"`)
	c.eventually("a Service of another proxy is not served", func() error { return c.fails(client, other4, testbed.ErrTimeout) })
	c.label("other", proxyLabel, "null")
	c.eventually("it is served again", func() error { return c.answers(client, other4, other) })
	c.deleteService("other")
	c.eventually("a deleted Service is gone", func() error { return c.fails(client, other4, testbed.ErrTimeout) })
}

// While the API server is away, and while nkp starts without it, everything stays as it was. Once it is back, changes are
// taken up.
func TestAPIServerAway(t *testing.T) {
	c, client, web, other := newStory(t)
	served := func() {
		t.Helper()
		must(t, errors.Join(c.answers(client, web4, web...), c.answers(client, other4, other)))
	}
	c.server.kill()
	c.eventually("status tells that the server is away", func() error {
		return has(c.status(), serverURL+": does NOT answer", "ERROR", serverURL+": dial tcp 127.0.0.1:6443: connect: connection refused")
	})
	served()

	c.agent.kill()
	served()
	c.startAgent()
	c.eventually("nkp runs again and waits", func() error {
		return has(c.status(), serverURL+": NOT synced yet", "connection refused")
	})
	served()

	c.startServer()
	c.eventually("nkp follows the server again", func() error { return has(c.status(), serverURL+": synced") })
	served()
	c.createService("late", "web", 30)
	c.eventually("a new Service is served", func() error { return c.answers(client, late4, web...) })
}

// What happened while nkp could not look, and is forgotten when it looks again, is found out: nkp has lost its
// connection and stands still, objects change, and the server comes back without their history.
func TestHistoryLost(t *testing.T) {
	c, client, web, other := newStory(t)
	c.server.kill()
	c.eventually("status tells that the server is away", func() error { return has(c.status(), "does NOT answer") })
	must(t, c.agent.cmd.Process.Signal(syscall.SIGSTOP)) // it cannot connect, so nothing waits for it in a socket
	c.startServer()
	c.deletePod(web[0])
	c.deleteService("other")
	c.createService("late", "web", 30)
	c.eventually("the slices are up to date", func() error { return c.slicesWithout(web[0]) })
	c.server.kill()
	c.startServer()
	must(t, errors.Join(c.answers(client, web4, web...), c.answers(client, other4, other)))
	must(t, c.agent.cmd.Process.Signal(syscall.SIGCONT))
	c.eventually("a new Service is served", func() error { return c.answers(client, late4, web[1:]...) })
	c.eventually("a deleted Service is gone", func() error { return c.fails(client, other4, testbed.ErrTimeout) })
	c.eventually("a pod that is gone is not asked any more", func() error { return c.answers(client, web4, web[1:]...) })
	c.eventually("all is well", func() error { return has(c.status(), serverURL+": synced") })
}

// nkp killed and started again goes on where the API server is now, and no connection fails meanwhile.
func TestKilledAndRestarted(t *testing.T) {
	c, client, web, other := newStory(t)
	stop, result := make(chan struct{}), make(chan error, 1)
	go func() { // ends with stop
		for {
			select {
			case <-stop:
				result <- nil
				return
			default:
			}
			if _, err := client.AskWith(c.ctx, "tcp", web4, testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}}); err != nil {
				result <- err
				return
			}
		}
	}()
	c.agent.kill()
	c.deleteService("other")
	c.createService("late", "other", 30)
	time.Sleep(200 * time.Millisecond)
	c.startAgent()
	c.eventually("a new Service is served", func() error { return c.answers(client, late4, other) })
	c.eventually("a deleted Service is gone", func() error { return c.fails(client, other4, testbed.ErrTimeout) })
	close(stop)
	must(t, <-result)
	must(t, c.answers(client, web4, web...))
}
