package command

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// inNamespace returns kind/NAME as kind/NAMESPACE/NAME, and any other text as it is.
func inNamespace(text, kind, namespace string) string {
	if name, ok := strings.CutPrefix(text, kind); ok && name != "" && !strings.Contains(name, "/") {
		return kind + namespace + "/" + name
	}
	return text
}

// trace asks the agent of the client's node, or of --node. The request names a pod by its addresses, because
// nkp's role does not allow an agent to get pods.
func (n *nodes) trace(
	ctx context.Context,
	ask *trace.Request,
	ends *trace.Ends,
) (caller *api.Caller, r *trace.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	node, clients := "", []netip.Addr{ends.From.Addr()}
	if pod := ends.Pod; pod.Name != "" {
		node, clients, err = n.cluster.Pod(ctx, pod.Namespace, pod.Name)
	} else if n.node == "" {
		node, err = n.cluster.NodeOf(ctx, clients[0])
	}
	switch {
	case err != nil:
		return nil, nil, err
	case n.node == "" && node == "":
		return nil, nil, usageError("no node and no pod has the address %s: "+
			"name the node that its packets come to with --node", clients[0])
	case n.node == "":
		n.node = node
	}
	peers, err := n.peers(ctx)
	if err != nil {
		return nil, nil, err
	}

	r, err = traceFrom(ctx, peers[0].Caller, *ask, clients, ends)
	if err == nil {
		r.Steps = append([]string{fmt.Sprintf("asked on node %s", n.node)}, r.Steps...)
	}
	return peers[0].Caller, r, err
}

// traceFrom asks about a packet from the first of a client's addresses that is of the destination's family,
// or, if the destination is named, from which it can be reached.
func traceFrom(
	ctx context.Context,
	c *api.Caller,
	ask trace.Request,
	clients []netip.Addr,
	ends *trace.Ends,
) (*trace.Result, error) {
	if ip := k8s.FamilyOf(ends.To.Addr()).First(clients); ends.To.IsValid() && ip.IsValid() {
		clients = []netip.Addr{ip}
	}
	var first error
	for _, client := range clients {
		ask.From = withPort(client, ends.From.Port())
		r, err := c.Trace(ctx, ask)
		if err == nil {
			return r, nil
		}
		first = cmp.Or(first, err)
	}
	return nil, first
}

// withPort returns an address in the notation of --from; port 0 is none.
func withPort(addr netip.Addr, port uint16) string {
	if port == 0 {
		return addr.String()
	}
	return netip.AddrPortFrom(addr, port).String()
}
