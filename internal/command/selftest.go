package command

import (
	"errors"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/selftest"
)

// newHNSSelftest returns the command that tests this host's HNS. It is listed on Windows only.
func newHNSSelftest() *cobra.Command {
	o := selftest.Options{NKP: agent.Version}
	var out output
	cmd := &cobra.Command{
		Use:   "hns-selftest",
		Short: "Find out what this Windows makes of the objects that nkp creates",
		Long: `hns-selftest creates one HNS object of each kind that nkp uses, on a network of its own with addresses of 198.18.0.0/15, compares
what HNS stored with what was asked for, and deletes everything, also what an earlier run that was killed has left. It sends no packet.

It refuses to run on a node of a cluster: where kubelet, kube-proxy or nkp run, where HNS has load balancers or a network of pods, and
where its addresses are in use. Networks of type L2Bridge and Overlay, which CNI plugins use, need a network adapter whose connections
break for some seconds.

It exits with 1 if HNS refused an object, or one could not be deleted. Attach the output of -o json to an issue: it becomes a test.`,
		Example: `  nkp hns-selftest
  nkp hns-selftest --network-type Overlay --adapter "Ethernet 2" -o json`,
		Hidden: runtime.GOOS != "windows",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return usageError("%w", err)
			}
			raw, err := hns.OpenRaw()
			if err != nil {
				return err
			}
			o.Host = selftest.ThisHost()
			report, err := selftest.Run(cmd.Context(), raw, o)
			if err != nil {
				return err
			}
			if out.data() {
				err = out.write(cmd.OutOrStdout(), report)
			} else {
				err = report.Text(cmd.OutOrStdout())
			}
			if err == nil && !report.Passed() {
				err = &exitError{exitFailure,
					errors.New("HNS refused objects, or could not delete them (see the report)")}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&o.NetworkType, "network-type", "Internal",
		"type of the network to make: Internal, NAT, L2Bridge or Overlay")
	cmd.Flags().StringVar(&o.Adapter, "adapter", "",
		"network adapter for an L2Bridge or Overlay; its connections break for some seconds")
	out.flag(cmd, outputUsage)
	return cmd
}
