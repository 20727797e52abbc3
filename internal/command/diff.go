package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/bridge"
)

func newDiff() *cobra.Command {
	s := newSettings()
	var o output
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Compare what is installed with what should be",
		Long: `diff reads back what nkp has on the switch, in iptables or in HNS, and compares it with what should be there: with
--manifests or --kubeconfig the state for those Services, else the state that the agent wants. It changes nothing.

A line with + is missing or different, a line with - should not be there; on Windows a line is a step that has to be done. A
line with ! is a flow of another owner that can keep Service packets from arriving; nkp leaves it alone;
or says that no flow is in force, because ovs-vswitchd forwards every packet by itself.
Without a difference nothing is printed, except "no difference" on a terminal.
Exit status: 0 equal, 1 different, 2 error.`,
		Example: `  nkp diff
  nkp diff --kubeconfig /etc/nkp/kubeconfig
  nkp diff --manifests services.yaml --bridge br-int
  nkp diff -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.prepare(cmd); err != nil {
				return &exitError{exitDiffError, err}
			}
			text, err := s.diff(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				var exit *exitError
				if errors.As(err, &exit) {
					return err
				}
				return &exitError{exitDiffError, err}
			}
			if err := writeDiff(cmd.OutOrStdout(), &o, text); err != nil {
				return &exitError{exitDiffError, err}
			}
			if text != "" {
				return &exitError{exitFailure, nil}
			}
			return nil
		},
	}
	s.configFlag(cmd.Flags())
	s.sourceFlags(cmd.Flags())
	s.pipelineFlags(cmd.Flags())
	s.healthzFlag(cmd.Flags())
	s.layoutFlags(cmd.Flags())
	s.switchFlags(cmd.Flags(), defaultOVSDB)
	s.socketFlag(cmd.Flags())
	o.flag(cmd, outputUsage)
	return cmd
}

// diffView is what `nkp diff -o json` prints. Lines is never null.
type diffView struct {
	Equal bool     `json:"equal"`
	Lines []string `json:"lines"`
}

// newDiffView returns the text of a difference, "" for none, by lines.
func newDiffView(text string) diffView {
	view := diffView{Equal: text == "", Lines: []string{}}
	for line := range strings.Lines(text) {
		view.Lines = append(view.Lines, strings.TrimSuffix(line, "\n"))
	}
	return view
}

// writeDiff prints the text of a difference, "" for none.
func writeDiff(w io.Writer, o *output, text string) error {
	if o.data() {
		return o.write(w, newDiffView(text))
	}
	if _, _, terminal := terminalSize(w); text == "" && terminal {
		text = "no difference\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// needsAgent adds to ErrAbsent how to go on without an agent. It returns other errors as they are.
func needsAgent(err error) error {
	if errors.Is(err, agent.ErrAbsent) {
		return fmt.Errorf("%w; without an agent, pass --kubeconfig or --manifests", err)
	}
	return err
}

// hostMode returns the data plane that serves the node's own traffic beside a bridge: that of the last run, unless --host-traffic names
// another, else the one that an agent would take now. If it is "", none would, for the reason in off.
func (s *settings) hostMode(ctx context.Context, scope serving.Scope) (m agent.Mode, off string) {
	if last := s.LastModes(); s.HostTraffic == bridge.HostAuto && len(last) > 1 && last[0] == agent.ModeOVS {
		return last[1], ""
	}
	return s.HostMode(ctx, scope, s.LastModes)
}

func (s *settings) diff(ctx context.Context, stderr io.Writer) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := s.checkSource(); err != nil {
		return "", err
	}
	if !s.namesSource() {
		if err := s.cfg.checkAgent(); err != nil {
			return "", err
		}
		text, err := agent.NewCaller(s.Socket).Diff(ctx)
		if err != nil {
			return "", needsAgent(err)
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
	case agent.ModeIPTables, agent.ModeNFTables:
		model, _, err := s.wantModel(ctx, c.mode, true, stderr)
		if err != nil {
			return "", err
		}
		return s.DiffRules(ctx, c.mode, serving.Everything, model)
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
	d, err := s.Compare(ctx, conn, sw, w.compiler)
	if err != nil {
		return "", err
	}
	text := d.Text()
	scope, ok := s.IPTablesScope(s.HostTrafficFor(w.model, sw))
	if !ok {
		return text, nil
	}
	m, _ := s.hostMode(ctx, scope)
	if m == "" {
		return text, nil
	}
	beside, err := s.DiffRules(ctx, m, scope, w.model)
	return text + beside, err
}
