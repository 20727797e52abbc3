//go:build linux

package packets

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const (
	nodeName  = "node-1"
	otherNode = "node-2"
)

// settleLimit is how long nkp may take to bring the switch in step.
var settleLimit = testbed.Patient(20 * time.Second)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = testbed.RemoveBuilt()
	os.Exit(code)
}

// cluster is a bed with nkp on its node and a manifest file that says what Services there are.
type cluster struct {
	*testbed.Bed
	t        *testing.T
	pods     []*testbed.Pod // on this node
	remotes  []*testbed.Pod // on the second node
	runsOn   *testbed.Host  // see home; nil: the node
	ctx      context.Context
	bin      string
	dir      string
	manifest string
	flags    []string
	objects  map[string]any
	agent    *process
}

// process is a running nkp.
type process struct {
	*testbed.Program
	log *testbed.Output
}

// newCluster builds a bed with local pods 11, 12, 13 and remote pods 11, 12. nkp does not run yet.
func newCluster(t *testing.T, o testbed.Options, flags ...string) *cluster {
	t.Helper()
	bed := testbed.Start(t, o)
	bin, err := testbed.NKP()
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), testbed.Patient(5*time.Minute))
	t.Cleanup(cancel)
	dir := t.TempDir()
	c := &cluster{
		Bed: bed, t: t, ctx: ctx, bin: bin, dir: dir, manifest: filepath.Join(dir, "manifests.json"), flags: flags,
		objects: map[string]any{},
	}
	c.pods, err = bed.AddPods(testbed.PodSpec{}, testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	c.remotes, err = bed.AddRemotePods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	c.objects["node"] = &v1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
			{Type: v1.NodeInternalIP, Address: testbed.NodeIP4.String()}, {Type: v1.NodeInternalIP, Address: testbed.NodeIP6.String()},
		}},
	}
	c.objects["ranges"] = &networkingv1.ServiceCIDR{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"40.0.0.0/16", "fd00:40::/112"}},
	}
	return c
}

// start builds a cluster with the given objects and has nkp serve them.
func start(t *testing.T, objects ...any) *cluster {
	t.Helper()
	c := newCluster(t, testbed.Options{})
	c.put(objects...)
	c.run()
	c.settle()
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put adds or replaces objects in the manifest file.
func (c *cluster) put(objects ...any) {
	c.t.Helper()
	for _, o := range objects {
		m := o.(metav1.Object)
		c.objects[fmt.Sprintf("%T/%s/%s", o, m.GetNamespace(), m.GetName())] = o
	}
	c.write()
}

// remove takes objects out of the manifest file.
func (c *cluster) remove(objects ...any) {
	c.t.Helper()
	for _, o := range objects {
		m := o.(metav1.Object)
		delete(c.objects, fmt.Sprintf("%T/%s/%s", o, m.GetNamespace(), m.GetName()))
	}
	c.write()
}

func (c *cluster) write() {
	c.t.Helper()
	items := make([]any, 0, len(c.objects))
	for _, o := range c.objects {
		items = append(items, o)
	}
	data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	must(c.t, err)
	tmp := c.manifest + ".new" // not a manifest's name: nkp does not see it
	must(c.t, os.WriteFile(tmp, data, 0o644))
	must(c.t, os.Rename(tmp, c.manifest))
}

// common are the flags that every command shares here.
func (c *cluster) common() []string {
	return append([]string{"--manifests", c.manifest, "--ovsdb", c.DB(), "--bridge", c.Bridge, "--hostname-override", nodeName,
		"--cluster-cidr", "10.0.0.0/16,fd00:a::/64,fd00:b::/64"}, c.flags...)
}

func (c *cluster) socket() string { return filepath.Join(c.RunDir, "nkp.sock") }

// home is whose network namespace nkp is in.
func (c *cluster) home() *testbed.Host { return cmp.Or(c.runsOn, c.Node) }

// run starts nkp on the node.
func (c *cluster) run() {
	c.t.Helper()
	c.runWith("--ovs-wait", "10s")
}

// runWith starts nkp on the node with further flags of `nkp run`.
func (c *cluster) runWith(flags ...string) {
	c.t.Helper()
	c.launch(append([]string{"run", "--socket", c.socket(), "--log-level", "debug"}, append(flags, c.common()...)...)...)
}

// launch starts nkp on the node with these arguments and no others.
func (c *cluster) launch(args ...string) {
	c.t.Helper()
	c.launchBy(append([]string{c.bin}, args...)...)
}

// launchBy starts nkp on the node by a command that ends in it.
func (c *cluster) launchBy(argv ...string) {
	c.t.Helper()
	log := &testbed.Output{}
	program, err := c.home().Launch(log, testbed.Wrapped(argv...)...)
	must(c.t, err)
	p := &process{program, log}
	c.agent = p
	c.t.Cleanup(func() {
		if err := p.Stop(syscall.SIGTERM); err != nil {
			c.t.Error(err)
		}
		if c.t.Failed() {
			c.t.Logf("nkp said:\n%s", tail(p.log.String(), 6000))
		}
	})
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// nkp runs a command of nkp on the node and gives its output and exit status.
func (c *cluster) nkp(args ...string) (stdout, stderr string, status int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	must(c.t, c.home().Start(cmd))
	cmd.Wait()
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// settle waits until the switch holds what the manifests call for, by nkp's own comparison.
func (c *cluster) settle() {
	c.t.Helper()
	deadline := time.Now().Add(settleLimit)
	for {
		out, errOut, status := c.nkp(append([]string{"diff", "--socket", c.socket()}, c.common()...)...)
		if status == 0 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("the switch is not in step after %v (diff ends with %d)\n%s%s", settleLimit, status, tail(out, 3000), tail(errOut, 3000))
		}
		select {
		case <-c.agent.Done:
			c.t.Fatalf("nkp ended: %s", tail(c.agent.log.String(), 3000))
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// flush empties the connection tracker's NAT zones, so that a case starts without history.
func (c *cluster) flush() {
	c.t.Helper()
	for _, zone := range []string{"zone=1001", "zone=1002"} {
		_, err := c.Appctl("dpctl/flush-conntrack", zone)
		must(c.t, err)
	}
}

// service makes a Service with one port 80 named http.
func service(name, clusterIP string, change ...func(*v1.Service)) *v1.Service {
	family := v1.IPv4Protocol
	if strings.Contains(clusterIP, ":") {
		family = v1.IPv6Protocol
	}
	s := &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}, IPFamilies: []v1.IPFamily{family},
			Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func protocol(p v1.Protocol) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.Ports[0].Protocol = p }
}

// slice makes the EndpointSlice of a Service: its endpoints by address, at one port.
func slice(s *v1.Service, port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	name, protocol := s.Spec.Ports[0].Name, s.Spec.Ports[0].Protocol
	sl := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: s.Name + "-1", Namespace: s.Namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
		Endpoints:   endpoints,
	}
	if s.Spec.IPFamilies[0] == v1.IPv6Protocol {
		sl.AddressType = discoveryv1.AddressTypeIPv6
	}
	return sl
}

// at is a ready endpoint; those in the local pod ranges are on this node.
func at(ip netip.Addr) discoveryv1.Endpoint {
	ready, node := true, otherNode
	if testbed.PodCIDR4.Contains(ip) || testbed.PodCIDR6.Contains(ip) {
		node = nodeName
	}
	return discoveryv1.Endpoint{Addresses: []string{ip.String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
}

func ats(ips ...netip.Addr) []discoveryv1.Endpoint {
	es := make([]discoveryv1.Endpoint, len(ips))
	for i, ip := range ips {
		es[i] = at(ip)
	}
	return es
}

func hostPort(ip netip.Addr, port uint16) string { return netip.AddrPortFrom(ip, port).String() }

func nth(name string, i int) string { return fmt.Sprintf("%s-%d", name, i) }

// vip returns address number i of a /16 in net.0.0.0/8.
func vip(net, i int) string { return fmt.Sprintf("%d.0.%d.%d", net, i/250, 1+i%250) }

// try runs a command of nkp that needs no switch.
func (c *cluster) try(args ...string) (stdout, stderr string, status int) {
	var out, errOut bytes.Buffer
	cmd := exec.Command(c.bin, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.Run()
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// local runs a command of nkp that needs no switch and gives its output; the test fails if the command does.
func (c *cluster) local(args ...string) string {
	c.t.Helper()
	stdout, stderr, status := c.try(args...)
	if status != 0 {
		c.t.Fatalf("nkp %s ends with %d: %s", strings.Join(args, " "), status, stderr)
	}
	return stdout
}
