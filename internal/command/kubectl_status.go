package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
)

func newNodesStatus() *cobra.Command {
	var n nodes
	var o output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Ask the agents of all nodes how they are",
		Long: `status asks the agents of all nodes and prints a line for each, with what is wrong below it. With --node it prints that node's status as
nkp status does there. Exit status: 0 all answered, 1 not all did.`,
		Example: "  kubectl nkp status\n  kubectl nkp status --node node-1\n  kubectl nkp status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return n.status(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &o)
		},
	}
	n.flags(cmd, "only this node, in full")
	o.flag(cmd, outputUsage)
	return cmd
}

// clusterStatus is what `kubectl nkp status -o json` prints.
type clusterStatus struct {
	Nodes []answer[agent.Status] `json:"nodes"`
	// WithoutNkp are the nodes that have no pod of nkp's. WithoutError says why they are not known.
	WithoutNkp   []string `json:"withoutNkp"`
	WithoutError string   `json:"withoutError,omitempty"`
}

func (n *nodes) status(ctx context.Context, out, errOut io.Writer, o *output) error {
	agents, c, _, err := n.agents(ctx)
	if err != nil {
		return err
	}
	s := clusterStatus{WithoutNkp: []string{}}
	s.Nodes = askNodes(ctx, agents, n.timeout, func(ctx context.Context, c *agent.Caller) (*agent.Status, error) { return c.Status(ctx) })
	if n.node == "" {
		ctx, cancel := context.WithTimeout(ctx, n.timeout)
		defer cancel()
		without, err := c.Without(ctx, agents)
		if err != nil {
			s.WithoutError = oneLine(err.Error())
		}
		s.WithoutNkp = append(s.WithoutNkp, without...)
	}
	switch only := s.Nodes[0]; {
	case o.data():
		err = o.write(out, s)
	case n.node == "":
		err = writeNodes(out, &s, time.Now())
	case only.Answer != nil:
		err = writeStatus(out, only.Answer, time.Now())
	}
	if err != nil {
		return err
	}
	return complain(errOut, n.node != "" && !o.data(), s.Nodes)
}

// writeNodes prints a line for each node, with what is wrong there below it.
func writeNodes(out io.Writer, s *clusterStatus, now time.Time) error {
	var t table
	t.row("NODE", "MODE", "IN STEP", "SERVICE PORTS", "ENDPOINTS", "CHANGES P99", "VERSION", "AGE")
	for i := range s.Nodes {
		node := &s.Nodes[i]
		a := node.Answer
		if a == nil {
			t.row(node.Node, "-", "?", "-", "-", "-", "-", "-")
			t.below("NO ANSWER: " + node.Error)
			continue
		}
		step, p99 := "yes", "-"
		planes := planesOf(a)
		for _, p := range planes {
			if !p.inStep {
				step = "NO"
			}
		}
		switch {
		case len(planes) == 0:
			step = "NO"
		case planes[0].changes > 0:
			p99 = fmt.Sprintf("%.1f ms", planes[0].p99Milli)
		}
		t.row(node.Node, a.Mode, step, strconv.Itoa(a.ServicePorts), strconv.Itoa(a.Endpoints), p99, a.Version, now.Sub(a.Started).Round(time.Second).String())
		if !a.Source.Synced || a.Source.Answers != nil && !*a.Source.Answers {
			t.below("SOURCE: " + a.Source.Kind + " has not synced, or does not answer")
		}
		for _, p := range statusProblems(a, now) {
			t.below(p)
		}
	}
	if err := t.flush(out, 0); err != nil {
		return err
	}
	switch {
	case s.WithoutError != "":
		fmt.Fprintf(out, "nodes without nkp are not known: %s\n", s.WithoutError)
	case len(s.WithoutNkp) > 0:
		fmt.Fprintf(out, "%s without a pod of nkp's: %s\n", count(len(s.WithoutNkp), "node"), nameList(s.WithoutNkp))
	}
	return nil
}

// planeState is what the list of nodes shows of a data plane, or of a family of one.
type planeState struct {
	inStep   bool
	changes  int
	p99Milli float64 // of the changes
}

// planesOf returns the data planes of a status, the one for pods first.
func planesOf(s *agent.Status) (planes []planeState) {
	if s.Status != nil {
		planes = append(planes, planeState{s.InStep, s.Programming.Changes, s.Programming.P99Milli})
	}
	if d := cmp.Or(s.IPTables, s.NFTables); d != nil {
		for i := range d.Families {
			f := &d.Families[i]
			planes = append(planes, planeState{f.InStep, f.Programming.Changes, f.Programming.P99Milli})
		}
	}
	if s.HNS != nil {
		planes = append(planes, planeState{s.HNS.InStep, s.HNS.Programming.Changes, s.HNS.Programming.P99Milli})
	}
	return planes
}
