package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/trace"
)

// servicesView is what a command that lists Services asks for, and how it shows what it gets.
type servicesView struct {
	on     *target
	all    bool // of a cluster: Services of all namespaces
	filter api.ServiceFilter
	at     frontend // --vip
	output output
	watch  watch
}

func newServices(on *target) *cobra.Command {
	v := &servicesView{on: on, watch: watch{interval: minInterval}} // a cluster is not watched
	cmd := &cobra.Command{
		Use:   "services [[NAMESPACE/]NAME]",
		Short: "List Service ports with endpoints, problems and counters",
		Long: `services asks the running agent for the Service ports that it serves, one line for each port and family: its frontends,
how many of its endpoints are in force here, and what went through it on this node. -o wide shows every endpoint, and why
it is not in force if it is not; problems are shown below their Service in any case. With NAME, unless
--watch is given, it also reads the conntrack table and shows whether the endpoints answered their last
TCP connections; -o wide then also lists connections: at most 100, whichever the table has first, with the
number of the others.

Connections are counted once each when they are opened. IN is from clients to endpoints, OUT the answers. Bytes are those
of IP packets, headers included. Counters begin when a Service port is first programmed; a restart of nkp does not change
them, nor do endpoints that come and go. They lag behind by about a second. In iptables mode only connections are counted;
"-" stands for what is not, and -o json says why.

With --watch the list is refreshed continuously, with rates per second since the previous refresh, and the Service ports with
the most packets first. On a terminal each list replaces the one before, and columns that do not fit are left out.`,
		Example: `  nkp services
  nkp services default/guestbook -o wide
  nkp services -n kube-system --watch --interval 5s
  nkp services --vip 10.96.0.10 -o json`,
		Args: oneService,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := v.resolve(args); err != nil {
				return err
			}
			peers, err := on.peers(cmd)
			switch {
			case err != nil:
				return err
			case on.nodes != nil:
				return v.nodes(cmd.Context(), peers, cmd.OutOrStdout(), cmd.ErrOrStderr())
			case v.watch.on:
				return v.follow(cmd.Context(), peers[0].Caller, cmd.OutOrStdout())
			}
			v.filter.Connections = v.filter.Name != ""
			return v.list(cmd.Context(), peers[0].Caller, cmd.OutOrStdout())
		},
	}

	f := cmd.Flags()
	if on.nodes != nil {
		on.nodes.adapt(cmd, "only this node",
			"List the Service ports of all nodes with endpoints, problems and counters",
			`services asks the agents of all nodes for the Service ports that they serve, one line for each port and
family: its frontends, how many of its endpoints are in force, and what went through it on all nodes
together. Nodes that serve it otherwise, by traffic policy, topology or a problem, have a line of their
own, and NODES then has their names. nkp services --help explains the columns. Exit status: 0 all nodes
answered, 1 not all did, or none serves the Service.`,
			"  kubectl nkp services\n  kubectl nkp services web -o wide\n"+
				"  kubectl nkp services -A --node node-1")
		f.BoolVarP(&v.all, "all-namespaces", "A", false,
			"Services of all namespaces (default: that of --namespace, or the kubeconfig's)")
	} else {
		on.use(f, groupSwitch, "config", "socket")
		f.StringVarP(&v.filter.Namespace, "namespace", "n", "", "only Services of this namespace")
		f.StringVar(&v.filter.Name, "name", "",
			"only Services of this name; as an argument: NAME or NAMESPACE/NAME")
		v.watch.flags(f, "refresh the list continuously, with rates")
	}
	v.at.flag(f)
	v.output.flag(cmd, "text, wide (with endpoints), json or yaml", "wide")
	if on.nodes == nil {
		on.completeService(cmd)
		on.completeFilters(cmd)
	}
	return cmd
}

// oneService returns a usage error for more than one argument.
func oneService(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError("%s takes one Service at most, got %q", cmd.Name(), args)
	}
	return nil
}

// resolve checks the flags and applies the argument to the filter.
func (v *servicesView) resolve(args []string) error {
	if err := v.watch.check(); err != nil {
		return err
	}

	v.filter.VIP, v.filter.Port, v.filter.Protocol = v.at.address, v.at.port, v.at.protocol
	if len(args) == 0 {
		return nil
	}

	if v.filter.Name != "" {
		return usageError("the Service is named twice: %q and --name %s", args[0], v.filter.Name)
	}

	namespace, name, ok := strings.Cut(args[0], "/")
	if !ok {
		namespace, name = "", args[0]
	}
	name, _, _ = strings.Cut(name, ":") // a port as status prints it: default/web:http

	switch {
	case name == "" || ok && namespace == "":
		return usageError("%q is not NAME or NAMESPACE/NAME", args[0])
	case ok && v.filter.Namespace != "" && v.filter.Namespace != namespace:
		return usageError("%q is not in namespace %s", args[0], v.filter.Namespace)
	case ok:
		v.filter.Namespace = namespace
	}

	v.filter.Name = name
	return nil
}

// list prints one list of this machine's agent. A Service that is named must be in it.
func (v *servicesView) list(ctx context.Context, caller *api.Caller, out io.Writer) error {
	list, err := caller.Services(ctx, v.filter)
	if err != nil {
		return err
	}
	if v.filter.Name != "" && len(list.Services) == 0 {
		return v.unknown(ctx, caller, list.Node)
	}
	return v.write(out, list, nil, 0)
}

// unknown returns the error for a Service that is not served here. It suggests similar names that are.
func (v *servicesView) unknown(ctx context.Context, caller *api.Caller, node string) error {
	name := v.filter.Name
	if v.filter.Namespace != "" {
		name = v.filter.Namespace + "/" + name
	}
	text := fmt.Sprintf("no Service %s is served on node %s", name, node)
	if v.at.text != "" {
		text += " at " + v.at.text
	}
	all, err := caller.Services(ctx, api.ServiceFilter{})
	if err != nil {
		return errors.New(text)
	}
	var served []string
	for i := range all.Services {
		served = append(served, all.Services[i].Namespace+"/"+all.Services[i].Name)
	}
	text += trace.DidYouMean(v.filter.Name, served)
	return errors.New(text + " (\"nkp services\" lists all)")
}

// write prints one list; before, if not nil, is the list to compute rates against. A width above 0 is the
// terminal's.
func (v *servicesView) write(w io.Writer, list, before *api.ServiceList, width int) error {
	if v.output.data() {
		return v.output.write(w, list)
	}
	return writeServices(w, list, before, v.output.format == "wide", v.watch.on, width)
}

// follow is --watch.
func (v *servicesView) follow(ctx context.Context, caller *api.Caller, w io.Writer) error {
	var before *api.ServiceList
	return v.watch.follow(ctx, w, &v.output, func(w io.Writer, width int) error {
		list, err := caller.Services(ctx, v.filter)
		if err != nil {
			return err
		}
		if !v.output.data() {
			fmt.Fprintf(w, "%s, node %s\n", list.Time.Format(time.TimeOnly), list.Node)
		}
		defer func() { before = list }()
		return v.write(w, list, before, width)
	})
}
