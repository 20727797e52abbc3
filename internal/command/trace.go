package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/live"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// traceFlags are the flags of nkp trace.
type traceFlags struct {
	from, to, protocol, in string
	live, reply, probe     bool
	followFor              time.Duration // 0: do not
	output                 output
}

func newTrace(on *target) *cobra.Command {
	var f traceFlags
	cmd := &cobra.Command{
		Use:   "trace --from IP[:PORT]|pod/NAMESPACE/NAME --to IP:PORT|svc/NAMESPACE/NAME:PORT",
		Short: "Explain what happens to a packet, in Kubernetes' words",
		Long: `trace explains what happens at this node to the first packet of a connection: where it comes from, which Service and
which of its addresses it meets, which traffic policy applies, which endpoints are candidates and why the others are not,
whether it is masqueraded, and where it goes, or who refuses or drops it and why.

Names stand for addresses: a Service for its cluster IP of the source's family, a pod for the address that its port of the bridge,
the API server or an EndpointSlice has. nkp's role does not allow it to get pods: one that is no endpoint of any Service is then
found by its port (iface-id NAMESPACE_NAME) only. Give its address, or --kubeconfig of a user who may get pods.

With --manifests or --kubeconfig it works out the answer by itself, on any machine: name the node with --hostname-override
and the pods' range with --cluster-cidr. Otherwise it asks the running agent. Nothing is sent without --probe.

--live compares the answer with what is installed. On the bridge it asks ovs-vswitchd (ofproto/trace, over its control socket) what
happens to the packet, for each endpoint, until the packet leaves the switch. With iptables and nftables it follows the rules of all
owners. It names flows and chains that drop or divert the packet or the answers of endpoints (5 at most),
what is missing, and existing connections.
Of a packet of the node's own it asks the kernel for the route, and for what the nftables of all owners do. A line "not known to arrive"
names what else speaks against delivery: a port that is down, blocked or limited, connections that the endpoint has not answered.
A line "not known" has UDP connections without an answer, which may be normal: the exit status is that of the other lines.

--probe also sends the packet and waits a second for what becomes of it. From a pod of this node the running agent has the bridge
handle it as if it came by the pod's port; from this node it opens a socket. The answer goes to nkp, not to the pod; nkp resets a TCP
connection that is answered, and deletes its conntrack entry. The Service's counters and session affinity do not see it. Other sources
are refused: no packet of theirs can be sent here. A UDP datagram is empty, and that nothing answers it proves nothing.

--reply explains the answer as well, from the endpoint to the client. With --live it shows the way of each
through the switch or nftables, and what the conntrack entries of existing connections do to answers.

--follow then watches what becomes of the client's connections while it tries: the running agent looks at the conntrack entries and the
Service's packet counters, at most twice a second. It prints what changes, and at the end how many connections were answered, refused
or not answered, by endpoint, or that no packet came. Ctrl-C ends it early. Write --follow=30s, with the equals sign.

Verdicts: deliver (to an endpoint), reject (refused with an answer), drop (in silence), untouched (nkp has nothing to do with it).
The verdict of "live" in JSON can also be mixed (it depends on the endpoint) or uncertain (the packet leaves the switch, but it or
its answer may not arrive).
Exit status: 0 explained, 1 no answer, what is installed does not agree or the packet may not arrive (--live), or it did not (--probe), 2 usage.`,
		Example: `  nkp trace --from 10.0.0.5 --to 10.96.0.10:53 --protocol udp
  nkp trace --from pod/default/client --to svc/default/web:http --live
  nkp trace --from pod/default/client --to svc/default/web:http --live --reply
  nkp trace --from pod/default/client --to svc/default/web:http --live --follow=30s
  nkp trace --from pod/default/client --to svc/default/web:http --probe
  nkp trace --from 203.0.113.9 --to 192.168.1.11:30080 --live
  nkp trace --from [fd00::5]:40000 --to [fd00:96::1]:443 -o json
  nkp trace --from 10.10.0.4 --to 10.96.0.1:443 --manifests services.yaml --hostname-override node-1 --cluster-cidr 10.10.0.0/16`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, on) },
	}

	fs := cmd.Flags()
	f.flags(cmd)
	if on.nodes != nil {
		on.nodes.adapt(cmd, "node to ask (default: the client's)",
			"Explain on the client's node what happens to a packet",
			`trace asks the agent of the client's node what happens to the first packet of a connection, as nkp trace
does there (nkp trace --help has the details). The client's node is that of the pod, or the node that
has the address or a pod with it. A client outside of the cluster has none: name the node that its
packets come to with --node. Names without a namespace are in that of --namespace or the kubeconfig.
Exit status: 0 explained, 1 no answer, or what is installed (--live) or happened (--probe) does not
agree, 2 usage.`,
			`  kubectl nkp trace --from pod/client --to svc/web:http --live
  kubectl nkp trace --from pod/shop/cart-0 --to svc/shop/db:5432 --live --follow=30s
  kubectl nkp trace --from pod/client --to svc/web:http --probe
  kubectl nkp trace --from 203.0.113.9 --to 192.168.1.11:30080 --node node-1`)
		cmd.Use = "trace --from IP[:PORT]|pod/[NAMESPACE/]NAME --to IP:PORT|svc/[NAMESPACE/]NAME:PORT"
	} else {
		on.usePlanning(fs)
		on.use(fs, "socket")
		on.completeEnds(cmd)
	}
	return cmd
}

// run explains the packet, and follows the client's connections if that is asked for.
func (f *traceFlags) run(cmd *cobra.Command, on *target) error {
	if on.nodes != nil {
		if err := on.nodes.connect(); err != nil {
			return err
		}
		f.from = inNamespace(f.from, "pod/", on.nodes.namespace)
		f.to = inNamespace(f.to, "svc/", on.nodes.namespace)
	}
	ask, ends, err := f.request(cmd.Flags().Changed("protocol"))
	if err != nil {
		return err
	}

	var caller *api.Caller
	var r *trace.Result
	if on.nodes != nil {
		caller, r, err = on.nodes.trace(cmd.Context(), &ask, &ends)
	} else {
		caller, r, err = f.here(cmd, on.settings, ask, &ends)
	}
	if caller != nil {
		defer caller.Close()
	}
	switch {
	case err != nil:
		return err
	case f.followFor > 0:
		return f.follow(cmd.Context(), caller, ask, r, cmd.OutOrStdout())
	}
	return f.print(cmd.OutOrStdout(), r)
}

// here explains the packet by asking the agent of this machine or, if flags name a source of Services,
// without one. caller is nil then.
func (f *traceFlags) here(
	cmd *cobra.Command,
	s *settings,
	ask trace.Request,
	ends *trace.Ends,
) (caller *api.Caller, r *trace.Result, err error) {
	if err := s.prepare(cmd); err != nil {
		return nil, nil, err
	}
	if err := s.checkSource(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), askTimeout)
	defer cancel()

	switch {
	case !s.namesSource():
		if err := s.cfg.checkAgent(); err != nil {
			return nil, nil, err
		}
		caller = api.NewCaller(s.Socket)
		r, err = caller.Trace(ctx, ask)
		return caller, r, needsAgent(err)
	case f.probe:
		return nil, nil, usageError(
			"--probe asks the running agent: leave out --manifests, --kubeconfig and --master")
	case f.followFor > 0:
		return nil, nil, usageError(
			"--follow asks the running agent: leave out --manifests, --kubeconfig and --master")
	}
	r, err = s.trace(ctx, ask, ends, cmd.ErrOrStderr())
	return nil, r, err
}

// flags defines the flags of the command that are not those of run.
func (f *traceFlags) flags(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.from, "from", "", "source: an address or pod/NAMESPACE/NAME, each with or without :PORT")
	fs.StringVar(&f.to, "to", "",
		"destination: address and port, or [svc/]NAMESPACE/NAME:PORT for a cluster IP, with the port's "+
			"number or name")
	fs.StringVar(&f.protocol, "protocol", "tcp",
		"tcp, udp or sctp (default with a Service's name: that of its port)")
	fs.StringVar(&f.in, "in", "",
		"port of the bridge by which the packet comes, by name or number, LOCAL for the node (default: as "+
			"the source suggests)")
	fs.BoolVar(&f.reply, "reply", false,
		"also explain what happens to the answer; with --live by what is installed as well")
	fs.BoolVar(&f.probe, "probe", false,
		"also send the packet, from a pod of this node or the node itself, and say what becomes of it")
	fs.BoolVar(&f.live, "live", false, "compare with what is installed on this node")
	fs.DurationVar(&f.followFor, "follow", 0,
		"with --live, follow what becomes of the client's connections while it tries, 10s if no time is "+
			"given, 5m at most")
	fs.Lookup("follow").NoOptDefVal = followDefault.String()
	f.output.flag(cmd, outputUsage)
}

// request checks the flags, and returns them as a request and the packet's parsed ends.
func (f *traceFlags) request(protocolSet bool) (r trace.Request, e trace.Ends, err error) {
	if f.from == "" || f.to == "" {
		return r, e, usageError("pass --from IP[:PORT] and --to IP:PORT, or names; see \"nkp trace --help\"")
	}
	switch {
	case f.followFor != 0 && f.probe:
		return r, e, usageError("--probe sends the packet itself: leave out --follow")
	case f.followFor != 0 && !f.live:
		return r, e, usageError("--follow needs --live")
	case f.followFor < 0 || f.followFor > followMost:
		return r, e, usageError("--follow=%v is not between 0 and %v", f.followFor, followMost)
	}
	r = trace.Request{From: f.from, To: f.to, In: f.in, Live: f.live, Reply: f.reply, Probe: f.probe}
	if protocolSet {
		r.Protocol = f.protocol
	}
	if err := checkEnum("protocol", strings.ToLower(f.protocol)); err != nil {
		return r, e, err
	}
	if e, err = r.Parse("--"); err != nil {
		return r, e, usageError("%w", err)
	}
	return r, e, nil
}

// trace explains the packet from the flags' source.
func (s *settings) trace(
	ctx context.Context, ask trace.Request, ends *trace.Ends, stderr io.Writer,
) (*trace.Result, error) {
	if ask.Live {
		return s.traceHere(ctx, ask, ends, stderr)
	}
	by := s.mode
	if by == mode.Auto {
		by = mode.OVS // auto takes it where there is a bridge
	}
	d, err := s.desired(ctx, by, false, stderr)
	if err != nil {
		return nil, err
	}
	q, names, err := s.resolveNames(ctx, nil, d.model, ends)
	if err != nil {
		return nil, err
	}
	r := trace.Explain(s.traceCluster(d), q)
	r.Steps = append(names, r.Steps...)
	if ask.Reply {
		r.ExplainReply(q, &d.model.Node)
	}
	return r, nil
}

// resolveNames replaces the names in a request with addresses, without an agent. sw is nil if there is no
// switch to ask.
func (s *settings) resolveNames(
	ctx context.Context, sw *ovsdb.Switch, model *k8s.Model, ends *trace.Ends,
) (q trace.Question, steps []string, err error) {
	source, _, err := s.source()
	if err != nil {
		return q, nil, err
	}
	pod, err := agent.PodAddresses(ctx, sw, source, ends.Pod)
	if err != nil {
		return q, nil, err
	}
	return ends.Resolve(model, pod)
}

func (s *settings) traceCluster(d *desired) trace.Cluster {
	c := trace.Cluster{
		Tracker: d.tracker, Model: d.model, MasqueradeAll: s.MasqueradeAll,
		LocalhostNodePorts: s.Fallback.LocalhostNodePorts, Uplink: s.Uplink,
	}
	switch s.mode {
	case mode.IPTables, mode.NFTables:
		return c
	case mode.Windows:
		c.LocalhostNodePorts, c.Permissive = false, true
		return c
	}
	switch s.HostTraffic {
	case bridge.HostOff:
		c.HostUnserved = "--host-traffic off"
	case bridge.HostOVS:
		c.OwnUnserved = "--host-traffic ovs serves what crosses the bridge, and this never does"
	}
	return c
}

// traceHere explains the packet from the flags' source and compares that with the installed rules of this
// node, without an agent.
func (s *settings) traceHere(
	ctx context.Context, ask trace.Request, ends *trace.Ends, stderr io.Writer,
) (*trace.Result, error) {
	c, sw, err := s.chooseNow(ctx)
	if err != nil {
		return nil, err
	}
	defer c.close()

	d, err := s.desired(ctx, c.Mode, true, stderr)
	if err != nil {
		return nil, err
	}
	model := d.model

	q, names, err := s.resolveNames(ctx, sw, model, ends)
	if err != nil {
		return nil, err
	}

	cluster := s.traceCluster(d)
	q.In, cluster.Uplink = s.PortNames(sw, q.In)
	if c.Mode == mode.OVS {
		cluster.NodeBeside = s.NodeBeside(model, sw)
	}

	r := trace.Explain(cluster, q)
	r.Steps = append(names, r.Steps...)
	if ask.Reply {
		r.ExplainReply(q, &model.Node)
	}

	switch {
	case r.Unserved:
		r.Live = live.Nothing()
		return r, nil
	case r.Userspace:
		return nil, errors.New(
			"--live: only the running nkp knows whether it listens at [::1], and none answers here")
	case c.Mode == mode.Windows:
		return nil, agent.ErrNoLive
	case c.Mode == mode.IPTables || c.Mode == mode.NFTables:
		return r, s.CompareRules(ctx, c.Mode, serving.Everything, model, q, r)
	}

	scope, ok := s.IPTablesScope(s.HostTrafficFor(model, sw))
	if ok && !agent.OnBridge(scope.String(), cluster.NodeBeside, sw, model, q, r) {
		m, off := s.hostMode(ctx, scope)
		if m == "" {
			return nil, fmt.Errorf("no data plane of nkp's serves the node's own traffic: %s", off)
		}
		return r, s.CompareRules(ctx, m, scope, model, q, r)
	}

	return r, s.compareBridge(ctx, sw, d, q, r)
}

// compareBridge compares the explanation with the path of the packet through the bridge.
func (s *settings) compareBridge(
	ctx context.Context, sw *ovsdb.Switch, d *desired, q trace.Question, r *trace.Result,
) error {
	ls, err := s.LiveSwitch(sw)
	if err != nil {
		return err
	}

	compiler, _, err := s.compile(d, sw)
	if err != nil {
		return err
	}

	conn, err := s.connectSwitch(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()

	ls.Config = compiler.Config()
	ls.Owner = func(_ context.Context, id uint32) (k8s.PortName, bool) { return compiler.Owner(uint64(id)) }
	ls.Installed = func(ctx context.Context, id uint32) (*flow.State, error) {
		return bridge.ReadInstalled(ctx, conn, s.Layout, id)
	}
	ls.Diff = func(ctx context.Context) (*live.Differences, error) {
		found, err := s.Compare(ctx, conn, sw, compiler)
		return agent.LiveDifferences(&found), err
	}
	ls.Returns = func(ctx context.Context, sent []netip.Addr) (string, error) {
		return s.WhyReturns(ctx, conn, sent)
	}

	if err := ls.Compare(ctx, q, r); err != nil {
		return err
	}
	return s.CompareOwn(ctx, d.model, q, r)
}

// print prints the answer. If the installed rules or the probe do not agree, the exit status is 1.
func (f *traceFlags) print(w io.Writer, r *trace.Result) (err error) {
	if f.output.data() {
		err = f.output.write(w, r)
	} else {
		err = r.WriteText(w)
	}
	if err != nil {
		return err
	}
	return agreement(r)
}

// agreement returns the error that sets the exit status if what is installed, or a probe, does not agree.
func agreement(r *trace.Result) error {
	if !r.Agrees() {
		return &exitError{exitFailure, nil}
	}
	return nil
}
