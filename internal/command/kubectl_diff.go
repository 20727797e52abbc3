package command

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
)

func newNodesDiff() *cobra.Command {
	var n nodes
	var o output
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Compare what is installed on each node with what should be",
		Long: `diff runs the comparison of nkp diff on every node, or on --node, and prints its lines after the node's name.
Exit status: 0 equal everywhere, 1 different somewhere, 2 error, such as a node that does not answer.`,
		Example: "  kubectl nkp diff\n  kubectl nkp diff --node node-1 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			equal, err := n.diff(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &o)
			switch {
			case err != nil:
				return &exitError{exitDiffError, err}
			case !equal:
				return &exitError{exitFailure, nil}
			}
			return nil
		},
	}
	n.flags(cmd, "only this node")
	o.flag(cmd, outputUsage)
	return cmd
}

func (n *nodes) diff(ctx context.Context, out, errOut io.Writer, o *output) (equal bool, err error) {
	agents, _, _, err := n.agents(ctx)
	if err != nil {
		return false, err
	}
	answers := askNodes(ctx, agents, n.timeout, func(ctx context.Context, c *agent.Caller) (*diffView, error) {
		text, err := c.Diff(ctx)
		view := newDiffView(text)
		return &view, err
	})
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
	return equal, complain(errOut, !o.data(), answers)
}
