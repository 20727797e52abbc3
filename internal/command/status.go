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

	"github.com/nkp-proxy/nkp/internal/agent"
)

// exitNoAnswer is the status of `nkp status` if no agent answers.
const exitNoAnswer = 2

func newStatus() *cobra.Command {
	s := newSettings()
	f := statusFlags{}
	var w watch
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Ask the running agent how it is",
		Long: `status asks the running agent through its socket. If none answers it says what nkp has on the switch: Services are
served without an agent, too. Exit status: 0 in step (--strict: and nothing is wrong), 1 not, 2 no agent answered.`,
		Example: "  nkp status\n  nkp status -o json\n  nkp status --watch\n  nkp status --wait --strict",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch err := w.check(); {
			case err != nil:
				return err
			case w.on && f.wait:
				return usageError("--wait ends when nkp is in step, --watch does not: leave out one of them")
			case cmd.Flags().Changed("timeout") && !f.wait:
				return usageError("--timeout is without effect: it is how long --wait waits")
			case f.strict && w.on:
				return usageError("--strict is without effect with --watch, which has no exit status")
			}
			if err := s.configure(cmd); err != nil {
				return err
			}
			f.caller = agent.NewCaller(s.Socket)
			if w.on {
				print := func(out io.Writer, _ int) error {
					st, err := f.caller.Status(cmd.Context())
					if err != nil {
						return s.noAnswer(cmd.Context(), err)
					}
					return f.print(out, st)
				}
				return w.follow(cmd.Context(), cmd.OutOrStdout(), &f.output, print)
			}
			return s.status(cmd.Context(), &f, cmd.OutOrStdout())
		},
	}
	s.stateFileFlag(cmd.Flags())
	s.switchFlags(cmd.Flags(), defaultOVSDB)
	s.layoutFlags(cmd.Flags())
	s.configFlag(cmd.Flags())
	s.socketFlag(cmd.Flags())
	f.output.flag(cmd, outputUsage)
	w.flags(cmd.Flags(), "refresh the status continuously")
	cmd.Flags().BoolVar(&f.strict, "strict", false, "exit with 1 also if anything is wrong: a warning, a refused Service, an error")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until an agent answers and is in step (--strict: and nothing is wrong), then print")
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long --wait waits; then it prints what is, and the exit status says it")
	return cmd
}

// statusFlags are what `nkp status` is asked for.
type statusFlags struct {
	output
	strict, wait bool
	timeout      time.Duration
	caller       *agent.Caller
}

// waitPause is how long --wait waits between two questions.
const waitPause = 200 * time.Millisecond

// status prints what the agent answers, with --wait once it is well or the time is over.
func (s *settings) status(ctx context.Context, f *statusFlags, out io.Writer) error {
	end := time.Now().Add(f.timeout)
	st, err := f.caller.Status(ctx)
	for f.wait && (err != nil || !f.well(st)) && time.Now().Before(end) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(waitPause):
		}
		st, err = f.caller.Status(ctx)
	}

	if err != nil {
		return s.noAnswer(ctx, err)
	}
	if err := f.print(out, st); err != nil {
		return err
	}
	if !f.well(st) {
		return &exitError{exitFailure, nil}
	}
	return nil
}

// noAnswer returns the error that no agent answers, with what nkp has on the switch.
func (s *settings) noAnswer(ctx context.Context, err error) error {
	if errors.Is(err, agent.ErrAbsent) {
		err = s.withoutAgent(ctx, err)
	}
	return &exitError{exitNoAnswer, err}
}

func (f *statusFlags) print(out io.Writer, st *agent.Status) error {
	if f.data() {
		return f.write(out, st)
	}
	return writeStatus(out, st, time.Now())
}

// well reports whether all that is wanted is in force, and with --strict whether nothing is wrong.
func (f *statusFlags) well(st *agent.Status) bool {
	planes := planesOf(st)
	if !st.Source.Synced || len(planes) == 0 || slices.ContainsFunc(planes, func(p planeState) bool { return !p.inStep }) {
		return false
	}
	return !f.strict || len(statusProblems(st, time.Now())) == 0
}

// withoutAgentWait is how long status waits for the switch if no agent answers.
const withoutAgentWait = 800 * time.Millisecond

// withoutAgent adds nkp's objects on the switch, if it can be reached, or in HNS to the error that no agent answers.
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
	return fmt.Errorf("%w; bridge %s holds %d flows and %d groups of nkp's", err, s.Bridge, flows.Flows, len(groups))
}
