//go:build linux

package rig

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/traffic"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Kind is a proxy, with the data plane that it works on.
type Kind string

// The kinds. kube-proxy's iptables mode has the legacy back end: over nf_tables its one transaction for everything does
// not end within ten minutes at 10,000 Services.
const (
	NKP         Kind = "nkp"
	KubeNft     Kind = "kube-proxy nftables"
	KubeLegacy  Kind = "kube-proxy iptables"
	IPTables    Kind = "nkp iptables" // kube-proxy's chains over nf_tables, where there is no kube-proxy
	NFTables    Kind = "nkp nftables"
	clusterCIDR      = "10.0.0.0/8"
)

// OfKubernetes reports whether it is kube-proxy.
func (k Kind) OfKubernetes() bool { return k == KubeNft || k == KubeLegacy }

// Node is a bed with pods, a client among them, joined to the API server. One proxy runs on it at a time. NKP has a
// private Open vSwitch with the pods on it, the others a bridge of the kernel's.
type Node struct {
	*testbed.Bed
	Kind   Kind
	Client *testbed.Pod   // local pod 0
	Locals []*testbed.Pod // the other local pods: endpoints
	Proxy  *Process       // nil while none runs
	Flags  []string       // further ones of nkp on the bridge

	programs   Programs
	dir        string
	kubeconfig string   // "": there is no API server
	source     []string // where nkp has its Services from: flags
}

// NewNode makes the node; no proxy runs yet. Close ends all of it.
func NewNode(ctx context.Context, kind Kind, api *API, programs Programs) (*Node, error) {
	return newNode(ctx, kind, programs, func(n *Node) (err error) {
		n.kubeconfig, err = api.Link(ctx, n.Bed, n.dir)
		n.source = []string{"--kubeconfig", n.kubeconfig}
		return err
	})
}

// NewNodeAlone makes a node for nkp, of kind NKP or IPTables, that needs no API server: a directory has the objects that
// every run has, and this many numbered Services.
func NewNodeAlone(ctx context.Context, kind Kind, services int, programs Programs) (*Node, error) {
	return newNode(ctx, kind, programs, func(n *Node) error {
		n.source = []string{"--manifests", n.manifests()}
		if err := os.Mkdir(n.manifests(), 0o755); err != nil {
			return err
		}
		return writeManifest(filepath.Join(n.manifests(), "services.json"), services, Endpoints)
	})
}

func (n *Node) manifests() string { return filepath.Join(n.dir, "manifests") }

func newNode(ctx context.Context, kind Kind, programs Programs, join func(*Node) error) (n *Node, err error) {
	o := testbed.Options{NoServiceRoutes: true}
	if kind != NKP {
		o.Plane, o.PodBridge = testbed.Linux, true
	}
	bed, err := testbed.New(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = bed.Close()
		}
	}()
	n = &Node{Bed: bed, Kind: kind, programs: programs, dir: bed.RunDir}
	if err := join(n); err != nil {
		return nil, err
	}
	if err := n.addPods(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *Node) addPods(ctx context.Context) error {
	locals, err := n.AddPods(make([]testbed.PodSpec, 1+Endpoints)...)
	if err != nil {
		return err
	}
	n.Client, n.Locals = locals[0], locals[1:]
	remotes, err := n.AddRemotePods(make([]testbed.PodSpec, Endpoints)...)
	if err != nil {
		return err
	}
	for _, p := range remotes {
		if _, err := p.ServeTCP(targetPort); err != nil {
			return err
		}
	}
	for _, p := range n.Locals {
		for port, serve := range map[int]func(net.Listener){
			targetPort: traffic.Serve, DirectPort: traffic.Serve, BulkPort: traffic.Sink, DirectBulkPort: traffic.Sink,
		} {
			l, err := p.Listen(fmt.Sprintf(":%d", port))
			if err != nil {
				return err
			}
			context.AfterFunc(ctx, func() { _ = l.Close() })
			go serve(l) // ends with ctx
		}
	}
	// The switch has no flows before nkp starts: a question for an Ethernet address would be lost, and repeated by the
	// pod's kernel after whole seconds only, which would be measured too. kube-proxy's pods know theirs already.
	if n.Kind == NKP {
		for _, p := range locals {
			if out, err := p.Exec(ctx, "ip", "neigh", "replace", testbed.GatewayIP4.String(), "lladdr", testbed.GatewayMAC, "dev", "eth0", "nud", "permanent"); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
	}
	return nil
}

// Close ends everything on the node.
func (n *Node) Close() error {
	n.Proxy.Stop()
	return n.Bed.Close()
}

// Start starts the node's proxy.
func (n *Node) Start() (err error) {
	cmd := n.command()
	n.Proxy, err = startProcess(n.Node, "proxy", n.dir, cmd)
	return err
}

func (n *Node) command() *exec.Cmd {
	if n.Kind == NKP {
		return exec.Command(n.programs.NKP, slices.Concat(n.NKPFlags("run"), n.Flags, []string{"--socket", n.Socket(), "--ovs-wait", "10s", "--metrics-bind-address", MetricsAddress})...)
	}
	if mode, ok := map[Kind]string{IPTables: "iptables", NFTables: "nftables"}[n.Kind]; ok {
		return exec.Command(n.programs.NKP, append([]string{"run", "--mode", mode, "--socket", n.Socket(), "--metrics-bind-address", MetricsAddress,
			"--hostname-override", nodeName, "--cluster-cidr", clusterCIDR}, n.source...)...)
	}
	mode := "nftables"
	if n.Kind == KubeLegacy {
		mode = "iptables"
	}
	cmd := exec.Command(n.programs.KubeProxy, "--kubeconfig", n.kubeconfig, "--proxy-mode", mode, "--hostname-override", nodeName,
		"--cluster-cidr", clusterCIDR, "--kube-api-qps", "100", "--kube-api-burst", "100",
		// The machine's connection tracking is not this run's to set.
		"--conntrack-max-per-core", "0", "--conntrack-min", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s")
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(n.dir, "xtables.lock"), "PATH="+n.dir+"/bin:"+os.Getenv("PATH"))
	return cmd
}

// MetricsAddress is where nkp serves its metrics, inside the node.
const MetricsAddress = "127.0.0.1:10249"

// Socket is that of the running nkp.
func (n *Node) Socket() string { return filepath.Join(n.dir, "nkp.sock") }

// NKPFlags returns the arguments of a command of nkp that looks at API server, or manifest, and switch.
func (n *Node) NKPFlags(command string) []string {
	return append([]string{command}, append(n.source, "--ovsdb", n.DB(), "--bridge", n.Bridge, "--hostname-override", nodeName, "--cluster-cidr", clusterCIDR)...)
}

// RunNKP runs a command of nkp on the node to its end and returns its standard output.
func (n *Node) RunNKP(args ...string) (string, error) {
	return n.Exec(n.Node, append([]string{n.programs.NKP}, args...)...)
}

// WithLegacyIPTables makes "iptables" mean the legacy back end for the node's proxy.
func (n *Node) WithLegacyIPTables() error {
	bin := filepath.Join(n.dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, rest := range []string{"", "-restore", "-save"} {
			path, err := exec.LookPath(name + "-legacy" + rest)
			if err != nil {
				return err
			}
			// The program looks at its own name to know which of many it is.
			if err := os.WriteFile(filepath.Join(bin, name+rest), fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\"\n", path), 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// askTimeout bounds one attempt to connect at first; a lost SYN would be repeated after a second only.
const askTimeout = 50 * time.Millisecond

// Reach asks a Service until the pod with this address answers ("": any), and returns how long that took since begin. The
// time for an attempt and the pauses between attempts grow with the time that has passed, to a tenth and a fiftieth of it: on a slow
// machine an attempt takes longer, and who takes long is not slowed down by being asked.
func (n *Node) Reach(ctx context.Context, frontend, pod string, begin time.Time) (time.Duration, error) {
	for {
		try, cancel := context.WithTimeout(ctx, max(askTimeout, time.Since(begin)/10))
		a, err := n.Client.AskWith(try, "tcp", frontend, testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
		cancel()
		since := time.Since(begin)
		if err == nil && (pod == "" || addressOf(a.Pod) == pod) {
			return since, nil
		}
		if err := n.Proxy.Ended(); err != nil {
			return 0, err
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%s is not answered by %q after %v: %w", frontend, pod, since.Round(time.Second), ctx.Err())
		}
		time.Sleep(since / 50)
	}
}

// IsEndpoint reports whether a host that answered is an endpoint of the Services that [LiveFrontends] lists.
func IsEndpoint(host string) bool { return strings.HasPrefix(host, "remote-") }

// addressOf returns the address of a remote pod by its name, remote-N.
func addressOf(name string) string {
	var number int
	if _, err := fmt.Sscanf(name, "remote-%d", &number); err != nil {
		return name
	}
	a := testbed.RemotePodCIDR4.Addr().As4()
	a[3] = byte(number)
	return netip.AddrFrom4(a).String()
}
