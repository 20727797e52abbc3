//go:build linux

package packets

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
)

const (
	nodeName  = harness.NodeName
	otherNode = harness.OtherNode
)

// settleLimit is how long nkp may take to bring the switch in step.
var settleLimit = testbed.Patient(20 * time.Second)

func TestMain(m *testing.M) {
	if name := os.Getenv(servesAs); name != "" {
		serve(name)
		return
	}
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
	agent    *harness.Process
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
	c.objects["node"] = harness.Node()
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
	harness.Must(t, err)
}

func tail(s string, n int) string { return harness.Tail(s, n) }

// put adds or replaces objects in the manifest file.
func (c *cluster) put(objects ...any) {
	c.t.Helper()
	for _, o := range objects {
		c.objects[harness.Key(o.(metav1.Object))] = o
	}
	c.write()
}

// remove takes objects out of the manifest file.
func (c *cluster) remove(objects ...any) {
	c.t.Helper()
	for _, o := range objects {
		delete(c.objects, harness.Key(o.(metav1.Object)))
	}
	c.write()
}

func (c *cluster) write() {
	c.t.Helper()
	must(c.t, harness.WriteManifests(c.manifest, slices.Collect(maps.Values(c.objects))))
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
	c.agent = harness.Start(c.t, c.home(), testbed.Wrapped(argv...)...)
}

// nkp runs a command of nkp on the node and gives its output and exit status.
func (c *cluster) nkp(args ...string) (stdout, stderr string, status int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, testbed.Patient(time.Minute))
	defer cancel()
	return harness.Run(ctx, c.t, c.home(), append([]string{c.bin}, args...)...)
}

// foreignLine is a line of `nkp diff` about a flow of another owner.
var foreignLine = regexp.MustCompile(`(?m)^! .*\n`)

// settle waits until the switch holds what the manifests call for, by nkp's own comparison; foreign objects do not count. A node
// on the bridge knows its router by then: with its MAC flows come that nkp, stopped earlier, would not have installed. And nkp answers
// on its socket: one that has just started again finds everything in step before that.
func (c *cluster) settle() {
	c.t.Helper()
	inStep := func() error {
		if err := c.differs(); err != nil {
			return err
		}
		conn, err := net.Dial("unix", c.socket())
		if err != nil {
			return err
		}
		return conn.Close()
	}
	if err := harness.Await(settleLimit, c.agent.Program, inStep); err != nil {
		c.t.Fatalf("the switch is not in step: %v", err)
	}
}

// differs returns what nkp finds to differ between its own flows and the manifests.
func (c *cluster) differs() error {
	out, errOut, status := c.nkp(append([]string{"diff", "--socket", c.socket()}, c.common()...)...)
	if status != 0 && (status != 1 || foreignLine.ReplaceAllString(out, "") != "") {
		return fmt.Errorf("nkp diff ends with %d\n%s%s", status, tail(out, 3000), tail(errOut, 3000))
	}
	if strings.Contains(errOut, "the gateway's MAC is unknown") {
		return errors.New(tail(errOut, 3000))
	}
	return nil
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
