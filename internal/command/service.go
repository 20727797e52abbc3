package command

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/windows/service"
)

// newWindowsService returns the commands that register nkp with the Windows service manager. They are listed on Windows only.
func newWindowsService() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "windows-service",
		Short:   "Install or uninstall the Windows service",
		Example: `  nkp windows-service install -- --kubeconfig C:\k\config --network-name Calico` + "\n  nkp windows-service uninstall",
		Hidden:  runtime.GOOS != "windows",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError("say what to do: %s install or uninstall", cmd.CommandPath())
		},
	}
	cmd.AddCommand(newServiceInstall(), newServiceUninstall())
	return cmd
}

func newServiceInstall() *cobra.Command {
	var depends []string
	cmd := &cobra.Command{
		Use:   "install [flags] [-- FLAGS OF RUN]",
		Short: "Register this program as a service that starts with the system",
		Long: `install registers this program, where it lies now, as the service "nkp": it starts with the system, runs "nkp run
--windows-service" with the flags after --, is started again if it fails (after 1 s, 10 s, then every minute), and logs to
the event log. It does not start it: sc.exe start nkp.`,
		Example: `  nkp windows-service install -- --kubeconfig C:\k\config --network-name Calico` + "\n" +
			`  nkp windows-service install --depends-on hns,flanneld -- --config C:\k\nkp.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			run := newRun()
			if err := run.ParseFlags(args); err != nil {
				return usageError("the service could not start: %w", err)
			}
			if rest := run.Flags().Args(); len(rest) > 0 {
				return usageError("the service could not start: %q is not a flag of run", rest[0])
			}
			err := service.Install(service.Config{
				DisplayName: "nkp (Kubernetes Service proxy)",
				Description: "Serves Kubernetes Services by load balancers of the Host Networking Service.",
				Args:        append([]string{"run", "--windows-service"}, args...),
				DependsOn:   depends,
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "service %q is installed; start it: sc.exe start %s\n", service.Name, service.Name)
			return err
		},
	}
	cmd.Flags().StringSliceVar(&depends, "depends-on", []string{"hns"}, "services that must run first, comma-separated; empty: none")
	return cmd
}

func newServiceUninstall() *cobra.Command {
	return &cobra.Command{
		Use:   "uninstall",
		Short: "Stop and remove the service",
		Long: `uninstall stops the service "nkp" and removes it. Its objects in HNS stay and continue to serve: "nkp cleanup" removes
them.`,
		Example: "  nkp windows-service uninstall",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := service.Uninstall(service.Name); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "service %q is uninstalled\n", service.Name)
			return err
		},
	}
}

// tellEventLog writes the reason why a service ends to the event log, because the standard error of a service is lost.
func tellEventLog(args []string, why error) {
	asService := slices.ContainsFunc(args, func(a string) bool {
		name, value, _ := strings.Cut(a, "=")
		return name == "--windows-service" && value != "false"
	})
	if !asService && !service.IsService() {
		return
	}
	if events, err := service.EventLog(service.Name, slog.LevelInfo); err == nil {
		slog.New(events).Error("nkp exits", "error", why)
	}
}
