package e2e

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const targetPort = 8080

// createNodes tells the API about the nodes. The usual bed's second node, on which no nkp runs, is one of them.
func (c *cluster) createNodes() {
	c.t.Helper()
	for _, n := range c.nodes {
		c.createNode(n.name, n.Node)
	}
	if len(c.nodes) == 1 {
		c.createNode(otherNode, c.Remote)
	}
}

func (c *cluster) createNode(name string, h *testbed.Host) {
	c.t.Helper()
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelTopologyZone: "zone-a"}}}
	addrs := []netip.Addr{h.IP4}
	if len(c.nodes) == 1 { // IPv6 is not joined
		addrs = append(addrs, h.IP6)
	}
	for _, a := range addrs {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a.String()})
	}
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	_, err := c.client.CoreV1().Nodes().Create(c.ctx, n, metav1.CreateOptions{})
	must(c.t, err)
}

// createPod tells the API about a pod with the label app, as its kubelet would, and has it serve.
func (c *cluster) createPod(p *testbed.Pod, app string) {
	c.t.Helper()
	node := nodeName
	if !p.Local {
		node = otherNode
	}
	c.createPodOn(node, p, map[string]string{"app": app}, targetPort)
}

// createPodOn tells the API about a pod of a node, as its kubelet would, and has it serve on a port.
func (c *cluster) createPodOn(node string, p *testbed.Pod, labels map[string]string, port int) *testbed.Server {
	c.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: "default", Labels: labels},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c", Image: "none"}}},
	}
	created, err := c.client.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
	must(c.t, err)
	created.Status = v1.PodStatus{
		Phase: v1.PodRunning, PodIP: p.IP4.String(), PodIPs: []v1.PodIP{{IP: p.IP4.String()}},
		Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now()}},
	}
	if p.IP6.IsValid() {
		created.Status.PodIPs = append(created.Status.PodIPs, v1.PodIP{IP: p.IP6.String()})
	}
	server, err := p.ServeTCP(port) // it serves before it is ready
	must(c.t, err)
	c.serving[p] = uint16(port)
	_, err = c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, created, metav1.UpdateOptions{})
	must(c.t, err)
	return server
}

// deletePod takes a pod from the API, as its kubelet would at the end. In the bed it goes on serving: who still asks it is seen.
func (c *cluster) deletePod(p *testbed.Pod) {
	c.t.Helper()
	now := int64(0)
	must(c.t, c.client.CoreV1().Pods("default").Delete(c.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

// createService makes a dual-stack Service of type NodePort for the pods of an app, at 40.0.0.N and fd00:40::N, node port 30000+N.
func (c *cluster) createService(name, app string, n int) {
	c.t.Helper()
	policy := v1.IPFamilyPolicyRequireDualStack
	ip4, ip6 := fmt.Sprint("40.0.0.", n), fmt.Sprintf("fd00:40::%x", n)
	_, err := c.client.CoreV1().Services("default").Create(c.ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeNodePort, Selector: map[string]string{"app": app}, IPFamilyPolicy: &policy,
			ClusterIP: ip4, ClusterIPs: []string{ip4, ip6},
			Ports: []v1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(targetPort), NodePort: int32(30000 + n)}},
		},
	}, metav1.CreateOptions{})
	must(c.t, err)
}

// label puts a label on a Service; "null" takes it off.
func (c *cluster) label(service, key, value string) {
	c.t.Helper()
	patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}}`, key, value)
	_, err := c.client.CoreV1().Services("default").Patch(c.ctx, service, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(c.t, err)
}

func (c *cluster) deleteService(name string) {
	c.t.Helper()
	must(c.t, c.client.CoreV1().Services("default").Delete(c.ctx, name, metav1.DeleteOptions{}))
}

// slicesWithout fails while some EndpointSlice holds the pod.
func (c *cluster) slicesWithout(p *testbed.Pod) error {
	list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Addresses[0] == p.IP4.String() || e.Addresses[0] == p.IP6.String() {
				return fmt.Errorf("slice %s has %s", s.Name, p.Name)
			}
		}
	}
	return nil
}
