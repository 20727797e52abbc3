package e2e

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// layout says what a cluster is made of. The zero value is a node in the usual bed.
type layout struct {
	nodes       []nodeSpec
	serviceCIDR string // of the API server
	clusterCIDR string // as nkp is told
	audit       bool   // the API server writes down who asked for what
	install     bool   // nothing of nkp's is there: a test installs it, and runs its pods as machines
}

// nodeSpec is one node of a layout. All but the first are joined to the first.
type nodeSpec struct {
	name string
	bed  testbed.Options
}

// cluster is a control plane and nodes. It embeds the first node, in whose namespace the control plane runs.
type cluster struct {
	*node
	t      *testing.T
	ctx    context.Context
	nodes  []*node
	layout layout
	dir    string               // the control plane's
	client kubernetes.Interface // may do everything

	serving map[*testbed.Pod]uint16 // the port of each pod that serves

	server *harness.Process
}

// newCluster starts beds and a control plane with the Node objects and the identity of nkp. nkp does not run yet.
func newCluster(t *testing.T, l layout) *cluster {
	t.Helper()
	testbed.Require(t)
	must(t, binaries())
	if l.nodes == nil {
		l.nodes = []nodeSpec{{name: nodeName}}
	}
	l.serviceCIDR = cmp.Or(l.serviceCIDR, "40.0.0.0/16,fd00:40::/112")
	l.clusterCIDR = cmp.Or(l.clusterCIDR, "10.0.0.0/16,fd00:a::/64,fd00:b::/64")
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := &cluster{t: t, ctx: ctx, layout: l, dir: t.TempDir(), serving: map[*testbed.Pod]uint16{}}
	for _, spec := range l.nodes {
		n := &node{c: c, name: spec.name, Bed: testbed.Start(t, spec.bed)}
		if c.nodes = append(c.nodes, n); len(c.nodes) > 1 {
			must(t, testbed.Join(c.nodes[0].Bed, n.Bed))
		}
	}
	c.node = c.nodes[0]
	c.startServer()
	c.client = c.newClient()
	c.createNodes()
	if l.install {
		return c
	}
	c.applyRoles("rbac/rbac.yaml")
	for i, n := range c.nodes {
		addr := netip.AddrPortFrom(c.Node.IP4, apiPort)
		if i == 0 {
			addr = netip.MustParseAddrPort(serverAddr)
		}
		n.writeKubeconfig(addr, c.token(nkpAccount))
	}
	return c
}

const (
	apiPort    = 6443
	serverAddr = "127.0.0.1:6443"
)

// adminConfig is the file that kubeserver writes when the API server is ready.
func (c *cluster) adminConfig() string { return filepath.Join(c.dir, "kubeconfig") }

// startServer starts the control plane and waits until it serves. Started again it goes on with the same objects, but has
// lost their history.
func (c *cluster) startServer() {
	c.t.Helper()
	os.Remove(c.adminConfig()) // it comes back when the server is ready
	args := []string{c.dir, "--service-cluster-ip-range=" + c.layout.serviceCIDR}
	if c.layout.audit {
		args = append(args, c.auditFlags()...)
	}
	if c.layout.install {
		args = append(args, c.addressFlags()...)
	}
	c.server = harness.Start(c.t, c.Node, append([]string{kubeserverBinary}, args...)...)
	c.t.Cleanup(c.server.Kill) // on SIGTERM it waits for its clients
	c.eventually("the API server gets ready", func() error {
		select {
		case <-c.server.Done:
			c.t.Fatalf("kubeserver ended: %s", harness.Tail(c.server.Log.String(), 3000))
		default:
		}
		_, err := os.Stat(c.adminConfig())
		return err
	})
}

// newClient returns a client that may do everything and that no limit slows down.
func (c *cluster) newClient() kubernetes.Interface {
	c.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", c.adminConfig())
	must(c.t, err)
	cfg.QPS = -1
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.WarningHandler = rest.NoWarnings{}
	cfg.Dial = c.Node.DialContext
	client, err := kubernetes.NewForConfig(cfg)
	must(c.t, err)
	return client
}
