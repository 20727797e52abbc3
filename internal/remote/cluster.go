package remote

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Cluster is a cluster as its API server shows it. It is safe for concurrent use.
type Cluster struct {
	config              *rest.Config
	client              kubernetes.Interface
	namespace, selector string
}

// New returns the cluster behind config. nkp's pods are those in namespace that match the label selector.
func New(config *rest.Config, namespace, selector string) (*Cluster, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{config, client, namespace, selector}, nil
}

// Agents returns nkp's agents, one of each node that has a pod of nkp's, sorted by the node's name; of one
// node, unless it is "". No pod at all is an error.
func (c *Cluster) Agents(ctx context.Context, node string) ([]*Agent, error) {
	pods, err := c.pods(ctx, node)
	switch {
	case err != nil:
		return nil, err
	case len(pods) == 0 && node != "":
		return nil, fmt.Errorf("node %s has no pod labelled %s in namespace %s",
			node, c.selector, c.namespace)
	case len(pods) == 0:
		return nil, fmt.Errorf("namespace %s has no pod labelled %s: "+
			"is nkp installed elsewhere (--nkp-namespace, --nkp-selector)?",
			c.namespace, c.selector)
	}
	var agents []*Agent
	for i := range pods {
		if last := len(agents) - 1; last < 0 || agents[last].Node != pods[i].Spec.NodeName {
			agents = append(agents, c.agent(&pods[i]))
		}
	}
	return agents, nil
}

// pods returns nkp's pods that are assigned to a node, or to any, sorted by node. Of one node the pod that
// runs comes first.
func (c *Cluster) pods(ctx context.Context, node string) ([]v1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: c.selector}
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	list, err := c.client.CoreV1().Pods(c.namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	pods := slices.DeleteFunc(list.Items, func(p v1.Pod) bool { return p.Spec.NodeName == "" })
	slices.SortFunc(pods, func(a, b v1.Pod) int {
		return cmp.Or(strings.Compare(a.Spec.NodeName, b.Spec.NodeName),
			rank(&a)-rank(&b), strings.Compare(a.Name, b.Name))
	})
	return pods, nil
}

// rank is 0 for a pod that runs and stays, 1 for one that ends, and 2 for any other.
func rank(p *v1.Pod) int {
	switch {
	case p.Status.Phase != v1.PodRunning:
		return 2
	case p.DeletionTimestamp != nil:
		return 1
	}
	return 0
}

// Nodes returns the names of all nodes, sorted.
func (c *Cluster) Nodes(ctx context.Context) (names []string, err error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	slices.Sort(names)
	return names, nil
}

// Pod returns the node of a pod and the pod's addresses.
func (c *Cluster) Pod(
	ctx context.Context, namespace, name string,
) (node string, addresses []netip.Addr, err error) {
	pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", nil, err
	}
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			addresses = append(addresses, addr.Unmap())
		}
	}
	if pod.Spec.NodeName == "" || len(addresses) == 0 {
		return "", nil, fmt.Errorf("pod %s/%s has no node or no address yet (%s)",
			namespace, name, pod.Status.Phase)
	}
	return pod.Spec.NodeName, addresses, nil
}

// NodeOf returns the node whose address, or the address of a pod on which, addr is; "": none has it.
func (c *Cluster) NodeOf(ctx context.Context, addr netip.Addr) (node string, err error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for i := range nodes.Items {
		for _, a := range nodes.Items[i].Status.Addresses {
			if a.Address == addr.String() {
				return nodes.Items[i].Name, nil
			}
		}
	}
	// The API server selects by the first address of a pod; the second of a dual-stack pod is not found.
	atAddress := fields.OneTermEqualSelector("status.podIP", addr.String()).String()
	pods, err := c.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: atAddress})
	if err != nil {
		return "", err
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.Phase == v1.PodRunning {
			return p.Spec.NodeName, nil
		}
	}
	return "", nil
}

// Service returns a Service.
func (c *Cluster) Service(ctx context.Context, namespace, name string) (*v1.Service, error) {
	return c.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Slices returns the EndpointSlices of a Service that agents follow.
func (c *Cluster) Slices(
	ctx context.Context, namespace, service string,
) (*discoveryv1.EndpointSliceList, error) {
	return c.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service + ",!" + v1.IsHeadlessService,
	})
}
