package command

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/fallback/nftables"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

func newPlan() *cobra.Command {
	s := newSettings()
	s.dir = defaultDir
	var o output
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print what would be programmed: the dry run",
		Long: `plan works out what "nkp run" would put on the switch and prints it. It needs no privilege and no switch.
With --ovsdb, port numbers and MACs come from a switch; without it from the flags. What stays unknown is left out,
with a warning.

Outputs:
  text      for each Service port: frontends, endpoints, flows and groups; with
            --mode iptables, nftables or windows: those outputs
  ofctl     input for "ovs-ofctl -O OpenFlow15 bundle BRIDGE -"; the lines
            "# meter ..." are for "ovs-ofctl add-meter", which has to come first
  iptables  input for iptables-restore, IPv4, then "# ip6tables" and IPv6; with
            --mode ovs only what serves the node's own traffic
  nft       input for nft -f: the tables of --mode nftables
  hcn       the objects that HNS should have on a Windows node, as JSON
  json      the Services as nkp understands them, with the endpoints in force
  yaml      the same as YAML

Every flag of "nkp run" is accepted, so that the flags of a unit can be pasted. Those that do not affect what is programmed
have no effect here, and are not listed.`,
		Example: `  nkp plan --manifests examples/guestbook.yaml --hostname-override haofan-test-1
  nkp plan --manifests examples/ -o json
  nkp plan --kubeconfig ~/.kube/config --hostname-override node-1
  nkp plan --manifests examples/guestbook.yaml -o iptables

  On a bridge of your own, without nkp run:
  nkp plan --manifests examples/guestbook.yaml -o ofctl >plan.txt
  sed -n 's/^# meter //p' plan.txt |
    xargs -n 1 ovs-ofctl -O OpenFlow15 add-meter br-test
  ovs-ofctl -O OpenFlow15 bundle br-test plan.txt`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.prepare(cmd); err != nil {
				return err
			}
			if err := s.planOutput(&o); err != nil {
				return err
			}
			return s.plan(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	s.usePlanning(cmd.Flags())
	s.use(cmd.Flags(), "healthz-bind-address")
	s.OVSDB, cmd.Flags().Lookup("ovsdb").DefValue = "", ""
	o.flag(cmd, "text, ofctl, iptables, nft, hcn, json or yaml", "ofctl", "iptables", "nft", "hcn")
	s.flags.VisitAll(func(f *pflag.Flag) {
		if cmd.Flags().Lookup(f.Name) == nil {
			f.Hidden, f.Deprecated = true, "" // cobra would print the deprecation among the plan
			cmd.Flags().AddFlag(f)
		}
	})
	return cmd
}

// planOutput checks the output against the data plane, and replaces text by the output that it stands for.
func (s *settings) planOutput(o *output) error {
	of := map[string]mode.Mode{"ofctl": mode.OVS, "hcn": mode.Windows}
	switch {
	case o.format == "text" && s.mode == mode.IPTables:
		o.format = "iptables"
	case o.format == "text" && s.mode == mode.NFTables:
		o.format = "nft"
	case o.format == "text" && (s.mode == mode.Windows || s.mode == mode.Auto && runtime.GOOS == "windows"):
		o.format = "hcn"
	case of[o.format] != "" && s.mode != mode.Auto && s.mode != of[o.format]:
		return usageError("-o %s requires --mode %s, not %s", o.format, of[o.format], s.mode)
	}
	return nil
}

func (s *settings) plan(ctx context.Context, o *output, stdout, stderr io.Writer) error {
	if o.format == "iptables" || o.format == "nft" || o.format == "hcn" {
		return s.planRules(ctx, o.format, stdout, stderr)
	}

	var sw *ovsdb.Switch
	if s.OVSDB != "" {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		db, err := s.ConnectDatabase(ctx)
		if err != nil {
			return err
		}
		defer db.Close()
		now := db.Switch()
		sw = &now
	}

	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	by := s.mode
	if by == mode.Auto && runtime.GOOS == "windows" {
		by = mode.Windows
	}
	if by == mode.Auto || !o.data() {
		by = mode.OVS
	}
	d, err := s.desired(ctx, by, sw != nil, stderr)
	if err != nil {
		return err
	}
	compiler, warnings, err := s.compile(d, sw)
	if err != nil {
		return err
	}

	out := bufio.NewWriter(stdout)
	defer out.Flush()
	if o.data() {
		router := k8s.Router{
			Detector: d.model.Detector, NodeIPs: d.model.Node.IPs, MasqueradeAll: s.MasqueradeAll,
			Loopback: s.Fallback.LocalhostNodePorts,
		}
		return o.write(out, d.model.View(&router))
	}

	for _, text := range warnings {
		fmt.Fprintf(stderr, "nkp: warning: %s\n", text)
	}

	if o.format == "ofctl" {
		return pipeline.WriteBundle(out, compiler.State())
	}
	writePlan(out, d.model, compiler)
	return nil
}

// planRules prints the plan for a data plane other than the bridge.
func (s *settings) planRules(ctx context.Context, output string, stdout, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	by := mode.IPTables
	if output == "hcn" {
		by = mode.Windows
	}
	d, err := s.desired(ctx, by, false, stderr)
	if err != nil {
		return err
	}
	if output == "hcn" {
		return s.planHNS(d.model, stdout, stderr)
	}
	scope := serving.Everything
	if s.mode == mode.OVS {
		scope = serving.Host
	}
	text := ""
	if output == "nft" {
		o := s.NFTablesOptions(scope)
		text = nftables.Plan(d.model, o.Config, o.Settings)
	} else {
		text = rules.Plan(d.model, s.IPTablesOptions(scope).Config)
	}
	_, err = io.WriteString(stdout, text)
	return err
}

// writePlan prints the plan for people: Service by Service, then what they share.
func writePlan(out io.Writer, model *k8s.Model, compiler *pipeline.Compiler) {
	view, state := model.View(nil), compiler.State()
	fmt.Fprintf(out, "node %s: %s, %s, %s\n", view.Node, dataplane.Count(len(view.Services), "Service port"),
		dataplane.Count(len(state.Flows), "flow"), dataplane.Count(len(state.Groups), "group"))

	shown := map[flow.Key]bool{}

	for _, sv := range view.Services {
		name := sv.Namespace + "/" + sv.Name
		if sv.Port != "" {
			name += ":" + sv.Port
		}
		fmt.Fprintf(out, "\n%s %s %s", name, sv.Protocol, sv.Family)
		if sv.AffinitySeconds > 0 {
			fmt.Fprintf(out, ", session affinity %d s", sv.AffinitySeconds)
		}
		fmt.Fprintln(out)

		for _, f := range sv.Frontends {
			at := f.Address
			if at == "" {
				at = "(node)"
			}
			fmt.Fprintf(out, "  %-12s %s port %d, policy %s: %s\n", f.Type, at, f.Port, f.Policy, outcome(f))
		}

		flows, groups := compiler.Objects(portName(sv))
		for _, g := range groups {
			fmt.Fprintf(out, "    %s\n", g.Head())
			for _, b := range g.Buckets {
				fmt.Fprintf(out, "      %s\n", b)
			}
		}

		own := flow.NewState()
		for _, f := range flows {
			shown[f.Key] = true
			own.Flows[f.Key] = f
		}
		for _, f := range own.SortedFlows() {
			fmt.Fprintf(out, "    %s\n", f)
		}
	}

	fmt.Fprintln(out, "\nfor all Services")
	for _, m := range state.SortedMeters() {
		fmt.Fprintf(out, "    %s\n", m)
	}
	for _, f := range state.SortedFlows() {
		if !shown[f.Key] {
			fmt.Fprintf(out, "    %s\n", f)
		}
	}
}

func outcome(f k8s.FrontendView) string {
	switch {
	case f.ShadowedBy != "":
		return "not served: " + f.ShadowedBy + " has this address and port"
	case len(f.Endpoints) == 0 && f.WhenEmpty == string(k8s.Drop):
		return "no endpoint on this node: dropped"
	case len(f.Endpoints) == 0:
		return "no endpoints: refused"
	}
	text := strings.Join(f.Endpoints, ", ")
	if len(f.Endpoints) > 12 {
		text = strings.Join(f.Endpoints[:10], ", ") + fmt.Sprintf(", and %d more", len(f.Endpoints)-10)
	}
	if len(f.SourceRanges) > 0 {
		text += " (clients: " + strings.Join(f.SourceRanges, ", ") + ")"
	}
	return text
}

func portName(v k8s.ServiceView) k8s.PortName {
	n := k8s.PortName{
		ServiceName: k8s.ServiceName{Namespace: v.Namespace, Name: v.Name},
		Port:        v.Port, Protocol: k8s.Protocol(v.Protocol), Family: k8s.IPv4,
	}
	if v.Family == k8s.IPv6.String() {
		n.Family = k8s.IPv6
	}
	return n
}
