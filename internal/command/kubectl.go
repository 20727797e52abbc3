package command

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/remote"
)

// Names of this program by which kubectl calls it: as a plugin, and to complete the plugin's arguments.
const (
	pluginName     = "kubectl-nkp"
	completionName = "kubectl_complete-nkp"
)

// asPlugin reports whether the program was started as kubectl's plugin, and returns its arguments as they are
// for the plugin's root.
func asPlugin(program string, args []string) (bool, []string) {
	name := strings.TrimSuffix(filepath.Base(program), ".exe")
	switch {
	case name == completionName:
		return true, append([]string{cobra.ShellCompRequestCmd}, args...)
	case strings.ReplaceAll(name, "_", "-") == pluginName:
		return true, args
	}
	return false, args
}

// Plugin returns the root of kubectl's plugin, for generated documentation. It must not be executed.
func Plugin() *cobra.Command { return newPlugin(io.Discard, io.Discard) }

func newPlugin(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "nkp",
		Short: "nkp on the nodes of a cluster",
		Long: `kubectl nkp asks the agents of nkp on a cluster's nodes. It finds nkp's pods, runs "nkp connect" in them as kubectl exec does, and prints
the answers. You need the right to list pods and nodes, and to create and get pods/exec in nkp's namespace. It changes nothing.`,
		Example: "  kubectl nkp status\n  kubectl nkp services web\n" +
			"  kubectl nkp trace --from pod/client --to svc/web:http --live",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nkp"},
		Args:        cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
		// kubectl completes by completionName
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	prepareRoot(root, stdout, stderr,
		newStatus(clusterNodes()), newServices(clusterNodes()), newTrace(clusterNodes()),
		newDiff(clusterNodes()), newWait(clusterNodes()), newUI(clusterNodes()), newBundle(clusterNodes()),
		newVersion())
	return root
}

// nodes finds the agents of a cluster's nodes by the flags that the plugin's commands have in common.
type nodes struct {
	rules                  *clientcmd.ClientConfigLoadingRules
	overrides              clientcmd.ConfigOverrides
	nkpNamespace, selector string // of nkp's pods
	node                   string // "": all
	timeout                time.Duration

	// What connect sets.
	cluster   *remote.Cluster
	namespace string // that names without one are in
}

// adapt gives a command the flags that find the nodes, and the help of kubectl's plugin. usage is that of
// --node.
func (n *nodes) adapt(cmd *cobra.Command, usage, short, long, example string) {
	cmd.Short, cmd.Long, cmd.Example = short, long, example
	f := cmd.Flags()
	f.StringVar(&n.node, "node", "", usage)
	f.DurationVar(&n.timeout, "request-timeout", 30*time.Second,
		"how long one node may take to answer; status takes 5s at most")
	_ = cmd.RegisterFlagCompletionFunc("node", n.completeNodes) // the flag exists
	defer inGroup(f, groupCluster)()
	f.StringVar(&n.nkpNamespace, "nkp-namespace", "kube-system", "namespace of nkp's pods")
	f.StringVar(&n.selector, "nkp-selector", "app.kubernetes.io/name=nkp", "labels of nkp's pods")
	n.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	f.StringVar(&n.rules.ExplicitPath, "kubeconfig", "", "kubeconfig file (default: as kubectl)")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.Timeout.LongName = "" // n.timeout bounds all requests
	clientcmd.BindOverrideFlags(&n.overrides, f, names)
}

// connect finds the cluster, and the namespace that names without one are in.
func (n *nodes) connect() error {
	if n.timeout <= 0 {
		return usageError("--request-timeout %v is not positive", n.timeout)
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(n.rules, &n.overrides)
	cfg, err := loader.ClientConfig()
	if err != nil {
		return err
	}
	redirectKlog(slog.New(slog.DiscardHandler)) // client-go also logs what ends as an error or as planned
	cfg.UserAgent = "kubectl-nkp/" + agent.Version
	cfg.QPS = -1 // a request for each node
	cfg.WarningHandler = rest.NoWarnings{}
	if n.namespace, _, err = loader.Namespace(); err != nil {
		return err
	}
	n.cluster, err = remote.New(cfg, n.nkpNamespace, n.selector)
	return err
}

// peers connects, and returns the agents to ask, that of --node or all.
func (n *nodes) peers(ctx context.Context) ([]peer, error) {
	if err := n.connect(); err != nil {
		return nil, err
	}
	return n.agents(ctx)
}

// agents returns the agents to ask as of now.
func (n *nodes) agents(ctx context.Context) ([]peer, error) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	agents, err := n.cluster.Agents(ctx, n.node)
	peers := make([]peer, 0, len(agents))
	for _, a := range agents {
		peers = append(peers, peer{a.Node, a.Pod, api.NewRemoteCaller(a.Node, a.Dial)})
	}
	return peers, err
}

func (n *nodes) completeNodes(
	cmd *cobra.Command, _ []string, typed string,
) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	n.node = ""
	peers, _ := n.peers(ctx) // none: nothing to complete
	for _, p := range peers {
		if strings.HasPrefix(p.Node, typed) {
			names = append(names, p.Node)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
