package e2e

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
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
func newStory(t *testing.T) (c *cluster, client *testbed.Pod, web []*testbed.Pod, other *testbed.Pod) {
	t.Helper()
	c = newCluster(t, layout{})
	pods, err := c.AddPods(testbed.PodSpec{}, testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	remotes, err := c.AddRemotePods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	client, web, other = pods[0], []*testbed.Pod{pods[1], pods[2], remotes[0]}, remotes[1]
	for _, p := range web {
		c.createPod(p, "web")
	}
	c.createPod(other, "other")
	c.createService("web", "web", 10)
	c.createService("other", "other", 20)
	c.startAgent()
	c.eventually("web is served", func() error { return c.answers(client.Host, web4, web...) })
	c.eventually("other is served", func() error { return c.answers(client.Host, other4, other) })
	return c, client, web, other
}

// Objects of a real API server, with slices of the real controller, are served and followed.
func TestFollowsTheAPIServer(t *testing.T) {
	c, client, web, other := newStory(t)
	c.eventually("web is served over IPv6", func() error { return c.answers(client.Host, web6, web...) })
	c.eventually("web is served from outside", func() error { return c.answers(c.External, webOnNode, web...) })
	c.eventually("web is served from outside over IPv6", func() error { return c.answers(c.External, webOnNodeIP6, web...) })
	must(t, has(c.status(), serverURL+": synced", "the switch holds what it should"))
	must(t, c.fails(client.Host, "40.0.0.99:80", testbed.ErrTimeout)) // in the ServiceCIDR that the server has, and nobody's

	out, status := c.diff()
	if status != 0 {
		t.Errorf("nkp diff ends with %d: %s", status, out)
	}
	out, _ = c.nkp(append([]string{"plan", "-o", "json"}, c.flags()...)...)
	must(t, has(out, `"name": "web"`, `"address": "fd00:40::a"`, `"10.0.0.12:8080"`))

	c.deletePod(web[0])
	c.eventually("a pod that is gone is not asked any more", func() error { return c.answers(client.Host, web4, web[1:]...) })
	c.deletePod(web[1])
	c.deletePod(web[2])
	c.eventually("without pods it refuses", func() error { return c.fails(client.Host, web4, testbed.ErrRefused) })
	c.createPod(client, "web")
	c.eventually("a new pod is asked", func() error { return c.answers(web[0].Host, web4, client) })

	c.label("other", proxyLabel, `"somebody"`)
	c.eventually("a Service of another proxy is not served", func() error { return c.fails(client.Host, other4, testbed.ErrTimeout) })
	c.label("other", proxyLabel, "null")
	c.eventually("it is served again", func() error { return c.answers(client.Host, other4, other) })
	c.deleteService("other")
	c.eventually("a deleted Service is gone", func() error { return c.fails(client.Host, other4, testbed.ErrTimeout) })
}

// Services that come and go, with their pods and with slices of the real controller, cause no warning in the log.
func TestOrdinaryChangesAreNoWarnings(t *testing.T) {
	c, client, _, other := newStory(t)
	const services = 30
	for i := range services {
		c.createService(fmt.Sprint("passing-", i), "other", 100+i)
	}
	last := fmt.Sprintf("40.0.0.%d:80", 100+services-1)
	c.eventually("the last Service is served", func() error { return c.answers(client.Host, last, other) })
	for i := range services {
		c.deleteService(fmt.Sprint("passing-", i))
	}
	c.eventually("the last Service is gone", func() error { return c.fails(client.Host, last, testbed.ErrTimeout) })
	for i := range services { // in a cluster the garbage collector does this
		must(t, c.client.DiscoveryV1().EndpointSlices("default").DeleteCollection(c.ctx, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: fmt.Sprint("kubernetes.io/service-name=passing-", i)}))
	}
	c.eventually("no slice is left over", func() error { return hasNot(c.status(), "passing-") })
	warnings := 0
	for line := range strings.Lines(c.agent.Log.String()) {
		if strings.Contains(line, "level=WARN") {
			warnings++
			if warnings <= 5 {
				t.Error(line)
			}
		}
	}
	if warnings > 0 {
		t.Errorf("%d warnings for %d Services that came and went", warnings, services)
	}
}
