package e2e

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

const (
	nodeName  = harness.NodeName
	otherNode = harness.OtherNode // the second node of the usual bed, on which no nkp runs
)

// node is a bed with nkp on its node.
type node struct {
	*testbed.Bed
	c     *cluster
	name  string
	agent *harness.Process // nil before startAgent
}

// writeKubeconfig writes nkp's: where the API server is, and a token.
func (n *node) writeKubeconfig(server netip.AddrPort, token string) {
	n.c.t.Helper()
	admin, err := clientcmd.LoadFromFile(n.c.adminConfig())
	must(n.c.t, err)
	cfg := api.NewConfig()
	cfg.Clusters["e2e"] = &api.Cluster{
		Server: "https://" + server.String(), CertificateAuthority: admin.Clusters["e2e"].CertificateAuthority,
		TLSServerName: "kubernetes", // the certificate is not made out to the node's addresses
	}
	cfg.AuthInfos["nkp"] = &api.AuthInfo{Token: token}
	cfg.Contexts["e2e"] = &api.Context{Cluster: "e2e", AuthInfo: "nkp"}
	cfg.CurrentContext = "e2e"
	must(n.c.t, clientcmd.WriteToFile(*cfg, n.kubeconfig()))
}

func (n *node) kubeconfig() string { return filepath.Join(n.RunDir, "nkp.kubeconfig") }
func (n *node) socket() string     { return filepath.Join(n.RunDir, "nkp.sock") }

// flags are those that all commands of nkp share here.
func (n *node) flags() []string {
	return []string{"--kubeconfig", n.kubeconfig(), "--ovsdb", n.DB(), "--bridge", n.Bridge,
		"--hostname-override", n.name, "--cluster-cidr", n.c.layout.clusterCIDR}
}

// startAgent starts nkp on the node.
func (n *node) startAgent(flags ...string) {
	n.c.t.Helper()
	args := append([]string{"run", "--socket", n.socket(), "--log-level", "debug", "--ovs-wait", "10s"}, n.flags()...)
	n.agent = harness.Start(n.c.t, n.Node, slices.Concat([]string{nkpBinary}, args, flags)...)
}

// nkp runs a command of nkp on the node to its end and gives its output and exit status.
func (n *node) nkp(args ...string) (output string, status int) {
	n.c.t.Helper()
	ctx, cancel := context.WithTimeout(n.c.ctx, wait.Limit)
	defer cancel()
	stdout, stderr, status := harness.Run(ctx, n.c.t, n.Node, append([]string{nkpBinary}, args...)...)
	return stdout + stderr, status
}

func (n *node) status() string {
	n.c.t.Helper()
	out, _ := n.nkp("status", "--socket", n.socket())
	return out
}

// diff fails while the switch does not hold what the API server's objects call for.
func (n *node) diff() (string, int) {
	n.c.t.Helper()
	return n.nkp(append([]string{"diff"}, n.flags()...)...)
}
