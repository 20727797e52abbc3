package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/api"
)

func newLogLevel() *cobra.Command {
	s := newSettings()
	levels := []string{"debug", "info", "warn"}
	cmd := &cobra.Command{
		Use:   "log-level debug|info|warn",
		Short: "Change how much the running agent logs, until it restarts",
		Long: `log-level has the running agent log from a level on, and prints the level before and after. When nkp
restarts, --log-level counts again. Only root may do that, as with all of the agent's socket. Exit
status: 0 changed, 1 no answer, 2 usage.`,
		Example:   "  nkp log-level debug\n  nkp log-level info",
		ValidArgs: levels,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("%s takes one level: %s", cmd.CommandPath(), strings.Join(levels, ", "))
			}
			return oneOf("log level", args[0], levels)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.configure(cmd); err != nil {
				return err
			}

			c, err := api.NewCaller(s.Socket).SetLogLevel(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "log level: %s before, %s now, until nkp restarts\n",
				strings.ToLower(c.Before.String()), strings.ToLower(c.Now.String()))
			return err
		},
	}

	s.use(cmd.Flags(), "config", "socket")
	return cmd
}
