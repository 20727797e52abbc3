package command

import (
	"context"
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
	s := newSettings()
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Ask the running agent how it is",
		Long: `status asks the running agent through its socket. If none answers it says what nkp has on the switch: Services are
served without an agent, too. Exit status: 0 an agent answered, 1 none did.`,
		Example: "  nkp status\n  nkp status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" && output != "text" {
				return usageError("-o %q is not text or json", output)
			}
			st, err := agent.NewCaller(s.Socket).Status(cmd.Context())
			if err != nil {
				return s.withoutAgent(cmd.Context(), err)
			}
			if output == "json" {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(st)
			}
			return writeStatus(cmd.OutOrStdout(), st, time.Now())
		},
	}
	s.switchFlags(cmd.Flags(), defaultOVSDB)
	s.layoutFlags(cmd.Flags())
	s.socketFlag(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// withoutAgent adds to the error that no agent answers what nkp has on the switch, if the switch can be asked.
func (s *settings) withoutAgent(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, dialErr := s.connectSwitch(ctx)
	if dialErr != nil {
		return err
	}
	defer conn.Close()
	snap, readErr := conn.ReadBack(ctx, s.Filter())
	if readErr != nil {
		return err
	}
	return fmt.Errorf("%w; bridge %s holds %d flows and %d groups of nkp's", err, s.Bridge, len(snap.State.Flows), len(snap.State.Groups))
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
	if s.HostTraffic != "" {
		line("host traffic", "%s", s.HostTraffic)
	}
	if s.Channel.Connected {
		line("channel", "connected to %s since %s", s.Channel.Target, s.Channel.Since)
	} else {
		line("channel", "NOT connected to %s: %s", s.Channel.Target, s.Channel.LastError)
	}
	state := "synced"
	away := s.Source.Answers != nil && !*s.Source.Answers
	switch {
	case !s.Source.Synced:
		state = "NOT synced yet"
	case away:
		state = "does NOT answer; the last state stays in force"
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
