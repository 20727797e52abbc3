package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// eventsOf returns the Events that "kubectl describe" would show with an object.
func (c *cluster) eventsOf(o runtime.Object) ([]v1.Event, error) {
	list, err := c.client.CoreV1().Events(metav1.NamespaceAll).SearchWithContext(c.ctx, scheme.Scheme, o)
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// event fails while an object has no Event with this type, reason and part of the text, from nkp.
func (c *cluster) event(o runtime.Object, typ, reason, text string) error {
	list, err := c.eventsOf(o)
	if err != nil {
		return err
	}
	var all []string
	for _, e := range list {
		if e.Type == typ && e.Reason == reason && strings.Contains(e.Message, text) && e.ReportingController != "" {
			return nil
		}
		all = append(all, fmt.Sprintf("%s %s from %q: %s", e.Type, e.Reason, e.ReportingController, e.Message))
	}
	return fmt.Errorf("no Event %s %s %q among %q", typ, reason, text, all)
}

// A process of the node holds a NodePort: whoever looks at the Service, or asks nkp, is told; the Service is served.
func TestTakenPort(t *testing.T) {
	t.Parallel()
	c := newCluster(t, layout{})
	pods, err := c.AddPods(testbed.PodSpec{})
	must(t, err)
	taken, err := c.Node.ServeTCP(30010)
	must(t, err)
	c.createPod(pods[0], "web")
	c.createService("web", "web", 10)
	c.startAgent()
	c.eventually("the NodePort is served by the Service", func() error { return c.answers(c.External, webOnNode, pods[0]) })

	web, err := c.client.CoreV1().Services("default").Get(c.ctx, "web", metav1.GetOptions{})
	must(t, err)
	const text = "NodePort 30010/TCP of default/web:http is also listened on by e2e.test"
	c.eventually("the Service has an Event", func() error { return c.event(web, v1.EventTypeWarning, "PortInUse", nodeName+": "+text) })
	must(t, has(c.status(), "WARNING", text))

	node, err := c.client.CoreV1().Nodes().Get(c.ctx, nodeName, metav1.GetOptions{})
	must(t, err)
	node.UID = types.UID(node.Name) // as the kubelet has it, and "kubectl describe" looks for
	c.eventually("the Node has an Event", func() error { return c.event(node, v1.EventTypeNormal, "Starting", "nkp ") })
	c.eventually("the Node has an Event about the mode that nkp chose", func() error {
		return c.event(node, v1.EventTypeNormal, "KubeProxyDefaultMode", "nkp chose ovs")
	})

	must(t, taken.Close())
	c.eventually("status takes it back", func() error { return hasNot(c.status(), text) }) // nkp looks every 30 s
	must(t, c.answers(c.External, webOnNode, pods[0]))
}
