package command

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/live"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// traceFlags are the flags of nkp trace.
type traceFlags struct {
	from, to, protocol, in string
	live                   bool
	output                 output
}

func newTrace() *cobra.Command {
	s := newSettings()
	var f traceFlags
	cmd := &cobra.Command{
		Use:   "trace --from IP[:PORT] --to IP:PORT",
		Short: "Explain what happens to a packet, in Kubernetes' words",
		Long: `trace explains what happens at this node to the first packet of a connection: where it comes from, which Service and
which of its addresses it meets, which traffic policy applies, which endpoints are candidates and why the others are not,
whether it is masqueraded, and where it goes, or who refuses or drops it and why.

With --manifests or --kubeconfig it works out the answer by itself, on any machine: name the node with --hostname-override
and the pods' range with --cluster-cidr. Otherwise it asks the running agent. Nothing is sent.

--live compares the answer with what is installed. On the bridge it asks ovs-vswitchd (ofproto/trace, over its control socket) what
happens to the packet, for each endpoint, until the packet leaves the switch. With iptables it follows the installed rules. It names
flows that drop or divert the packet, flows that are missing, and existing connections.

Verdicts: deliver (to an endpoint), reject (refused with an answer), drop (in silence), untouched (nkp has nothing to do with it).
The verdict of "live" in JSON can also be mixed (it depends on the endpoint) or uncertain (the packet leaves the switch, but it or
its answer may not arrive).
Exit status: 0 explained, 1 no answer, or what is installed does not agree (--live), 2 usage.`,
		Example: `  nkp trace --from 10.0.0.5 --to 10.96.0.10:53 --protocol udp
  nkp trace --from 203.0.113.9 --to 192.168.1.11:30080 --live
  nkp trace --from [fd00::5]:40000 --to [fd00:96::1]:443 -o json
  nkp trace --from 10.10.0.4 --to 10.96.0.1:443 --manifests services.yaml --hostname-override node-1 --cluster-cidr 10.10.0.0/16`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := f.question()
			if err != nil {
				return err
			}
			if err := s.prepare(cmd); err != nil {
				return err
			}
			if err := s.checkSource(); err != nil {
				return err
			}
			r, err := s.trace(cmd.Context(), q, f.live, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), r)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.from, "from", "", "source: an address, or address and port")
	fs.StringVar(&f.to, "to", "", "destination: address and port")
	fs.StringVar(&f.protocol, "protocol", "tcp", "tcp, udp or sctp")
	fs.StringVar(&f.in, "in", "", "port of the bridge by which the packet comes, by name or number, LOCAL for the node (default: as the source suggests)")
	fs.BoolVar(&f.live, "live", false, "compare with what is installed on this node")
	f.output.flag(cmd, outputUsage)
	s.configFlag(fs)
	s.sourceFlags(fs)
	s.pipelineFlags(fs)
	s.layoutFlags(fs)
	s.switchFlags(fs, defaultOVSDB)
	s.socketFlag(fs)
	return cmd
}

// question reads the flags.
func (f *traceFlags) question() (q trace.Question, err error) {
	if err := f.output.check(); err != nil {
		return q, err
	}
	if f.from == "" || f.to == "" {
		return q, usageError("give --from IP[:PORT] and --to IP:PORT; see \"nkp trace --help\"")
	}
	if q.From, err = trace.ParseSource(f.from); err != nil {
		return q, usageError("--from: %w", err)
	}
	if q.To, err = trace.ParseDestination(f.to); err != nil {
		return q, usageError("--to: %w", err)
	}
	if q.Protocol, err = trace.ParseProtocol(f.protocol); err != nil {
		return q, usageError("--protocol: %w%s", err, didYouMean(f.protocol, enums["protocol"]))
	}
	q.In = f.in
	if err := q.Validate(); err != nil {
		return q, usageError("%w", err)
	}
	return q, nil
}

func (s *settings) trace(ctx context.Context, q trace.Question, live bool, stderr io.Writer) (*trace.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if !s.namesSource() {
		r, err := agent.NewCaller(s.Socket).Trace(ctx, q, live)
		if err != nil {
			return nil, needsAgent(err)
		}
		return r, nil
	}
	if live {
		return s.traceHere(ctx, q, stderr)
	}
	t, model, _, err := s.wantTracker(ctx, agent.ModeIPTables, false, stderr)
	if err != nil {
		return nil, err
	}
	return trace.Explain(s.traceCluster(t, model), q), nil
}

func (s *settings) traceCluster(t *k8s.Tracker, m *k8s.Model) trace.Cluster {
	c := trace.Cluster{
		Tracker: t, Model: m, MasqueradeAll: s.MasqueradeAll, LocalhostNodePorts: s.IPTables.LocalhostNodePorts, Uplink: s.Uplink,
	}
	if s.mode == string(agent.ModeIPTables) || s.mode == string(agent.ModeWindows) {
		c.LocalhostNodePorts = c.LocalhostNodePorts && s.mode == string(agent.ModeIPTables)
		return c
	}
	switch s.HostTraffic {
	case bridge.HostOff:
		c.HostGap = "--host-traffic off"
	case bridge.HostOVS:
		c.OwnGap = "--host-traffic ovs serves what crosses the bridge, and this never does"
	}
	return c
}

// traceHere explains the packet from the flags' source and compares that with the installed rules of this node, without an agent.
func (s *settings) traceHere(ctx context.Context, q trace.Question, stderr io.Writer) (*trace.Result, error) {
	c, sw, err := s.chooseNow(ctx)
	if err != nil {
		return nil, err
	}
	defer c.close()
	t, model, changes, err := s.wantTracker(ctx, c.mode, true, stderr)
	if err != nil {
		return nil, err
	}
	cluster := s.traceCluster(t, model)
	q.In, cluster.Uplink = s.PortNames(sw, q.In)
	cluster.NodeBeside = c.mode == agent.ModeOVS && s.NodeBeside(model, sw)
	r := trace.Explain(cluster, q)
	switch {
	case r.Gap:
		r.Live = live.Nothing()
		return r, nil
	case c.mode == agent.ModeWindows:
		return nil, agent.ErrNoLive
	case c.mode == agent.ModeIPTables:
		return r, s.CompareRules(ctx, s.IPTables.Backend, model, q, r)
	}
	if scope, ok := s.IPTablesScope(s.HostTrafficFor(model, sw)); ok && !agent.OnBridge(scope.String(), sw, model, q, r) {
		return r, s.CompareRules(ctx, s.IPTables.Backend, model, q, r)
	}
	return r, s.compareBridge(ctx, sw, model, changes, q, r)
}

// compareBridge compares the explanation with the path of the packet through the bridge.
func (s *settings) compareBridge(ctx context.Context, sw *ovsdb.Switch, model *k8s.Model, changes k8s.Changes, q trace.Question, r *trace.Result) error {
	ls, err := s.LiveSwitch(sw)
	if err != nil {
		return err
	}
	cfg, _ := s.PipelineConfig(model, sw)
	compiler, err := pipeline.NewCompiler(cfg)
	if err != nil {
		return err
	}
	compiler.Update(changes.Ports)
	conn, err := s.connectSwitch(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	ls.Config = cfg
	ls.Owner = func(_ context.Context, id uint32) (k8s.PortName, bool) { return compiler.Owner(uint64(id)) }
	ls.Installed = func(ctx context.Context, id uint32) (*flow.State, error) {
		return bridge.ReadInstalled(ctx, conn, s.Layout, id)
	}
	ls.Diff = func(ctx context.Context) (*live.Differences, error) {
		d, err := s.Compare(ctx, conn, compiler)
		return agent.LiveDifferences(&d), err
	}
	return ls.Compare(ctx, q, r)
}

// print prints the answer. If the installed rules do not agree, the exit status is 1.
func (f *traceFlags) print(w io.Writer, r *trace.Result) (err error) {
	if f.output.data() {
		err = f.output.write(w, r)
	} else {
		err = r.WriteText(w)
	}
	if err == nil && r.Live != nil && !r.Live.Agrees {
		return &exitError{exitFailure, nil}
	}
	return err
}
