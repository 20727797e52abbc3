package command

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
)

func newVersion() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  nkp version\n  nkp version -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !o.data() {
				return printVersion(cmd.OutOrStdout())
			}
			return o.write(cmd.OutOrStdout(), map[string]string{
				"version": agent.Version, "platform": runtime.GOOS + "/" + runtime.GOARCH,
				"go": runtime.Version(),
			})
		},
	}
	o.flag(cmd, outputUsage)
	return cmd
}

func printVersion(w io.Writer) error {
	_, err := fmt.Fprintf(w, "nkp %s %s/%s %s\n", agent.Version,
		runtime.GOOS, runtime.GOARCH, runtime.Version())
	return err
}
