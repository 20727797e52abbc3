package command

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/remote"
	"github.com/nkp-proxy/nkp/internal/trace"
)

func newNodesTrace() *cobra.Command {
	var n nodes
	var f traceFlags
	cmd := &cobra.Command{
		Use:   "trace --from IP[:PORT]|pod/[NAMESPACE/]NAME --to IP:PORT|svc/[NAMESPACE/]NAME:PORT",
		Short: "Explain on the client's node what happens to a packet",
		Long: `trace asks the agent of the client's node what happens to the first packet of a connection, as nkp trace does there (nkp trace --help
has the details). The client's node is that of the pod, or the node that has the address or a pod with it. A client outside of the cluster
has none: name the node that its packets come to with --node. Names without a namespace are in that of --namespace or the kubeconfig.
Exit status: 0 explained, 1 no answer, or what is installed (--live) or happened (--probe) does not agree, 2 usage.`,
		Example: `  kubectl nkp trace --from pod/client --to svc/web:http --live
  kubectl nkp trace --from pod/shop/cart-0 --to svc/shop/db:5432 --live --follow=30s
  kubectl nkp trace --from pod/client --to svc/web:http --probe
  kubectl nkp trace --from 203.0.113.9 --to 192.168.1.11:30080 --node node-1`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return n.trace(cmd.Context(), &f, cmd.Flags().Changed("protocol"), cmd.OutOrStdout())
		},
	}
	n.flags(cmd, "node to ask (default: the client's)")
	f.flags(cmd)
	return cmd
}

func (n *nodes) trace(ctx context.Context, f *traceFlags, protocolSet bool, out io.Writer) error {
	c, namespace, err := n.cluster()
	if err != nil {
		return err
	}
	f.from, f.to = inNamespace(f.from, "pod/", namespace), inNamespace(f.to, "svc/", namespace)
	ask, ends, err := f.request(protocolSet)
	if err != nil {
		return err
	}
	a, err := n.clientAgent(ctx, c, &ask, &ends)
	if err != nil {
		return err
	}
	caller := agent.NewRemoteCaller(a.Node, a.Dial)
	defer caller.Close()
	asked, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	r, err := caller.Trace(asked, ask)
	if err != nil {
		return err
	}
	r.Steps = append([]string{fmt.Sprintf("asked on node %s", a.Node)}, r.Steps...)
	if f.followFor > 0 {
		return f.follow(ctx, caller, ask, r, out)
	}
	return f.print(out, r)
}

// inNamespace returns kind/NAME as kind/NAMESPACE/NAME, and any other text as it is.
func inNamespace(text, kind, namespace string) string {
	if name, ok := strings.CutPrefix(text, kind); ok && name != "" && !strings.Contains(name, "/") {
		return kind + namespace + "/" + name
	}
	return text
}

// clientAgent returns the agent of the client's node, or of --node. In the request it replaces a pod by its address, because nkp's role
// does not allow an agent to get pods.
func (n *nodes) clientAgent(ctx context.Context, c *remote.Cluster, ask *trace.Request, ends *trace.Ends) (*remote.Agent, error) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	node, err := "", error(nil)
	if pod := ends.Pod; pod.Name != "" {
		var addresses []netip.Addr
		if node, addresses, err = c.Pod(ctx, pod.Namespace, pod.Name); err != nil {
			return nil, err
		}
		ask.From = withPort(clientAddress(ctx, c, addresses, ends), ends.From.Port())
	} else if n.node == "" {
		if node, err = c.NodeOf(ctx, ends.From.Addr()); err != nil {
			return nil, err
		}
	}
	if n.node != "" {
		node = n.node
	}
	if node == "" {
		return nil, usageError("no node and no pod has the address %s: name the node that its packets come to with --node", ends.From.Addr())
	}
	return c.Agent(ctx, node)
}

// clientAddress returns the pod's address of the destination's family; of a Service in both, of the family that it prefers.
func clientAddress(ctx context.Context, c *remote.Cluster, addresses []netip.Addr, ends *trace.Ends) netip.Addr {
	var families []v1.IPFamily
	switch {
	case ends.Service.Name != "":
		families, _ = c.Families(ctx, ends.Service.Namespace, ends.Service.Name) // the agent says that there is no such Service
	case ends.To.Addr().Is4():
		families = []v1.IPFamily{v1.IPv4Protocol}
	default:
		families = []v1.IPFamily{v1.IPv6Protocol}
	}
	for _, f := range families {
		if i := slices.IndexFunc(addresses, func(a netip.Addr) bool { return a.Is4() == (f == v1.IPv4Protocol) }); i >= 0 {
			return addresses[i]
		}
	}
	return addresses[0]
}

// withPort returns an address in the notation of --from; port 0 is none.
func withPort(addr netip.Addr, port uint16) string {
	if port == 0 {
		return addr.String()
	}
	return netip.AddrPortFrom(addr, port).String()
}
