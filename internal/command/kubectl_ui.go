package command

import (
	"context"
	"crypto/rand"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/ui"
)

func newNodesUI() *cobra.Command {
	var n nodes
	listen := loopbackFlag("127.0.0.1:0")
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show the nodes' Services, traces and state on a web page",
		Long: `ui serves a web page on this machine's loopback until Ctrl-C, and prints its address. The page lists the nodes; each leads to the page
that nkp ui serves on that node, with what its agent answers. With --node the page is that node's. Nothing listens in the cluster.

The address contains a random token, a new one each time. Whoever has it and can connect to this machine's loopback sees the page.`,
		Example: "  kubectl nkp ui\n  kubectl nkp ui --node node-1 --listen 127.0.0.1:8080",
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := listen.address()
			if err != nil {
				return err
			}
			token := rand.Text()
			h, err := n.pages(cmd.Context(), token)
			if err != nil {
				return err
			}
			return serveUI(cmd.Context(), h, token, at, cmd.OutOrStdout())
		},
	}
	n.flags(cmd, "only this node")
	listen.flag(cmd)
	return cmd
}

// pages returns the handler of the nodes' pages.
func (n *nodes) pages(ctx context.Context, token string) (http.Handler, error) {
	agents, _, _, err := n.agents(ctx)
	if err != nil {
		return nil, err
	}
	tableBase := newSettings().Layout.TableBase
	sources := map[string]ui.Source{}
	for _, a := range agents {
		sources[a.Node] = uiSource(agent.NewRemoteCaller(a.Node, a.Dial), tableBase)
	}
	if n.node != "" {
		return ui.Handler(sources[n.node], token), nil
	}
	return ui.NodesHandler(sources, token), nil
}
