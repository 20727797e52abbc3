package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/httpguard"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/internal/ui"
)

func newUI(on *target) *cobra.Command {
	listen := loopbackFlag("127.0.0.1:0")
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show Services, traces and the node on a web page",
		Long: `ui serves a web page on this machine's loopback until Ctrl-C, and prints its address. The page shows what the running agent
answers to nkp status, nkp services and nkp trace --live: Services with their rates and problems, one Service as a picture, the
path of a packet through the pipeline, and how the node is. It changes nothing; its button "Send a packet" does what nkp trace --probe does.

The address contains a random token, a new one each time. Whoever has it and can connect to this machine's loopback sees the page.
From another machine, forward the port with ssh -L.`,
		Example: `  nkp ui
  nkp ui --listen 127.0.0.1:8080
  ssh -t -L 8080:127.0.0.1:8080 root@node-1 nkp ui --listen 127.0.0.1:8080`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := listen.address()
			if err != nil {
				return err
			}
			peers, err := on.peers(cmd)
			if err != nil {
				return err
			}
			first := peers[0].Caller
			if on.nodes == nil {
				if _, err := first.Status(cmd.Context()); err != nil && api.Listens(on.Socket) != nil {
					return err
				}
			}

			token := rand.Text()
			page := ui.Handler(uiSource(first, on.Layout.TableBase), token)
			if on.nodes != nil && on.nodes.node == "" {
				sources := map[string]ui.Source{}
				for _, p := range peers {
					sources[p.Node] = uiSource(p.Caller, on.Layout.TableBase)
				}
				page = ui.NodesHandler(sources, token)
			}
			return serveUI(cmd.Context(), page, token, at, cmd.OutOrStdout())
		},
	}

	if on.nodes != nil {
		on.nodes.adapt(cmd, "only this node", "Show the nodes' Services, traces and state on a web page",
			`ui serves a web page on this machine's loopback until Ctrl-C, and prints its address. The page lists the
nodes; each leads to the page that nkp ui serves on that node, with what its agent answers. With --node
the page is that node's. Nothing listens in the cluster.

The address contains a random token, a new one each time. Whoever has it and can connect to this
machine's loopback sees the page.`,
			"  kubectl nkp ui\n  kubectl nkp ui --node node-1 --listen 127.0.0.1:8080")
	} else {
		on.use(cmd.Flags(), groupLayout, "config", "socket")
	}
	listen.flag(cmd)
	return cmd
}

// loopbackFlag is the flag --listen.
type loopbackFlag string

func (l *loopbackFlag) flag(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(l), "listen", string(*l),
		"127.0.0.1 or [::1], with the port to serve the page at; 0: any that is free")
}

// address returns the address to listen on. One that is not loopback is a usage error.
func (l loopbackFlag) address() (string, error) {
	at, err := netip.ParseAddrPort(string(l))
	if err != nil || !ui.Loopback(at.Addr()) {
		return "", usageError(
			"--listen %q is not 127.0.0.1:PORT or [::1]:PORT; to see the page on another machine use ssh -L",
			string(l))
	}
	return at.String(), nil
}

// uiSource connects the page to the agent.
func uiSource(caller *api.Caller, tableBase uint8) ui.Source {
	return ui.Source{
		Status: func(ctx context.Context) (any, error) { return caller.Status(ctx) },
		Services: func(ctx context.Context, q ui.ServicesQuery) (any, error) {
			return caller.Services(ctx,
				api.ServiceFilter{Namespace: q.Namespace, Name: q.Name, Connections: q.Connections})
		},
		Trace: func(ctx context.Context, q ui.TraceQuery) (any, error) {
			return caller.Trace(ctx, trace.Request{
				From: q.From, To: q.To, Protocol: q.Protocol, In: q.In, Live: q.Live, Probe: q.Probe,
			})
		},
		Pods:      func(ctx context.Context) (any, error) { return caller.Pods(ctx) },
		TableBase: tableBase,
	}
}

// serveUI serves the page with a token at an address until the context ends.
func serveUI(ctx context.Context, page http.Handler, token, at string, out io.Writer) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	addr := l.Addr().(*net.TCPAddr)
	fmt.Fprintf(out, `http://%s/%s/

Open this address in a browser on this machine; whoever has it sees the page. Ctrl-C ends it.
From another machine: ssh -N -L %d:%s root@THIS-NODE, and open the same address there.
`, addr, token, addr.Port, addr)
	srv := httpguard.New(ui.Limits, slog.New(slog.DiscardHandler)).Server(page)
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
