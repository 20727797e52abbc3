//go:build linux

package packets

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/inforce"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

const (
	nodeName  = harness.NodeName
	otherNode = harness.OtherNode
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = testbed.RemoveBuilt()
	os.Exit(code)
}

// nightlyOr skips a test in the gate, unless an environment variable sets its size.
func nightlyOr(t *testing.T, name, why string) {
	t.Helper()
	if os.Getenv(name) == "" {
		nightly.Only(t, why)
	}
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
	dir := t.TempDir()
	c := &cluster{
		Bed: bed, t: t, ctx: t.Context(), bin: bin, dir: dir, manifest: filepath.Join(dir, "manifests.json"), flags: flags,
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

// start builds a cluster and has nkp serve the objects.
func start(t *testing.T, objects ...any) *cluster {
	t.Helper()
	c := newCluster(t, testbed.Options{})
	c.begin(objects...)
	return c
}

// begin has the pods answer, and nkp serve the objects, too, until the switch is in step.
func (c *cluster) begin(objects ...any) {
	c.t.Helper()
	c.servePods(c.t)
	c.put(objects...)
	c.run()
	c.settle()
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
	flags := []string{"--manifests", c.manifest, "--hostname-override", nodeName, "--cluster-cidr", "10.0.0.0/16,fd00:a::/64,fd00:b::/64"}
	if c.bridged() {
		flags = append(flags, "--ovsdb", c.DB(), "--bridge", c.Bridge)
	}
	return append(flags, c.flags...)
}

// bridged reports whether --mode is not that of a node without a bridge.
func (c *cluster) bridged() bool {
	i := slices.Index(c.flags, "--mode")
	return i < 0 || c.flags[i+1] == "ovs" || c.flags[i+1] == "auto"
}

func (c *cluster) socket() string { return filepath.Join(c.RunDir, "nkp.sock") }

// home is whose network namespace nkp is in.
func (c *cluster) home() *testbed.Host { return cmp.Or(c.runsOn, c.Node) }

// run starts nkp on the node.
func (c *cluster) run() {
	c.t.Helper()
	c.runWith()
}

// runWith starts nkp on the node with further flags of `nkp run`.
func (c *cluster) runWith(flags ...string) {
	c.t.Helper()
	args := []string{"run", "--socket", c.socket(), "--log-level", "debug"}
	if c.bridged() {
		args = append(args, "--ovs-wait", "10s")
	}
	c.launch(slices.Concat(args, flags, c.common())...)
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
	ctx, cancel := context.WithTimeout(c.ctx, wait.Limit)
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
	wait.NoError(c.t, "a switch in step", func() error {
		if c.agent.Ended() {
			c.t.Fatal("nkp has ended")
		}
		if err := inforce.Manifests(c.ctx, c.socket(), c.manifest); err != nil {
			return err
		}
		return c.differs()
	})
}

// eventually waits until f gives no error.
func (c *cluster) eventually(what string, f func() error) {
	c.t.Helper()
	wait.NoError(c.t, what, f)
}

// status asks the running nkp.
func (c *cluster) status(t *testing.T) api.Status {
	t.Helper()
	out, errOut, status := c.nkp("status", "-o", "json", "--socket", c.socket())
	if status > 1 { // 1: not in step
		t.Fatalf("status ends with %d: %s", status, errOut)
	}
	var st api.Status
	must(t, json.Unmarshal([]byte(out), &st))
	return st
}

// awaitStatus waits until the agent's status is as wanted; what says what is wrong otherwise.
func (c *cluster) awaitStatus(t *testing.T, what string, ok func(*api.Status) bool) {
	t.Helper()
	wait.NoError(t, what, func() error {
		out, errOut, _ := c.nkp("status", "--socket", c.socket(), "-o", "json")
		var s api.Status
		err := json.Unmarshal([]byte(out), &s)
		if err != nil || s.Mode == "" || s.Mode == "ovs" && s.Status == nil || !ok(&s) {
			return fmt.Errorf("%v\n%s%s", err, tail(out, 3000), errOut)
		}
		return nil
	})
}

// audited waits for two more audits of the switch. The second began after the call, so that what nkp does by itself has been done.
func (c *cluster) audited(t *testing.T) {
	t.Helper()
	n := c.status(t).Audits + 2
	c.awaitStatus(t, "two audits", func(s *api.Status) bool { return s.Audits >= n })
}

// statusSays waits until status contains all of the texts.
func (c *cluster) statusSays(wants ...string) {
	c.t.Helper()
	c.eventually("status", func() error {
		out, errOut, _ := c.nkp("status", "--socket", c.socket(), "--ovsdb", c.DB())
		for _, w := range wants {
			if !strings.Contains(out, w) {
				return fmt.Errorf("status does not say %q:\n%s%s", w, out, errOut)
			}
		}
		return nil
	})
}

// statusMatches waits until status matches a regular expression, or, with yes false, until it does not.
func (c *cluster) statusMatches(yes bool, pattern string) {
	c.t.Helper()
	c.eventually("status", func() error {
		out, errOut, _ := c.nkp("status", "--socket", c.socket())
		if regexp.MustCompile(pattern).MatchString(out) != yes {
			return fmt.Errorf("%q: want %t of\n%s%s", pattern, yes, out, errOut)
		}
		return nil
	})
}

// logSays waits until nkp's log contains all of the texts.
func (c *cluster) logSays(wants ...string) {
	c.t.Helper()
	c.eventually("nkp's log", func() error {
		log := c.agent.Log.String()
		for _, w := range wants {
			if !strings.Contains(log, w) {
				return fmt.Errorf("it does not say %q:\n%s", w, tail(log, 4000))
			}
		}
		return nil
	})
}

// pending is a packet that one socket has sent: the first of a TCP connection, or a datagram.
type pending struct {
	fd   int
	udp  bool
	name string

	close func()
}

// sends sends a packet and does not wait for what becomes of it.
func (c *cluster) sends(t *testing.T, from *testbed.Host, proto, to string) *pending {
	t.Helper()
	addr := netip.MustParseAddrPort(to)
	p := &pending{udp: proto == "udp", name: fmt.Sprintf("%s -> %s %s", from.Name, proto, to)}
	must(t, from.Do(func() (err error) {
		family, kind := unix.AF_INET6, unix.SOCK_STREAM
		var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
		if addr.Addr().Is4() {
			family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
		}
		if p.udp {
			kind = unix.SOCK_DGRAM
		}
		if p.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err = unix.Connect(p.fd, sa); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		if p.udp {
			if _, err = unix.Write(p.fd, []byte("?")); err != nil && !errors.Is(err, unix.EPERM) { // rules of the host's own took it
				return err
			}
		}
		return nil
	}))
	p.close = sync.OnceFunc(func() { unix.Close(p.fd) })
	t.Cleanup(p.close)
	return p
}

// answered reports whether an answer has come, be it a refusal, and how it was.
func (p *pending) answered() (bool, error) {
	if p.udp {
		_, err := unix.Read(p.fd, make([]byte, 512))
		return !errors.Is(err, unix.EAGAIN), err
	}
	if code, err := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		return true, cmp.Or[error](err, unix.Errno(code))
	}
	_, err := unix.Getpeername(p.fd)
	return !errors.Is(err, unix.ENOTCONN), err
}

// who waits until the connection is open and returns who serves it.
func (p *pending) who(t *testing.T) (who string) {
	t.Helper()
	wait.NoError(t, p.name, func() error {
		buf := make([]byte, 512)
		n, err := unix.Read(p.fd, buf)
		if err == nil {
			who, _, _ = strings.Cut(string(buf[:n]), " ")
		}
		return err
	})
	return who
}

// unanswered sends a packet that nothing may answer. Silence by itself shows nothing on a busy machine: what control sends later, the
// same way, is answered first, three times in turn.
func (c *cluster) unanswered(t *testing.T, from *testbed.Host, proto, to string, control func()) {
	t.Helper()
	p := c.sends(t, from, proto, to)
	defer p.close()
	for range 3 {
		control()
	}
	if yes, err := p.answered(); yes {
		t.Errorf("%s: there was an answer (%v), want none", p.name, err)
	}
}

// direct returns a control for unanswered: datagrams of the host to a pod on this node, past all Services.
func (c *cluster) direct(t *testing.T, from *testbed.Host) func() {
	pod := c.pods[2]
	if from == pod.Host {
		pod = c.pods[1]
	}
	return func() {
		t.Helper()
		c.ask(t, from, "udp", hostPort(pod.IP4, 8080), pod.Name)
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

// cleanup runs `nkp cleanup`, once nkp has ended, and returns what it says.
func (c *cluster) cleanup(t *testing.T) string {
	t.Helper()
	out, errOut, status := c.nkp("cleanup", "--ovsdb", c.DB(), "--bridge", c.Bridge, "--socket", c.socket())
	if status != 0 {
		t.Fatalf("cleanup ends with %d: %s%s", status, out, errOut)
	}
	return out
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

// offline is for commands that need no bed.
func offline(t *testing.T) *cluster {
	t.Helper()
	bin, err := testbed.NKP()
	must(t, err)
	return &cluster{t: t, bin: bin}
}

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
