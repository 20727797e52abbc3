package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/api"
)

func newFlows() *cobra.Command {
	v := &servicesView{on: thisMachine(), watch: watch{interval: minInterval}} // nothing is watched
	cmd := &cobra.Command{
		Use:   "flows NAMESPACE/NAME",
		Short: "List what is installed of a Service, with its counters",
		Long: `flows asks the running agent what is installed of a Service: its groups and flows on the switch, as
nkp plan -o ofctl prints them, its elements and chains of nftables, its rules of iptables, or its load
balancers of HNS; where two data planes serve it, those of both. PACKETS and BYTES are what each has
counted since it was installed ("-": it does not count): the switch lags about a second behind, and its
bytes are those of Ethernet frames. At most 10,000 objects are listed, and no clients of session
affinity. Exit status: 0 listed, 1 no answer, or no such Service.`,
		Example: "  nkp flows default/guestbook\n  nkp flows kube-system/kube-dns -o json",
		Args:    oneService,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("%s takes a Service: NAMESPACE/NAME", cmd.CommandPath())
			} else if err := v.resolve(args); err != nil {
				return err
			}

			peers, err := v.on.peers(cmd)
			if err != nil {
				return err
			}
			caller := peers[0].Caller

			list, err := caller.Flows(cmd.Context(), v.filter.Namespace, v.filter.Name, 0)
			switch {
			case err != nil:
				return err
			case list.ServicePorts == 0:
				return v.unknown(cmd.Context(), caller, list.Node)
			case v.output.data():
				return v.output.write(cmd.OutOrStdout(), list)
			}
			return writeFlows(cmd.OutOrStdout(), list)
		},
	}

	v.on.use(cmd.Flags(), "config", "socket")
	v.output.flag(cmd, outputUsage)
	v.on.completeService(cmd)
	return cmd
}

// writeFlows prints the objects, those of each data plane and Service port below its name.
func writeFlows(out io.Writer, list *api.FlowList) error {
	number := func(n *uint64) string {
		if n == nil {
			return "-"
		}
		return strconv.FormatUint(*n, 10)
	}
	var t table
	t.row("PACKETS", "BYTES", "INSTALLED")
	for i, o := range list.Objects {
		if i == 0 || o.Plane != list.Objects[i-1].Plane || o.Service != list.Objects[i-1].Service {
			t.below(strings.TrimSpace(o.Plane + " " + o.Service))
		}
		t.row(number(o.Packets), number(o.Bytes), oneLine(o.Text))
	}
	if list.More > 0 {
		t.below(fmt.Sprintf("and %d more", list.More))
	}
	return t.flush(out, 0)
}
