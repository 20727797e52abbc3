package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// newWaitStory starts two nodes with nkp, three pods of the Service web on each, and a client.
func newWaitStory(t *testing.T) (c *cluster, clients [2]*testbed.Pod, web [2][]webPod) {
	t.Helper()
	spec := func(name string, n int) nodeSpec {
		return nodeSpec{name, testbed.Options{Standalone: true, IPv4: testbed.Addressing{
			Node: netip.MustParseAddr(fmt.Sprint("192.168.3.", 10+n)), Remote: netip.MustParseAddr(fmt.Sprint("192.168.3.", 20+n)),
			Pods: netip.MustParsePrefix(fmt.Sprintf("172.18.%d.0/24", n)), RemotePods: netip.MustParsePrefix(fmt.Sprintf("172.18.%d.0/24", 10+n)),
		}}}
	}
	c = newCluster(t, layout{
		nodes:       []nodeSpec{spec("one", 1), spec("two", 2)},
		serviceCIDR: "172.16.0.0/16", clusterCIDR: "172.18.0.0/16",
	})
	_, err := c.client.CoreV1().Services("default").Create(c.ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1.ServiceSpec{Selector: map[string]string{"app": "web"}, ClusterIP: "172.16.0.10",
			Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(targetPort)}}},
	}, metav1.CreateOptions{})
	must(t, err)
	for i, n := range c.nodes {
		var err error
		clients[i], err = n.AddPod(testbed.PodSpec{Name: fmt.Sprint("client-", i), NoIPv6: true})
		must(t, err)
		for j := range 3 {
			web[i] = append(web[i], c.addWeb(n, fmt.Sprintf("web-%d-%d", i, j)))
		}
		n.startAgent()
		c.startKubelet(n.name, n.Node, n.socket())
	}
	for _, client := range clients {
		c.eventually("web is served", func() error {
			return c.answers(client.Host, "172.16.0.10:80", podsOf(web)...)
		})
	}
	return c, clients, web
}

// webPod is a pod of the Service web, and the process in it.
type webPod struct {
	*testbed.Pod
	server *testbed.Server
}

func podsOf(web [2][]webPod) (pods []*testbed.Pod) {
	for _, p := range slices.Concat(web[0], web[1]) {
		pods = append(pods, p.Pod)
	}
	return pods
}

// addWeb adds a pod of the Service web to a node.
func (c *cluster) addWeb(n *node, name string) webPod {
	c.t.Helper()
	p, err := n.AddPod(testbed.PodSpec{Name: name, NoIPv6: true})
	must(c.t, err)
	return webPod{p, c.createPodOn(n.name, p, map[string]string{"app": "web"}, targetPort)}
}

// takeOut changes the label of a pod so that no Service has it.
func (c *cluster) takeOut(p webPod) {
	c.t.Helper()
	_, err := c.client.CoreV1().Pods("default").Patch(c.ctx, p.Name, types.MergePatchType,
		[]byte(`{"metadata": {"labels": {"app": "none"}}}`), metav1.PatchOptions{})
	must(c.t, err)
}

// kubectl nkp wait does not return before all nodes have the Service's EndpointSlices in force: not while an agent does not
// run, nor while a switch does not. A pod that was taken out of them and waited for is deleted without a failed connection.
func TestWait(t *testing.T) {
	t.Parallel()
	c, clients, web := newWaitStory(t)
	one, two := c.nodes[0], c.nodes[1]
	const vip = "172.16.0.10:80"

	out, errOut, status := c.plugin("wait", "svc/web")
	if status != 0 || has(out, "svc/default/web with 1 EndpointSlice is in force on 2 nodes") != nil {
		t.Fatalf("wait: %d, %s%s", status, out, errOut)
	}
	out, _, _ = c.plugin("services", "web", "-o", "json")
	list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
	must(t, err)
	must(t, has(out, fmt.Sprintf("%q: %q", list.Items[0].Name, list.Items[0].ResourceVersion)))
	out, errOut, status = c.plugin("wait", "svc/default/wbe")
	if status != 2 || has(errOut, `"wbe" not found`) != nil {
		t.Errorf("wait for a Service that is not there: %d, %s%s", status, out, errOut)
	}

	must(t, two.agent.Freeze())
	c.takeOut(web[0][0])
	out, errOut, status = c.plugin("wait", "svc/web", "--without", web[0][0].Name, "--timeout", "5s")
	if status != 1 || has(errOut, "two: ", "svc/default/web is not in force on 1 node of 2 after 5s: two") != nil {
		t.Errorf("wait while an agent is frozen: %d, %s%s", status, out, errOut)
	}
	must(t, two.agent.Thaw())
	if out, errOut, status = c.plugin("wait", "svc/web"); status != 0 {
		t.Errorf("wait once it goes on: %d, %s%s", status, out, errOut)
	}

	must(t, one.PauseVswitchd(true))
	c.takeOut(web[0][1])
	out, errOut, status = c.plugin("wait", "svc/web", "--node", "one", "--without", web[0][1].Name, "--timeout", "5s")
	if status != 1 || has(errOut, "one: ", "ovs-vswitchd has not answered") != nil {
		t.Errorf("wait while a switch is frozen: %d, %s%s", status, out, errOut)
	}
	must(t, one.PauseVswitchd(false))
	if out, errOut, status = c.plugin("wait", "svc/web"); status != 0 {
		t.Errorf("wait once it goes on: %d, %s%s", status, out, errOut)
	}

	web[0] = []webPod{web[0][2], c.addWeb(one, "web-0-3")}
	c.replaceWeb(clients, web, vip)
}

// replaceWeb replaces one pod after the other while clients of both nodes ask the Service. Each time the agent of one node learns
// of it late.
func (c *cluster) replaceWeb(clients [2]*testbed.Pod, web [2][]webPod, vip string) {
	c.t.Helper()
	var asking []*client
	for range nightly.Count(1, 6) {
		asking = append(asking, c.ask(clients[0].Host, vip), c.ask(clients[1].Host, vip))
	}
	asked := func() (n int) {
		for _, k := range asking {
			n += k.count()
		}
		return n
	}

	rounds, need := 0, nightly.Count(300, 20_000)
	for ; asked() < need || rounds < 4; rounds++ {
		at := rounds % 2
		old := web[at][len(web[at])-1]
		late := c.nodes[(rounds/2)%2].agent
		must(c.t, late.Freeze())
		c.takeOut(old)
		thawed := make(chan error, 1)
		time.AfterFunc(time.Second, func() { thawed <- late.Thaw() })
		if out, errOut, status := c.plugin("wait", "svc/web", "--without", "pod/"+old.Name); status != 0 {
			c.t.Fatalf("wait: %d, %s%s", status, out, errOut)
		}
		must(c.t, old.server.Close()) // a connection that comes now is refused
		must(c.t, <-thawed)
		must(c.t, c.nodes[at].RemovePod(old.Pod))
		c.deletePod(old.Pod)
		delete(c.serving, old.Pod)
		web[at][len(web[at])-1] = c.addWeb(c.nodes[at], fmt.Sprintf("web-%d-%d", at, 10+rounds))
		c.eventually("the new pod is asked", func() error { return c.answers(clients[at].Host, vip, podsOf(web)...) })
	}

	total := 0
	for _, k := range asking {
		n, err := k.end()
		total += n
		if err != nil {
			c.t.Error(err)
		}
	}
	c.t.Logf("%d connections while %d pods were replaced", total, rounds)
}
