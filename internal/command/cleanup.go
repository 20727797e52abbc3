package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

func newCleanup() *cobra.Command {
	s := newSettings()
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything nkp installed, and nothing else",
		Long: `cleanup removes nkp's flows, learned flows, groups and meter from the bridge, in one transaction, and the routes that
lead the node's own traffic there. Connections through Services end with it. It refuses to work while an agent runs on this node: the agent would put everything back.`,
		Example: "  nkp cleanup --bridge br-int",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.resolve(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), askTimeout)
			defer cancel()
			if agent.NewCaller(s.Socket).Running() {
				return fmt.Errorf("nkp is running (it answers on %s) and would put everything back; stop it first", s.Socket)
			}
			conn, err := s.connectSwitch(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			snap, err := conn.ReadBack(ctx, s.Filter())
			if err != nil {
				return err
			}
			d := flow.Diff(snap.State, flow.NewState())
			d.DelFlows = append(d.DelFlows, snap.Learned...)
			if _, err := conn.Commit(ctx, d); err != nil {
				return err
			}
			if err := bridge.RemoveRoutes(s.Bridge); err != nil {
				return fmt.Errorf("routes for the node's own traffic: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %d flows, %d groups and %d meters from %s\n",
				len(d.DelFlows), len(d.DelGroups), len(d.DelMeters), s.Bridge)
			return err
		},
	}
	s.switchFlags(cmd.Flags(), defaultOVSDB)
	s.layoutFlags(cmd.Flags())
	s.socketFlag(cmd.Flags())
	s.mode, s.LocalDelivery, s.RejectRate = "auto", bridge.DeliverAuto, 1
	return cmd
}
