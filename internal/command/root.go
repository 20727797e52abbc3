package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit statuses, part of the command-line contract.
const (
	exitOK        = 0
	exitFailure   = 1 // for diff: different
	exitUsage     = 2
	exitDiffError = 2
)

// exitError carries an exit status; with a nil err nothing more is printed.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// Main runs nkp with the program's name, which decides whether it is kubectl's plugin, and the arguments
// after it, and returns the exit status. SIGINT and SIGTERM end it gracefully.
func Main(program string, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	plugin, args := asPlugin(program, args)
	root := newRoot(stdout, stderr)
	if plugin {
		root = newPlugin(stdout, stderr)
	}
	root.SetArgs(args)

	err := root.ExecuteContext(ctx)
	if errors.Is(err, errRestart) {
		err = restart(args)
	}

	if err == nil {
		return exitOK
	}

	var exit *exitError
	if !errors.As(err, &exit) {
		exit = &exitError{exitFailure, err}
		if strings.HasPrefix(err.Error(), "unknown command") {
			exit.status = exitUsage
		}
	}

	if exit.err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", root.DisplayName(), exit.err)
		writeEventLog(args, exit.err)
	}

	return exit.status
}

// commandGroups are the groups of commands in --help.
var commandGroups = []struct {
	title string
	names []string
}{
	{"Serve Services", []string{"run", "cleanup", "windows-service"}},
	{"Look at a node", []string{
		"status", "services", "pods", "flows", "trace", "diff", "ui", "bundle", "log-level", "hns-selftest",
	}},
	{"Plan", []string{"plan"}},
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	run := newRun()
	root := &cobra.Command{
		Use:   "nkp",
		Short: "Kubernetes Services inside Open vSwitch",
		Long: `nkp does kube-proxy's job inside Open vSwitch: it follows Services and EndpointSlices and programs the bridge
over OpenFlow 1.5 with a conntrack pipeline and select groups. Without a command it runs ("nkp run").`,
		Example: "  nkp run --kubeconfig /etc/nkp/kubeconfig --bridge br-int\n" +
			"  nkp run --manifests services.yaml --bridge br-int\n  nkp plan --manifests services.yaml",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return run.RunE(cmd, args)
		},
	}
	root.Flags().AddFlagSet(run.Flags())
	prepareRoot(root, stdout, stderr,
		run, newPlan(), newDiff(thisMachine()), newStatus(thisMachine()), newServices(thisMachine()),
		newTrace(thisMachine()), newUI(thisMachine()), newPods(), newFlows(), newBundle(thisMachine()),
		newLogLevel(), newCleanup(), newVersion(), newWindowsService(), newHNSSelftest(), newConnect())
	return root
}

// prepareRoot adds commands to a root, and what all of them have: where they print, how errors and help read,
// completion.
func prepareRoot(root *cobra.Command, stdout, stderr io.Writer, commands ...*cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if args := cmd.Flags().Args(); !cmd.HasParent() && len(args) > 0 {
			return unknownCommand(cmd, args[0]) // and the flag is that command's
		}
		hint := ""
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
			hint = suggestFlag(cmd.Flags(), unknown)
		}
		return usageError("%w%s; see \"%s --help\"", err, hint, cmd.CommandPath())
	})

	root.SetGlobalNormalizationFunc(dashes)
	root.SetHelpFunc(printHelp)
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		printUsage(cmd.OutOrStderr(), cmd)
		return nil
	})

	for _, g := range commandGroups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
	}
	for _, c := range commands {
		if c.Args == nil {
			c.Args = noArguments
		}
		for _, g := range commandGroups {
			if slices.Contains(g.names, c.Name()) {
				c.GroupID = g.title
			}
		}
		root.AddCommand(c)
	}

	completeFlags(root)
}

func unknownCommand(root *cobra.Command, name string) error {
	return usageError("unknown command %q%s; \"%s --help\" lists the commands",
		name, suggestCommand(root, name), root.DisplayName())
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError("%s takes no argument, got %q%s",
			cmd.CommandPath(), args[0], suggestCommand(cmd, args[0]))
	}
	return nil
}

// suggestCommand returns a hint with the commands below cmd whose names are like name; "": none is.
func suggestCommand(cmd *cobra.Command, name string) string {
	cmd.SuggestionsMinimumDistance = 2 // typing errors
	like := cmd.SuggestionsFor(name)
	if len(like) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(like, ", ") + "?"
}

// dashes lets flags be written with underscores, as kube-proxy does.
func dashes(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}
