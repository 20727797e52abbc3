//go:build linux

package fallback

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

const (
	nodeName   = "node"
	apiAddress = "127.0.0.1:16443" // on the node
)

// cluster is a bed with an API server on its node. All Services have the same pods, each under a port of its own.
type cluster struct {
	t          testing.TB
	bed        *testbed.Bed
	pods       []*testbed.Pod
	clients    []*testbed.Host // of traffic; the first two are no pods
	api        *api
	url        string
	kubeconfig string
	lock       string // of the legacy back end
}

// newCluster makes a cluster without a bridge, with a number of Services, each with all pods for endpoints.
func newCluster(t testing.TB, services, pods int) *cluster {
	t.Helper()
	c := newClusterIn(t, testbed.Options{Plane: testbed.Linux}, services, pods)
	c.clients = append(c.clients, c.pods[0].Host, c.pods[1].Host)
	return c
}

// newClusterIn makes a cluster in a bed of any kind. Its clients are a host outside and the node.
func newClusterIn(t testing.TB, o testbed.Options, services, pods int) *cluster {
	t.Helper()
	b := testbed.Start(t, o)
	c := &cluster{t: t, bed: b, api: newAPI(), url: "http://" + apiAddress, lock: filepath.Join(b.RunDir, "xtables.lock"),
		clients: []*testbed.Host{b.External, b.Node}}
	must(t, b.Router.AddRoute(netip.PrefixFrom(vip(0), 8).Masked(), testbed.NodeIP4, b.RouterDevice()))
	var err error
	if c.pods, err = b.AddPods(make([]testbed.PodSpec, pods)...); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.pods {
		if _, err := p.ServeTCP(80); err != nil {
			t.Fatal(err)
		}
	}
	c.api.node(v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
		{Type: v1.NodeInternalIP, Address: testbed.NodeIP4.String()}}}})
	for i := range services {
		c.api.service(serviceObject(i))
		c.api.slice(c.sliceObject(i, c.pods...))
	}
	l, err := b.Node.Listen(apiAddress)
	must(t, err)
	server := &http.Server{Handler: c.api, ReadHeaderTimeout: wait.Limit}
	go func() { _ = server.Serve(l) }() // ended by Close
	t.Cleanup(func() { _ = server.Close() })
	c.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
 "clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}]}`, c.url)
	must(t, os.WriteFile(c.kubeconfig, []byte(text), 0o600))
	return c
}

func name(i int) string { return fmt.Sprintf("service-%d", i) }

// vip is the ClusterIP of Service i.
func vip(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{40, 1 + byte(i>>16), byte(i >> 8), byte(i)})
}

// serviceObject is Service i, as an API server gives it; every tenth of the first 10,000 has a NodePort.
func serviceObject(i int) v1.Service {
	cluster := v1.ServiceInternalTrafficPolicyCluster
	s := v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name(i), Namespace: "default"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: vip(i).String(), ClusterIPs: []string{vip(i).String()},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol}, InternalTrafficPolicy: &cluster, SessionAffinity: v1.ServiceAffinityNone,
			Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP, TargetPort: intstr.FromInt32(80)}},
		},
	}
	if i%10 == 0 && i < 10_000 {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, v1.ServiceExternalTrafficPolicyCluster, int32(nodePort(i))
	}
	return s
}

func nodePort(i int) int { return 30000 + i/10 }

func (c *cluster) sliceObject(i int, pods ...*testbed.Pod) discoveryv1.EndpointSlice {
	port, protocol, portName, node, ready := int32(80), v1.ProtocolTCP, "http", nodeName, true
	s := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name(i), Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: name(i)}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
	}
	for _, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{p.IP4.String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}

// reach waits until Service i is answered by the pod of that name ("": any). It asks from a host that asks nothing else: connections
// that were tried before a Service was there stay known to the node for minutes.
func (c *cluster) reach(i int, pod string) {
	c.t.Helper()
	c.reachOften(i, pod, 1)
}

// follows waits until Service i is answered by one pod alone, of all that served it before: none of them answers that often by chance.
func (c *cluster) follows(i int, pod string) {
	c.t.Helper()
	c.reachOften(i, pod, chance.Trials(1/float64(len(c.pods))))
}

// reachOften waits until the pod answers that many times in a row.
func (c *cluster) reachOften(i int, pod string, times int) {
	c.t.Helper()
	right, patience := 0, 200*time.Millisecond
	wait.NoError(c.t, fmt.Sprintf("Service %d to be answered by %q", i, pod), func() error {
		for right < times {
			// A packet that came too early is answered by nobody: another has to be sent. Where answers are slow, it is given more time.
			ctx, cancel := context.WithTimeout(c.t.Context(), patience)
			a, err := c.bed.Remote.AskWith(ctx, "tcp", fmt.Sprintf("%s:80", vip(i)), testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
			cancel()
			if err == nil && pod != "" && a.Pod != pod {
				err = fmt.Errorf("answered by %q", a.Pod)
			}
			if err != nil {
				if right = 0; errors.Is(err, testbed.ErrTimeout) {
					patience += patience / 2
				}
				return err
			}
			right++
		}
		return nil
	})
}
