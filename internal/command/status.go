package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
)

func newStatus() *cobra.Command {
	s := newSettings()
	var o output
	var w watch
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Ask the running agent how it is",
		Long: `status asks the running agent through its socket. If none answers it says what nkp has on the switch: Services are
served without an agent, too. Exit status: 0 an agent answered, 1 none did.`,
		Example: "  nkp status\n  nkp status -o json\n  nkp status --watch",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := w.check(); err != nil {
				return err
			}
			if err := s.configure(cmd); err != nil {
				return err
			}
			caller := agent.NewCaller(s.Socket)
			print := func(out io.Writer, _ int) error { return s.status(cmd.Context(), caller, out, &o) }
			if w.on {
				return w.follow(cmd.Context(), cmd.OutOrStdout(), &o, print)
			}
			return print(cmd.OutOrStdout(), 0)
		},
	}
	s.stateFileFlag(cmd.Flags())
	s.switchFlags(cmd.Flags(), defaultOVSDB)
	s.layoutFlags(cmd.Flags())
	s.configFlag(cmd.Flags())
	s.socketFlag(cmd.Flags())
	o.flag(cmd, outputUsage)
	w.flags(cmd.Flags(), "refresh the status continuously")
	return cmd
}

// status prints what the agent answers.
func (s *settings) status(ctx context.Context, caller *agent.Caller, out io.Writer, o *output) error {
	st, err := caller.Status(ctx)
	if errors.Is(err, agent.ErrAbsent) {
		err = s.withoutAgent(ctx, err)
	}
	if err != nil {
		return err
	}
	if o.data() {
		return o.write(out, st)
	}
	return writeStatus(out, st, time.Now())
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
