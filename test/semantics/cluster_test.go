//go:build linux

package semantics

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/apifake"
	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

const (
	nodeName  = harness.NodeName
	otherNode = harness.OtherNode
	// clusterCIDR covers the pods of both nodes.
	clusterCIDR = "10.0.0.0/16,fd00:a::/31"
)

// cluster is a bed with a service proxy on its node and a manifest file that says what Services there are.
type cluster struct {
	*testbed.Bed
	// pod is the usual client. It is on the node, as here and here2 are; there and there2 are on the second node.
	// All serve on port 8080, over TCP, UDP and SCTP, and the client outside on port 80.
	pod, here, here2, there, there2 *testbed.Host
	// node is this node's object; change it and apply. Without it nodeName is of a node among the other objects.
	node     *v1.Node
	nodeName string

	named    map[string]*testbed.Host // further hosts of a row
	devices  map[*testbed.Host]string // the node's ends of its pods' links
	t        *testing.T
	plane    plane
	ctx      context.Context
	bin      string
	manifest string
	flags    []string // kube-proxy's and nkp's
	ownFlags []string // nkp's alone
	objects  map[string][]any
	proxy    *harness.Process
	api      *apifake.Server // of the plane kube-proxy
	told     int             // how often it was told the objects
}

// setup says what a row's clusters need beyond the usual.
type setup struct {
	// flags of the proxy; kube-proxy's names. Without --cluster-cidr or --detect-local-mode the usual range is given.
	flags []string
	// noDetector leaves the usual range out.
	noDetector bool
	// nkpFlags are flags that only nkp has.
	nkpFlags []string
	// podBridge has pods on a bridge named br-int on every plane.
	podBridge bool
	ipv4      testbed.Addressing
	// before runs before the proxy starts.
	before func(c *cluster)
	// needs is a feature without which a plane has nothing to do with the row.
	needs feature
}

// onEveryPlane runs a row on each data plane, on a cluster of its own whose proxy is in step.
func onEveryPlane(t *testing.T, row func(t *testing.T, c *cluster)) {
	t.Helper()
	onEveryPlaneWith(t, setup{}, row)
}

func onEveryPlaneWith(t *testing.T, s setup, row func(t *testing.T, c *cluster)) {
	t.Helper()
	t.Parallel()
	for _, p := range chosenPlanes(t) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			if why, lacks := p.lacks[s.needs]; lacks {
				t.Skip(why)
			}
			c := newCluster(t, p, s)
			if s.before != nil {
				s.before(c)
			}
			c.start()
			row(t, c)
		})
	}
}

// newCluster builds a bed with its pods. The proxy does not run yet.
func newCluster(t *testing.T, p plane, s setup) *cluster {
	t.Helper()
	o := p.bed
	o.IPv4 = s.ipv4
	o.PodBridge = s.podBridge && o.Plane == testbed.Linux
	bin, err := testbed.NKP()
	must(t, err)
	bed := testbed.Start(t, o)
	c := &cluster{
		Bed: bed, t: t, plane: p, ctx: t.Context(), bin: bin, manifest: filepath.Join(t.TempDir(), "manifests.json"),
		nodeName: nodeName, objects: map[string][]any{}, devices: map[*testbed.Host]string{},
	}
	if !s.noDetector && !slices.Contains(s.flags, "--detect-local-mode") {
		c.flags = []string{"--cluster-cidr", clusterCIDR}
	}
	c.flags, c.ownFlags = append(c.flags, s.flags...), s.nkpFlags
	local, err := bed.AddPods(testbed.PodSpec{}, testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	remote, err := bed.AddRemotePods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	for _, p := range local {
		c.devices[p.Host] = p.Interface
	}
	c.pod, c.here, c.here2, c.there, c.there2 = local[0].Host, local[1].Host, local[2].Host, remote[0].Host, remote[1].Host
	for _, h := range []*testbed.Host{c.pod, c.here, c.here2, c.there, c.there2} {
		c.listen(h, 8080)
	}
	c.listen(c.External, 80)
	c.node = c.nodeObject()
	c.addControl()
	return c
}

// listen makes a host serve on a port over every protocol.
func (c *cluster) listen(h *testbed.Host, port int) {
	c.t.Helper()
	for _, serve := range []func(int) (*testbed.Server, error){h.ServeTCP, h.ServeUDP, h.ServeSCTP} {
		_, err := serve(port)
		must(c.t, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	harness.Must(t, err)
}

func tail(s string, n int) string { return harness.Tail(s, n) }

// write puts all objects where the proxy reads them.
func (c *cluster) write() {
	c.t.Helper()
	var items []any
	if c.node != nil {
		items = append(items, c.node)
	}
	for _, list := range c.objects {
		items = append(items, list...)
	}
	if c.api != nil {
		must(c.t, c.tellPeer(items))
		return
	}
	must(c.t, harness.WriteManifests(c.manifest, items))
}

// apply puts the objects in force.
func (c *cluster) apply() {
	c.t.Helper()
	c.write()
	c.settle()
}

// settle waits until the plane is in step.
func (c *cluster) settle() {
	c.t.Helper()
	if err := harness.Await(wait.Limit, c.proxy.Program, func() error { return c.plane.inStep(c) }); err != nil {
		c.t.Fatalf("not in step: %v", err)
	}
}

// start runs the proxy on the node and waits until it is in step.
func (c *cluster) start(flags ...string) {
	c.t.Helper()
	argv := c.plane.command(c, flags)
	c.write()
	c.proxy = harness.Start(c.t, c.Node, argv...)
	c.t.Cleanup(func() { // before the proxy ends
		if c.t.Failed() {
			c.t.Logf("%s", c.plane.state(c))
		}
	})
	c.settle()
}

// run runs a command on the node to its end and gives what it printed and its exit status.
func (c *cluster) run(argv ...string) (out string, status int) {
	c.t.Helper()
	out, errOut, status := harness.Run(wait.Context(c.t), c.t, c.Node, argv...)
	return out + errOut, status
}

func (c *cluster) socket() string { return filepath.Join(c.RunDir, "nkp.sock") }
