package command

import (
	"fmt"
	"io"
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
			return printVersion(cmd.OutOrStdout())
		},
	}
}

func printVersion(w io.Writer) error {
	_, err := fmt.Fprintf(w, "nkp %s %s/%s %s\n", agent.Version, runtime.GOOS, runtime.GOARCH, runtime.Version())
	return err
}
