package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
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
			if err := s.configure(cmd); err != nil {
				return err
			}
			st, err := agent.NewCaller(s.Socket).Status(cmd.Context())
			if errors.Is(err, agent.ErrAbsent) {
				err = s.withoutAgent(cmd.Context(), err)
			}
			if err != nil {
				return err
			}
			if output == "json" {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(st)
			}
			return writeStatus(cmd.OutOrStdout(), st, time.Now())
		},
	}
	s.stateFileFlag(cmd.Flags())
	s.switchFlags(cmd.Flags(), defaultOVSDB)
	s.layoutFlags(cmd.Flags())
	s.configFlag(cmd.Flags())
	s.socketFlag(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
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
