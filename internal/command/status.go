package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
)

func newStatus() *cobra.Command {
	var socket, output string
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Ask the running agent how it is",
		Example: "  nkp status\n  nkp status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" && output != "text" {
				return usageError("-o %q is not text or json", output)
			}
			s, err := agent.NewCaller(socket).Status(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(s)
			}
			return writeStatus(cmd.OutOrStdout(), s, time.Now())
		},
	}
	cmd.Flags().StringVar(&socket, "socket", defaultSocket, "unix socket of the running agent")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func writeStatus(out io.Writer, s *agent.Status, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(key, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", key, fmt.Sprintf(format, args...)) }
	ago := func(t time.Time) string { return now.Sub(t).Round(time.Second).String() + " ago" }
	line("nkp", "%s on node %s, started %s", s.Version, s.Node, ago(s.Started))
	line("mode", "%s: %s", s.Mode, s.Reason)
	delivery := "through the gateway"
	if s.Bridge.LocalDelivery {
		delivery = "straight"
	}
	line("bridge", "%s, datapath %s, Open vSwitch %s, uplink port %d, %d pod addresses (delivery %s)", s.Bridge.Name, s.Bridge.Datapath,
		s.Bridge.OVSVersion, s.Bridge.Uplink, s.Bridge.Pods, delivery)
	if s.Channel.Connected {
		line("channel", "connected to %s since %s", s.Channel.Target, s.Channel.Since)
	} else {
		line("channel", "NOT connected to %s: %s", s.Channel.Target, s.Channel.LastError)
	}
	state := "synced"
	switch {
	case !s.Source.Synced:
		state = "NOT synced yet"
	case len(s.Source.Errors) > 0:
		state = fmt.Sprintf("%d errors; the last good state of those objects is in force", len(s.Source.Errors))
	}
	line("source", "%s: %s", s.Source.Kind, state)
	line("services", "%d Service ports, %d endpoints; %d flows, %d groups", s.ServicePorts, s.Endpoints, s.Flows, s.Groups)
	step := "the switch holds what it should"
	if !s.InStep {
		step = "the switch does NOT hold what it should yet"
	}
	if s.LastSync != nil {
		step += ", last change " + ago(*s.LastSync)
	}
	line("in step", "%s; repaired %d times", step, s.Repairs)
	line("programming", "%d changes, p50 %.2f ms, p99 %.2f ms; in the channel p50 %.2f ms, p99 %.2f ms", s.Programming.Changes,
		s.Programming.P50Milli, s.Programming.P99Milli, s.Programming.ChannelP50Milli, s.Programming.ChannelP99Milli)
	line("refused packets", "%d answered, %d dropped, %d failed", s.Rejects.Answered, s.Rejects.Dropped, s.Rejects.Failed)
	for _, r := range s.Refused {
		line("REFUSED", "%s: %s (%d times, next try %s)", r.Service, r.Error, r.Times, r.RetryAt.Format(time.TimeOnly))
	}
	for _, e := range s.Source.Errors {
		line("ERROR", "%s", e)
	}
	if s.LastError != "" {
		line("LAST ERROR", "%s", strings.ReplaceAll(s.LastError, "\n", "; "))
	}
	for _, t := range s.Warnings {
		line("WARNING", "%s", t)
	}
	return w.Flush()
}
