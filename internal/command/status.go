package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
)

// exitNoAnswer is the status of `nkp status` if no agent answers.
const exitNoAnswer = 2

func newStatus(on *target) *cobra.Command {
	f := statusFlags{on: on, watch: watch{interval: minInterval}} // a cluster is not watched
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Ask the running agent how it is",
		Long: `status asks the running agent through its socket. If none answers it says what nkp has on the switch: Services are
served without an agent, too. Exit status: 0 in step (--strict: and nothing is wrong), 1 not, 2 no agent answered.`,
		Example: "  nkp status\n  nkp status -o json\n  nkp status --watch\n  nkp status --wait --strict",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			peers, err := on.peers(cmd)
			if err != nil {
				return err
			}
			if !f.watch.on {
				return f.run(cmd.Context(), peers, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			printStatus := func(out io.Writer, _ int) error {
				return f.print(cmd.Context(), out, f.ask(cmd.Context(), peers))
			}
			return f.watch.follow(cmd.Context(), cmd.OutOrStdout(), &f.output, printStatus)
		},
	}

	fs := cmd.Flags()
	if on.nodes != nil {
		on.nodes.adapt(cmd, "only this node, in full", "Ask the agents of all nodes how they are",
			`status asks the agents of all nodes and prints a line for each, with what is wrong below it. With --node
it prints that node's status as nkp status does there. Exit status: 0 all answered, 1 not all did.`,
			"  kubectl nkp status\n  kubectl nkp status --node node-1\n  kubectl nkp status -o json")
	} else {
		on.use(fs, "hns-state-file", groupSwitch, groupLayout, "config", "socket")
		f.watch.flags(fs, "refresh the status continuously")
		fs.BoolVar(&f.strict, "strict", false,
			"exit with 1 also if anything is wrong: a warning, a refused Service, an error")
		fs.BoolVar(&f.wait, "wait", false,
			"wait until an agent answers and is in step (--strict: and nothing is wrong), then print")
		fs.DurationVar(&f.timeout, "timeout", time.Minute,
			"how long --wait waits; then it prints what is, and the exit status says it")
	}
	f.output.flag(cmd, outputUsage)
	return cmd
}

// statusFlags are what a status command is asked for.
type statusFlags struct {
	on *target
	output
	watch        watch
	strict, wait bool
	timeout      time.Duration
}

// clusterStatus is what `kubectl nkp status -o json` prints.
type clusterStatus struct {
	Nodes []answer[api.Status] `json:"nodes"`
	withoutNkp
}

// check returns a usage error for flags that exclude each other.
func (f *statusFlags) check(cmd *cobra.Command) error {
	switch err := f.watch.check(); {
	case err != nil:
		return err
	case f.watch.on && f.wait:
		return usageError("--wait ends when nkp is in step, --watch does not: leave out one of them")
	case cmd.Flags().Changed("timeout") && !f.wait:
		return usageError("--timeout is without effect: it is how long --wait waits")
	case f.strict && f.watch.on:
		return usageError("--strict is without effect with --watch, which has no exit status")
	}
	return nil
}

// waitPause is how long --wait waits between two questions.
const waitPause = 200 * time.Millisecond

// run prints what the agents answer, with --wait once this machine's is well or the time is over.
func (f *statusFlags) run(ctx context.Context, peers []peer, out, errOut io.Writer) error {
	end := time.Now().Add(f.timeout)
	s := f.ask(ctx, peers)
	for f.wait && !f.well(s.Nodes[0].Answer) && time.Now().Before(end) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(waitPause):
		}
		s = f.ask(ctx, peers)
	}

	if err := f.print(ctx, out, s); err != nil {
		return err
	}
	if f.on.nodes != nil {
		return complain(errOut, f.on.nodes.node != "" && !f.data(), s.Nodes)
	}
	if !f.well(s.Nodes[0].Answer) {
		return &exitError{exitFailure, nil}
	}
	return nil
}

// ask asks the agents, and if all nodes are asked which ones have none.
func (f *statusFlags) ask(ctx context.Context, peers []peer) *clusterStatus {
	s := &clusterStatus{withoutNkp: withoutNkp{WithoutNkp: []string{}}}
	ask := func(ctx context.Context, c *api.Caller) (*api.Status, error) { return c.Status(ctx) }
	s.Nodes = askAll(ctx, peers, f.on.timeout(), ask)
	if f.on.nodes == nil || f.on.nodes.node != "" {
		return s
	}
	s.withoutNkp = f.on.nodes.without(ctx, peers)
	return s
}

// print prints one agent's status, or a line for each node. That this machine's agent does not answer is an
// error, with what nkp has on the switch.
func (f *statusFlags) print(ctx context.Context, out io.Writer, s *clusterStatus) error {
	nodes, only, err := f.on.nodes, s.Nodes[0].Answer, s.Nodes[0].err
	switch {
	case nodes == nil && errors.Is(err, api.ErrAbsent):
		return &exitError{exitNoAnswer, f.on.withoutAgent(ctx, err)}
	case nodes == nil && err != nil:
		return &exitError{exitNoAnswer, err}
	case f.data() && nodes == nil:
		return f.write(out, only)
	case f.data():
		return f.write(out, s)
	case nodes != nil && nodes.node == "":
		return writeNodes(out, s, time.Now())
	case only == nil:
		return nil
	}
	return writeStatus(out, only, time.Now())
}

// well reports whether the agent answered and all that is wanted is in force, and with --strict whether
// nothing is wrong.
func (f *statusFlags) well(st *api.Status) bool {
	if st == nil {
		return false
	}
	planes := planesOf(st)
	behind := func(p planeState) bool { return !p.inStep }
	if !st.Source.Synced || len(planes) == 0 || slices.ContainsFunc(planes, behind) {
		return false
	}
	return !f.strict || len(statusProblems(st, time.Now())) == 0
}

// withoutAgentWait is how long status waits for the switch if no agent answers.
const withoutAgentWait = 800 * time.Millisecond

// withoutAgent adds nkp's objects on the switch, if it can be reached, or in HNS to the error that no agent
// answers.
func (s *settings) withoutAgent(ctx context.Context, err error) error {
	if runtime.GOOS == "windows" {
		if owned := s.ownedHNS(); owned != "" {
			err = fmt.Errorf("%w; %s", err, owned)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, withoutAgentWait)
	defer cancel()
	conn, dialErr := s.connectSwitch(ctx)
	if dialErr != nil {
		return err
	}
	defer conn.Close()
	cookie, mask := s.Layout.StaticCookies()
	flows, readErr := conn.FlowCount(ctx, cookie, mask)
	if readErr != nil {
		return err
	}
	groups, readErr := conn.GroupCounters(ctx, s.Filter().GroupLo, s.Filter().GroupHi)
	if readErr != nil {
		return err
	}
	return fmt.Errorf("%w; bridge %s holds %s and %s of nkp's",
		err, s.Bridge, dataplane.Count(int(flows.Flows), "flow"), dataplane.Count(len(groups), "group"))
}
