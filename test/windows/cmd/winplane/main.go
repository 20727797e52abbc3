// Command winplane is the Windows data plane by itself: Services from manifests, load balancers into HNS. The tests of
// test/windows run it under Wine against a fake HNS.
//
//	winplane run|diff|plan|cleanup|install|uninstall|sleep [flags]
//
// sleep does nothing for long: Wine ends its services when no other program runs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/windows"
	"github.com/nkp-proxy/nkp/windows/service"
)

type flags struct {
	manifests, node, sourceVIP, status, name, log string
	asService                                     bool
	opts                                          windows.Options
}

func main() {
	f := &flags{}
	if len(os.Args) < 2 {
		fail(2, errors.New("say what to do: run, diff, plan, cleanup, install, uninstall or sleep"))
	}
	set := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	set.StringVar(&f.manifests, "manifests", "", "file or directory of Services, EndpointSlices and Nodes")
	set.StringVar(&f.node, "hostname-override", "", "name of this node")
	set.StringVar(&f.sourceVIP, "source-vip", "", "source VIP of an overlay network")
	set.StringVar(&f.status, "status", "", "file to write the status to, over and over")
	set.StringVar(&f.log, "log", "", "file to log to, beside the standard error")
	set.StringVar(&f.name, "service-name", service.Name, "name of the service")
	set.BoolVar(&f.asService, "windows-service", false, "run as a service of the Service Control Manager")
	set.StringVar(&f.opts.NetworkName, "network-name", "", "HNS network")
	set.BoolVar(&f.opts.EnableDSR, "enable-dsr", false, "direct server return for ClusterIPs")
	set.BoolVar(&f.opts.ForwardHealthCheckVIP, "forward-healthcheck-vip", false, "forward health checks of load balancers")
	set.StringVar(&f.opts.RootEndpointName, "root-hnsendpoint-name", "", "endpoint of the host")
	set.Func("setenv", "NAME=VALUE to put into the environment: services do not get the test's", func(s string) error {
		name, value, _ := strings.Cut(s, "=")
		return os.Setenv(name, value)
	})
	healthz := set.Uint("healthz-port", 0, "port of the agent's health checks")
	set.StringVar(&f.opts.StateFile, "state-file", "", "where ownership is kept")
	set.StringVar(&f.opts.HostMAC, "host-mac", "", "MAC address of the node")
	set.DurationVar(&f.opts.AuditPeriod, "audit-period", 0, "time between audits")
	set.DurationVar(&f.opts.MinSync, "min-sync-period", 0, "least time between syncs")
	_ = set.Parse(os.Args[2:]) // it exits by itself
	f.opts.HealthzPort = uint16(*healthz)
	if f.sourceVIP != "" {
		a, err := netip.ParseAddr(f.sourceVIP)
		if err != nil {
			fail(2, err)
		}
		f.opts.SourceVIP = a
	}
	if f.log != "" {
		w, err := os.OpenFile(f.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			fail(1, err)
		}
		slog.SetDefault(slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})))
	}
	if err := f.do(os.Args[1]); err != nil {
		fail(1, err)
	}
}

func fail(code int, err error) {
	fmt.Fprintln(os.Stderr, "winplane:", err)
	os.Exit(code)
}

func (f *flags) do(what string) error {
	switch what {
	case "run":
		if f.asService {
			return service.Run(f.name, f.run)
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		return f.run(ctx)
	case "diff", "plan":
		return f.once(what)
	case "cleanup":
		n, err := windows.Cleanup(context.Background(), f.opts)
		fmt.Println(n, "objects removed")
		return err
	case "install":
		return service.Install(service.Config{Name: f.name, Description: "nkp under test", Args: os.Args[len(os.Args)-f.rest():], DependsOn: []string{}})
	case "uninstall":
		return service.Uninstall(f.name)
	case "sleep":
		time.Sleep(time.Hour)
		return nil
	}
	return fmt.Errorf("unknown command %q", what)
}

// rest gives the number of arguments after "--": those of the service to install.
func (f *flags) rest() int {
	for i, a := range os.Args {
		if a == "--" {
			return len(os.Args) - i - 1
		}
	}
	return 0
}

// run follows the manifests until the context ends.
func (f *flags) run(ctx context.Context) error {
	plane, err := windows.New(f.opts)
	if err != nil {
		return err
	}
	done := make(chan error, 2)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { done <- plane.Run(ctx) }()
	go func() { done <- follow(ctx, f.manifests, f.node, plane) }()
	for {
		select {
		case err := <-done:
			cancel()
			return errors.Join(err, <-done)
		case <-time.After(50 * time.Millisecond):
			if err := f.writeStatus(plane); err != nil {
				slog.Warn("cannot write the status", "error", err)
			}
		}
	}
}

// writeStatus replaces the status file.
func (f *flags) writeStatus(plane *windows.Plane) error {
	if f.status == "" {
		return nil
	}
	text, err := json.Marshal(plane.Status())
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.status+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(f.status+".new", f.status)
}

// once plans or diffs, from the manifests as they are.
func (f *flags) once(what string) error {
	plane, err := windows.New(f.opts)
	if err != nil {
		return err
	}
	if err := load(f.manifests, f.node, plane); err != nil {
		return err
	}
	if what == "plan" {
		text, err := plane.Plan()
		_, _ = os.Stdout.Write(text)
		return err
	}
	steps, err := plane.Diff(context.Background())
	for _, s := range steps {
		fmt.Println(s)
	}
	return err
}
