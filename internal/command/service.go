package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/windows/service"
)

// newWindowsService returns the commands that install nkp as a Windows service. They are listed on Windows
// only.
func newWindowsService() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "windows-service",
		Short: "Install, upgrade or uninstall the Windows service",
		Example: `  nkp windows-service install -- --kubeconfig C:\k\config --network-name Calico
  nkp windows-service upgrade --sha256 CHECKSUM
  nkp windows-service uninstall`,
		Hidden: runtime.GOOS != "windows",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError("say what to do: %s install, upgrade, uninstall or status", cmd.CommandPath())
		},
	}
	cmd.AddCommand(newServiceInstall(), newServiceUpgrade(),
		newServiceUninstall(), newServiceStatus(), newServiceCheck())
	return cmd
}

// serviceFlags defines the flags of install and upgrade.
func serviceFlags(f *pflag.FlagSet, c *service.Config) {
	f.StringVar(&c.Binary, "binary", "", "program to install (default: this one)")
	f.StringVar(&c.SHA256, "sha256", "", "checksum that the program must have, as in SHA256SUMS")
	f.DurationVar(&c.Timeout, "timeout", 2*time.Minute,
		"how long the started service may take to serve, before everything is undone")
	dryRunFlag(f, c)
}

func dryRunFlag(f *pflag.FlagSet, c *service.Config) {
	f.BoolVar(&c.DryRun, "dry-run", false, "check everything and print the steps, change nothing")
}

func newServiceInstall() *cobra.Command {
	var c service.Config
	cmd := &cobra.Command{
		Use:   "install [flags] [-- FLAGS OF RUN]",
		Short: "Install the service that starts with the system, and start it",
		Long: `install copies the program to --directory and registers it as the service "nkp": it starts with the system, runs "nkp
run --windows-service" with the flags after --, is restarted if it fails (after 1 s, 10 s, then every minute), and logs to the
event log. If the service exists, install changes what differs; the load balancers in HNS serve meanwhile.

Everything is checked before anything is changed: that only administrators can change or replace --directory, the program, its
checksum, that it accepts the flags and can read their files, and that no kube-proxy runs beside it. The program is checked and
run as a copy in --directory, which is removed unless it is installed. If a step fails or the service does not serve within
--timeout (its /livez, or 5 s of running without one), everything is undone.

install changes neither kube-proxy's service nor the firewall. It fails while kube-proxy's service runs. Health checks of
load balancers and the metrics of other nodes need a rule of the firewall; deploy/README.md has the commands.`,
		Example: `  nkp windows-service install -- --kubeconfig C:\k\config --network-name Calico
  nkp windows-service install --dry-run -- --config C:\k\nkp.yaml
  nkp windows-service install --depends-on hns,flanneld -- --config C:\k\nkp.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); n > 0 || n < 0 && len(args) > 0 {
				return usageError("%q is not a flag; flags of run follow --", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Args, c.Out = args, cmd.OutOrStdout()
			return flagsError(service.Install(cmd.Context(), c))
		},
	}
	f := cmd.Flags()
	serviceFlags(f, &c)
	f.StringVar(&c.Directory, "directory", "",
		"where the program is copied to; only administrators may be able to change or replace it "+
			"(default: nkp in %ProgramFiles%)")
	f.StringSliceVar(&c.DependsOn, "depends-on", []string{"hns"},
		"services that must run first, comma-separated; empty: none")
	return cmd
}

// flagsError makes an error about the service's flags a usage error.
func flagsError(err error) error {
	if errors.Is(err, service.ErrFlags) {
		return usageError("%w", err)
	}
	return err
}

func newServiceUpgrade() *cobra.Command {
	var c service.Config
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Replace the program of the service",
		Long: `upgrade replaces the program of the service by this one or by --binary, and keeps its flags and settings. The new program must
accept the flags of the service. The old one stays beside it as nkp.exe.old, and is restored if the new one does not serve within
--timeout. The load balancers in HNS serve meanwhile.`,
		Example: "  nkp windows-service upgrade\n" +
			"  nkp windows-service upgrade --binary nkp-windows-amd64.exe --sha256 CHECKSUM",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Out = cmd.OutOrStdout()
			return flagsError(service.Upgrade(cmd.Context(), c))
		},
	}
	serviceFlags(cmd.Flags(), &c)
	return cmd
}

func newServiceUninstall() *cobra.Command {
	var c service.Config
	var cleanup bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Stop and remove the service",
		Long: `uninstall stops the service "nkp" and removes it with its program. nkp's objects in HNS stay and continue to serve,
unless --cleanup is given.`,
		Example: "  nkp windows-service uninstall\n  nkp windows-service uninstall --cleanup",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Out = cmd.OutOrStdout()
			return service.Uninstall(cmd.Context(), c, cleanup)
		},
	}
	dryRunFlag(cmd.Flags(), &c)
	cmd.Flags().BoolVar(&cleanup, "cleanup", false, "also remove nkp's objects from HNS, as nkp cleanup does")
	return cmd
}

func newServiceStatus() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print the state of the service and what it was installed with",
		Long: "status prints the state and the settings of the service \"nkp\". The exit status is 0 if " +
			"it runs, else 1. What it does, nkp status says.",
		Example: "  nkp windows-service status -o json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := service.Query()
			if err != nil {
				return err
			}

			if o.data() {
				err = o.write(cmd.OutOrStdout(), st)
			} else {
				err = printService(cmd.OutOrStdout(), st)
			}

			if err == nil && st.State != "running" {
				return &exitError{exitFailure, nil}
			}
			return err
		},
	}

	o.flag(cmd, outputUsage)
	return cmd
}

// printService writes the state of the service for people.
func printService(w io.Writer, st service.State) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "state\t%s\n", st.State)
	if st.Program != "" {
		fmt.Fprintf(t, "program\t%s\nflags\t%q\n", st.Program, st.Args)
		fmt.Fprintf(t, "start type\t%s\ndepends on\t%s\n", st.StartType, strings.Join(st.DependsOn, ", "))
	}
	return t.Flush()
}

// newServiceCheck returns the command that install and upgrade run of the program that they are to install:
// only that program knows which flags it accepts.
func newServiceCheck() *cobra.Command {
	return &cobra.Command{
		Use:     "check [-- FLAGS OF RUN]",
		Short:   "Check flags of run, and print what install must know of them",
		Example: `  nkp windows-service check -- --config C:\k\nkp.yaml`,
		Hidden:  true,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSettings()
			run := &cobra.Command{}
			run.SetErr(cmd.ErrOrStderr())
			run.SetGlobalNormalizationFunc(dashes)
			s.runFlags(run.Flags())

			if err := run.ParseFlags(args); err != nil {
				return usageError("%w", err)
			}

			if rest := run.Flags().Args(); len(rest) > 0 {
				return usageError("%q is not a flag of run", rest[0])
			}

			if err := s.prepare(run); err != nil {
				return err
			}
			if _, err := s.process.level(); err != nil {
				return err
			}
			if _, _, err := s.source(); err != nil {
				return err
			}

			return json.NewEncoder(cmd.OutOrStdout()).Encode(s.program())
		},
	}
}

// program returns what an installation must know of the settings.
func (s *settings) program() service.Program {
	p := service.Program{Version: agent.Version}
	if at, err := netip.ParseAddrPort(s.HealthzAddr); err == nil && at.Port() != 0 {
		if at.Addr().IsUnspecified() {
			at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
		}
		p.Livez = "http://" + at.String() + "/livez"
	}
	return p
}

// writeEventLog writes the reason why a service ends to the event log, because the standard error of a
// service is lost.
func writeEventLog(args []string, why error) {
	asService := slices.ContainsFunc(args, func(a string) bool {
		name, value, _ := strings.Cut(a, "=")
		return name == "--windows-service" && value != "false"
	})
	if !asService && !service.IsService() {
		return
	}
	if events, err := service.EventLog(slog.LevelInfo); err == nil {
		slog.New(events).Error("nkp exits", "error", why)
	}
}
