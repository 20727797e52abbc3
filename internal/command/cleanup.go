package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/nftables"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/windows"
)

func newCleanup() *cobra.Command {
	s := newSettings()
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything nkp installed, and nothing else",
		Long: `cleanup removes nkp's flows, learned flows, groups and meter from the bridge, in one transaction, and the routes that
lead the node's own traffic there; in nftables its tables; in iptables its chains, and the rules that lead to them; on
Windows its HNS load balancers. It restores the sysctls that nkp changed, unless something else has changed them since, or another Service
proxy has rules on this node. Connections through Services end with it. It refuses to work while an agent runs on this
node: the agent would put everything back.

Chains in iptables bear the same names as kube-proxy's. Unless --mode iptables says so they are removed only if the last
run of nkp on this node put them there.`,
		Example: "  nkp cleanup --bridge br-int\n  nkp cleanup --mode iptables",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.prepare(cmd); err != nil {
				return err
			}
			return s.runCleanup(cmd.Context(), cmd.OutOrStdout())
		},
	}
	s.use(cmd.Flags(), "mode", "network-name", "source-vip", "enable-dsr", "root-hnsendpoint-name",
		"forward-healthcheck-vip", "hns-state-file", groupSwitch, groupLayout, "config", "ncp-ini",
		"socket")
	cmd.Flags().Lookup("mode").Usage = "what to clean up: ovs, iptables, nftables, windows, or auto " +
		"(what the last run on this node used, else the bridge)"
	return cmd
}

// cleanupLimit bounds a cleanup: on a busy node iptables takes minutes to delete the chains of thousands of
// Services, and HNS deletes its objects one by one. At the limit, the objects already deleted stay deleted.
const cleanupLimit = 10 * time.Minute

// runCleanup checks that no agent runs, and cleans up.
func (s *settings) runCleanup(ctx context.Context, out io.Writer) error {
	if api.Listens(s.Socket) == nil {
		return fmt.Errorf("nkp is running (it answers on %s) and would put everything back; stop it first",
			s.Socket)
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupLimit)
	defer cancel()
	return s.cleanup(ctx, out)
}

func (s *settings) cleanup(ctx context.Context, out io.Writer) error {
	c, ok, err := s.configuredMode()
	if err != nil {
		return err
	}

	modes := s.LastModes()
	switch {
	// the last modes include planes that ran alongside this one
	case ok && !(len(modes) > 0 && modes[0] == c.Mode):
		modes = []mode.Mode{c.Mode}
	case !ok && len(modes) == 0:
		modes = []mode.Mode{mode.OVS}
	}

	if _, told := s.cfg.explicit["mode"]; !told {
		if err := s.cfg.checkMode(modes...); err != nil {
			return err
		}
	}

	for _, m := range modes {
		if err := s.cleanupOf(ctx, m, out); err != nil {
			if !ok && m == mode.OVS {
				return fmt.Errorf("%w; to remove the iptables rules, use --mode iptables", err)
			}
			return err
		}
	}

	left := func(m mode.Mode) bool { return !slices.Contains(modes, m) }
	if !slices.ContainsFunc(s.LastModes(), left) {
		if err := s.restoreSysctls(ctx, out); err != nil {
			return err
		}
		s.ForgetModes()
	}

	return nil
}

// restoreSysctls restores the sysctls that nkp changed. Another Service proxy, whose rules are what is left
// of the kind, needs the same ones and may have found them set: for it they stay.
func (s *settings) restoreSysctls(ctx context.Context, out io.Writer) error {
	chains, noIPTables := iptables.Occupied(ctx)
	tables, noNFTables := nftables.HasKubeProxyTables()
	if noIPTables == nil && chains || noNFTables == nil && tables {
		names, err := s.KeepSysctls()
		if len(names) > 0 {
			fmt.Fprintf(out,
				"left as nkp had set them, because another Service proxy has rules on this node: sysctls "+
					"%s\n",
				strings.Join(names, ", "))
		}
		return err
	}
	lines, failed, err := s.RestoreSysctls()
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	if failed > 0 {
		return errors.Join(fmt.Errorf("sysctls that nkp had changed and could not restore: %d", failed), err)
	}
	return err
}

func (s *settings) cleanupOf(ctx context.Context, m mode.Mode, out io.Writer) error {
	switch m {
	case mode.IPTables:
		n, err := iptables.Cleanup(ctx, iptables.CleanupOptions{TakeLocalnet: nftables.TakeLocalnet})
		if err != nil {
			return err
		}
		if n.Left > 0 {
			fmt.Fprintln(out, "kube-proxy serves by the chains in iptables now: they are left to it")
		}
		_, err = fmt.Fprintf(out,
			"removed %s and %s in other chains from iptables\n",
			dataplane.Count(n.Chains, "chain"), dataplane.Count(n.Rules, "rule"))
		return err

	case mode.NFTables:
		n, err := nftables.Cleanup(nil)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "removed %s from nftables\n", dataplane.Count(n, "table"))
		return err

	case mode.Windows:
		n, err := windows.Cleanup(ctx, s.Windows)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "removed %s from HNS\n", dataplane.Count(n, "object"))
		return err
	}

	return s.cleanupBridge(ctx, out)
}

func (s *settings) cleanupBridge(ctx context.Context, out io.Writer) error {
	conn, err := s.connectSwitch(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()

	// Flows are counted and not read, because packets may have created any number of learned ones.
	cookie, mask := s.Layout.Cookies()
	n, err := conn.FlowCount(ctx, cookie, mask)
	if err != nil {
		return err
	}

	table, pingCookie := s.Layout.Pings()
	pings, err := conn.FlowCount(ctx, pingCookie, ^uint64(0), table)
	if err != nil {
		return err
	}

	filter := s.Filter()
	filter.CookieMask, filter.Tables = 0, nil
	snap, err := conn.ReadBack(ctx, filter)
	if err != nil {
		return err
	}

	_, uses, err := conn.MeterDrops(ctx, s.Layout.IsPingMeter)
	if err != nil {
		return err
	}
	maps.DeleteFunc(snap.State.Meters, func(id uint32, m flow.Meter) bool { // as in pipeline.Comparison.Meter
		stray := uses == 0 && m.Rate > 0
		return s.Layout.IsPingMeter(id) && pings.Flows == 0 && !stray
	})

	d := flow.Diff(snap.State, flow.NewState())
	d.Clear = []flow.Cookies{{Cookie: cookie, Mask: mask}}
	if _, err := conn.Commit(ctx, d); err != nil {
		return err
	}

	if err := bridge.RemoveRoutes(s.Bridge); err != nil {
		return fmt.Errorf("routes for the node's own traffic: %w", err)
	}

	_, err = fmt.Fprintf(out, "removed %s, %s and %s from %s\n", dataplane.Count(int(n.Flows), "flow"),
		dataplane.Count(len(d.DelGroups), "group"), dataplane.Count(len(d.DelMeters), "meter"), s.Bridge)
	return err
}
