package command

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/remote"
)

// newConnect returns the command that kubectl nkp runs in nkp's pods. It is not listed.
func newConnect() *cobra.Command {
	s := newSettings()
	cmd := &cobra.Command{
		Use:     "connect",
		Short:   "Connect standard input and output to the running agent's socket",
		Example: "  nkp connect",
		Hidden:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// the agent may run on, and say what is wrong with its configuration
			if err := s.configure(cmd); err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), err)
			}
			return connect(cmd.Context(), s.Socket, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	s.use(cmd.Flags(), "config", "socket")
	return cmd
}

// connect passes bytes between in, out and the agent's socket until in, the connection or the context ends.
func connect(ctx context.Context, socket string, in io.Reader, out io.Writer) error {
	conn, err := api.Connect(ctx, socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := io.WriteString(out, remote.Greeting); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(conn, in) // either end may go away at any time
		conn.Close()
	}()
	_, _ = io.Copy(out, conn)
	return nil
}
