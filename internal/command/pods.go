package command

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/api"
)

func newPods() *cobra.Command {
	s := newSettings()
	var o output
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List the pods' ports of the bridge, and what contradicts them",
		Long: `pods asks the running agent for the ports of the bridge that lead to pods: their addresses, MAC, VLAN,
link and state. Below a port is what the database, ovs-vswitchd and the kernel say against it: an
address or a MAC that they know otherwise, or what keeps packets back. STATE is ok, limited (some
packets are kept back) or dead (nothing passes). It needs a bridge: with iptables, nftables and on
Windows it is an error. Exit status: 0 listed, 1 no answer, or no bridge.`,
		Example: "  nkp pods\n  nkp pods -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.configure(cmd); err != nil {
				return err
			}

			list, err := api.NewCaller(s.Socket).Pods(cmd.Context())
			if err != nil {
				return err
			}

			if o.data() {
				return o.write(cmd.OutOrStdout(), list)
			}
			return writePods(cmd.OutOrStdout(), list)
		},
	}

	s.use(cmd.Flags(), "config", "socket")
	o.flag(cmd, outputUsage)
	return cmd
}

// writePods prints a line for each port, with what is wrong below it, after what is to be known of the whole
// list.
func writePods(out io.Writer, list *api.PodList) error {
	for _, note := range list.Notes {
		fmt.Fprintf(out, "NOTE: %s\n", oneLine(note))
	}

	if len(list.Ports) == 0 {
		_, err := fmt.Fprintf(out, "bridge %s of node %s has no port that leads to a pod\n",
			list.Bridge, list.Node)
		return err
	}

	var t table
	t.row("PORT", "NUMBER", "POD", "ADDRESSES", "MAC", "VLAN", "LINK", "STATE")
	for _, p := range list.Ports {
		var addresses []string
		for _, ip := range p.Addresses {
			addresses = append(addresses, ip.String())
		}

		vlan := "-"
		if p.VLAN != 0 {
			vlan = strconv.Itoa(int(p.VLAN))
		}
		if len(p.Trunks) > 0 {
			vlan += " trunk " + strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Trunks), " ", ","), "[]")
		}

		t.row(p.Port, strconv.Itoa(int(p.OFPort)), cmp.Or(p.IfaceID, "-"),
			cmp.Or(strings.Join(addresses, " "), "-"), cmp.Or(p.MAC, "-"), vlan, p.Link, p.State)
		for _, problem := range p.Problems {
			t.below("PROBLEM: " + problem)
		}
	}
	return t.flush(out, 0)
}
