package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/mode"
)

func newDiff(on *target) *cobra.Command {
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
			equal, err := on.diff(cmd, &o)
			var exit *exitError
			switch {
			case errors.As(err, &exit):
				return err
			case err != nil:
				return &exitError{exitDiffError, err}
			case !equal:
				return &exitError{exitFailure, nil}
			}
			return nil
		},
	}

	if fs := cmd.Flags(); on.nodes != nil {
		on.nodes.adapt(cmd, "only this node", "Compare what is installed on each node with what should be",
			`diff runs the comparison of nkp diff on every node, or on --node, and prints its lines after the node's
name. Exit status: 0 equal everywhere, 1 different somewhere, 2 error, such as a node that does not
answer.`,
			"  kubectl nkp diff\n  kubectl nkp diff --node node-1 -o json")
	} else {
		on.usePlanning(fs)
		on.use(fs, "healthz-bind-address", "socket")
	}
	o.flag(cmd, outputUsage)
	return cmd
}

// diff prints the differences that the agents find, or those to the flags' source, and reports whether there
// are none.
func (on *target) diff(cmd *cobra.Command, o *output) (equal bool, err error) {
	out := cmd.OutOrStdout()
	if on.nodes == nil {
		if err := on.prepare(cmd); err != nil {
			return false, err
		}
		text, err := on.diffHere(cmd.Context(), cmd.ErrOrStderr())
		if err != nil {
			return false, err
		}
		return text == "", writeDiff(out, o, text)
	}

	peers, err := on.nodes.peers(cmd.Context())
	if err != nil {
		return false, err
	}
	ask := func(ctx context.Context, c *api.Caller) (*diffView, error) {
		text, err := c.Diff(ctx)
		view := newDiffView(text)
		return &view, err
	}
	answers := askAll(cmd.Context(), peers, on.timeout(), ask)

	equal = true
	for _, a := range answers {
		if a.Answer == nil {
			continue
		}
		equal = equal && a.Answer.Equal
		for _, line := range a.Answer.Lines {
			if !o.data() {
				fmt.Fprintf(out, "%s: %s\n", a.Node, line)
			}
		}
	}
	if o.data() {
		if err := o.write(out, map[string]any{"nodes": answers}); err != nil {
			return false, err
		}
	}
	return equal, complain(cmd.ErrOrStderr(), !o.data(), answers)
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
	if errors.Is(err, api.ErrAbsent) {
		return fmt.Errorf("%w; without an agent, pass --kubeconfig or --manifests", err)
	}
	return err
}

// hostMode returns the data plane that serves the node's own traffic beside a bridge: that of the last run,
// unless --host-traffic names another, else the one that an agent would take now. If it is "", none would,
// for the reason in off.
func (s *settings) hostMode(ctx context.Context, scope serving.Scope) (m mode.Mode, off string) {
	if last := s.LastModes(); s.HostTraffic == bridge.HostAuto && len(last) > 1 && last[0] == mode.OVS {
		return last[1], ""
	}
	return s.Beside(ctx, scope, s.LastModes)
}

// diffHere compares what is installed on this machine with what the agent, or the flags' source, wants; ""
// means equal.
func (s *settings) diffHere(ctx context.Context, stderr io.Writer) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()

	if err := s.checkSource(); err != nil {
		return "", err
	}

	if !s.namesSource() {
		if err := s.cfg.checkAgent(); err != nil {
			return "", err
		}
		text, err := api.NewCaller(s.Socket).Diff(ctx)
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

	switch c.Mode {
	case mode.Windows:
		return s.diffHNS(ctx, stderr)
	case mode.IPTables, mode.NFTables:
		wanted, err := s.desired(ctx, c.Mode, true, stderr)
		if err != nil {
			return "", err
		}
		return s.DiffRules(ctx, c.Mode, serving.Everything, wanted.model)
	}

	wanted, err := s.desired(ctx, mode.OVS, sw != nil, stderr)
	if err != nil {
		return "", err
	}
	compiler, _, err := s.compile(wanted, sw)
	if err != nil {
		return "", err
	}

	conn, err := s.connectSwitch(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Close()

	d, err := s.Compare(ctx, conn, sw, compiler)
	if err != nil {
		return "", err
	}
	text := d.Text()

	scope, ok := s.IPTablesScope(s.HostTrafficFor(wanted.model, sw))
	if !ok {
		return text, nil
	}
	m, _ := s.hostMode(ctx, scope)
	if m == "" {
		return text, nil
	}

	beside, err := s.DiffRules(ctx, m, scope, wanted.model)
	return text + beside, err
}
