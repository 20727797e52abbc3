package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

func newDiff() *cobra.Command {
	s := newSettings()
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Compare what is installed with what should be",
		Long: `diff reads back what nkp has on the switch, in iptables or in HNS, and compares it with what should be there: with
--manifests or --kubeconfig the state for those Services, else the state that the agent wants. It changes nothing.

A line with + is missing or different, a line with - should not be there; on Windows a line is a step that has to be done.
Exit status: 0 equal, 1 different, 2 error.`,
		Example: `  nkp diff
  nkp diff --kubeconfig /etc/nkp/kubeconfig
  nkp diff --manifests services.yaml --bridge br-int`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.prepare(cmd); err != nil {
				return err
			}
			text, err := s.diff(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				var exit *exitError
				if errors.As(err, &exit) {
					return err
				}
				return &exitError{exitDiffError, err}
			}
			if text == "" {
				return nil
			}
			fmt.Fprint(cmd.OutOrStdout(), text)
			return &exitError{exitFailure, nil}
		},
	}
	s.configFlag(cmd.Flags())
	s.sourceFlags(cmd.Flags())
	s.pipelineFlags(cmd.Flags())
	s.healthzFlag(cmd.Flags())
	s.layoutFlags(cmd.Flags())
	s.switchFlags(cmd.Flags(), defaultOVSDB)
	s.socketFlag(cmd.Flags())
	return cmd
}

func (s *settings) diff(ctx context.Context, stderr io.Writer) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := s.checkSource(); err != nil {
		return "", err
	}
	if !s.namesSource() {
		text, err := agent.NewCaller(s.Socket).Diff(ctx)
		if err != nil {
			return "", fmt.Errorf("%w; without an agent, give --kubeconfig or --manifests", err)
		}
		return text, nil
	}
	c, sw, err := s.chooseNow(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	switch c.mode {
	case agent.ModeWindows:
		return s.diffHNS(ctx, stderr)
	case agent.ModeIPTables:
		model, _, err := s.wantModel(ctx, c.mode, true, stderr)
		if err != nil {
			return "", err
		}
		return fallback.Diff(ctx, model, s.IPTablesOptions(rules.Everything))
	}
	w, err := s.want(ctx, sw, stderr)
	if err != nil {
		return "", err
	}
	conn, err := s.connectSwitch(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	snap, err := conn.ReadBack(ctx, s.Filter())
	if err != nil {
		return "", err
	}
	text := bridge.DiffText(flow.Diff(snap.State, w.compiler.State()))
	scope, ok := s.IPTablesScope(s.HostTrafficFor(w.model, sw))
	if ok && (s.HostTraffic == bridge.HostIPTables || s.LeaveIPTables(ctx, s.LastModes) == "") {
		beside, err := fallback.Diff(ctx, w.model, s.IPTablesOptions(scope))
		return text + beside, err
	}
	return text, nil
}
