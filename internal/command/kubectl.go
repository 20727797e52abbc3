package command

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/remote"
)

// Names of this program by which kubectl calls it: as a plugin, and to complete the plugin's arguments.
const (
	pluginName     = "kubectl-nkp"
	completionName = "kubectl_complete-nkp"
)

// asPlugin reports whether the program was started as kubectl's plugin, and returns its arguments as they are for the plugin's root.
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
		Example:     "  kubectl nkp status\n  kubectl nkp services web\n  kubectl nkp trace --from pod/client --to svc/web:http --live",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nkp"},
		Args:        cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}, // kubectl completes by completionName
	}
	prepareRoot(root, stdout, stderr, newNodesStatus(), newNodesServices(), newNodesTrace(), newNodesDiff(), newNodesUI(), newVersion())
	return root
}

// nodes is what the plugin's commands have in common: a cluster, and the nodes to ask.
type nodes struct {
	rules               *clientcmd.ClientConfigLoadingRules
	overrides           clientcmd.ConfigOverrides
	namespace, selector string
	node                string // "": all
	timeout             time.Duration
}

// parallelNodes bounds how many nodes are asked at a time.
const parallelNodes = 32

// flags defines the common flags. usage is that of --node.
func (n *nodes) flags(cmd *cobra.Command, usage string) {
	f := cmd.Flags()
	f.StringVar(&n.node, "node", "", usage)
	f.DurationVar(&n.timeout, "request-timeout", 30*time.Second, "how long one node may take to answer; status takes 5s at most")
	_ = cmd.RegisterFlagCompletionFunc("node", n.completeNodes) // the flag exists
	defer inGroup(f, groupCluster)()
	f.StringVar(&n.namespace, "nkp-namespace", "kube-system", "namespace of nkp's pods")
	f.StringVar(&n.selector, "nkp-selector", "app.kubernetes.io/name=nkp", "labels of nkp's pods")
	n.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	f.StringVar(&n.rules.ExplicitPath, "kubeconfig", "", "kubeconfig file (default: as kubectl)")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.Timeout.LongName = "" // n.timeout bounds all requests
	clientcmd.BindOverrideFlags(&n.overrides, f, names)
}

// config returns the client's configuration and the namespace that names without one are in.
func (n *nodes) config() (cfg *rest.Config, namespace string, err error) {
	if n.timeout <= 0 {
		return nil, "", usageError("--request-timeout %v is not positive", n.timeout)
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(n.rules, &n.overrides)
	if cfg, err = loader.ClientConfig(); err != nil {
		return nil, "", err
	}
	redirectKlog(slog.New(slog.DiscardHandler)) // client-go also logs what ends as an error or as planned
	cfg.UserAgent = "kubectl-nkp/" + agent.Version
	cfg.QPS = -1 // a request for each node
	cfg.WarningHandler = rest.NoWarnings{}
	namespace, _, err = loader.Namespace()
	return cfg, namespace, err
}

// cluster returns the cluster, and the namespace that names without one are in.
func (n *nodes) cluster() (*remote.Cluster, string, error) {
	cfg, namespace, err := n.config()
	if err != nil {
		return nil, "", err
	}
	c, err := remote.New(cfg, n.namespace, n.selector)
	return c, namespace, err
}

// agents returns the agents to ask, that of --node or all, and what cluster returns.
func (n *nodes) agents(ctx context.Context) (agents []*remote.Agent, c *remote.Cluster, namespace string, err error) {
	if c, namespace, err = n.cluster(); err != nil {
		return nil, nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	if n.node == "" {
		agents, err = c.Agents(ctx)
		return agents, c, namespace, err
	}
	a, err := c.Agent(ctx, n.node)
	return []*remote.Agent{a}, c, namespace, err
}

func (n *nodes) completeNodes(cmd *cobra.Command, _ []string, typed string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	c, _, err := n.cluster()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	agents, _ := c.Agents(ctx) // none: nothing to complete
	for _, a := range agents {
		if strings.HasPrefix(a.Node, typed) {
			names = append(names, a.Node)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// answer is what the agent of a node answered, or why it did not.
type answer[T any] struct {
	Node   string `json:"node"`
	Pod    string `json:"pod"`
	Answer *T     `json:"answer,omitempty"`
	Error  string `json:"error,omitempty"`
}

// askNodes calls ask for each agent, for parallelNodes at a time, and returns the answers in the order of agents.
func askNodes[T any](ctx context.Context, agents []*remote.Agent, timeout time.Duration, ask func(context.Context, *agent.Caller) (*T, error)) []answer[T] {
	answers := make([]answer[T], len(agents))
	var wait sync.WaitGroup
	slots := make(chan struct{}, parallelNodes)
	for i, a := range agents {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			caller := agent.NewRemoteCaller(a.Node, a.Dial)
			defer caller.Close()
			v, err := ask(ctx, caller)
			answers[i] = answer[T]{Node: a.Node, Pod: a.Pod, Answer: v}
			if err != nil {
				answers[i].Answer, answers[i].Error = nil, oneLine(err.Error())
			}
		})
	}
	wait.Wait()
	return answers
}

// complain returns the error for the nodes that did not answer, and if print is set writes why to w; nil: all answered.
func complain[T any](w io.Writer, print bool, answers []answer[T]) error {
	failed := 0
	for _, a := range answers {
		if a.Error == "" {
			continue
		}
		failed++
		if print {
			fmt.Fprintln(w, a.Error)
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %s did not answer", failed, count(len(answers), "node"))
}

// nameList joins at most three names, and says how many more there are.
func nameList(names []string) string {
	if more := len(names) - 3; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), more)
	}
	return strings.Join(names, ", ")
}
