package command

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  nkp version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "nkp %s %s/%s %s\n", agent.Version, runtime.GOOS, runtime.GOARCH, runtime.Version())
			return err
		},
	}
}
