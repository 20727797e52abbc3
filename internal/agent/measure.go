package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/httpguard"
	"github.com/nkp-proxy/nkp/internal/localhost"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/observe/metrics"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/windows"
)

// MetricsSettings say what is measured and where it is served.
type MetricsSettings struct {
	Addr          string // of /metrics; "": nowhere
	Profiling     bool   // serve pprof there too
	Authorization bool   // serve only clients that the API server permits, over HTTPS
	// PEM files of the certificate for HTTPS. "": a self-signed one with Authorization, else plain HTTP.
	CertFile, KeyFile string
	// Services adds counters of Service ports, of at most ServiceLimit by name.
	Services     bool
	ServiceLimit int
}

// counterPatience is how long a loop may work without progress before scrapes stop reading counters.
const counterPatience = 2 * time.Second

// makeMetrics makes what data planes and loop report to, and its server. It fails if the files of a
// certificate cannot be read.
func (a *Agent) makeMetrics(o *Options) error {
	a.metrics = metrics.New(metrics.Options{
		Version: Version, Mode: string(a.mode), Families: a.set.families(a.mode), Collect: a.collect,
		Stuck: func() bool { return len(a.watch.Stuck()) > 0 },
	})

	if o.Metrics.Services {
		read := func(ctx context.Context) (map[k8s.PortName]k8s.Counters, error) {
			for _, l := range a.watch.Working() {
				if l.For >= counterPatience {
					return nil, errors.New(l.String()) // a scrape must not wait for it
				}
			}
			by, _, err := a.Counters(ctx)
			return by, err
		}
		a.metrics.CountServices(o.Metrics.ServiceLimit, read)
	}

	so := metrics.ServerOptions{
		Addr: o.Metrics.Addr, HardFail: o.BindHardFail, Profiling: o.Metrics.Profiling,
		ProxyMode: proxyMode(a.mode),
		Config:    o.Configz, SetVerbosity: o.SetVerbosity, Log: a.log,
		OnFailure: func(err error) {
			a.events.Node(apiserver.EventWarning,
				"FailedToStartMetricServer", "StartServiceProxy", err.Error())
		},
	}

	if a.reviewer != nil {
		so.Protect = a.reviewer.Protect
	}
	if m := &o.Metrics; m.CertFile != "" || a.reviewer != nil {
		var err error
		if so.TLS, err = httpguard.NewTLS(m.CertFile, m.KeyFile, o.NodeName, a.log); err != nil {
			return fmt.Errorf("--metrics-tls-cert-file: %w", err)
		}
	}

	a.metricsServer = metrics.NewServer(a.metrics, so)
	return nil
}

// metricsWarnings returns why the metrics are not served as they should be.
func (a *Agent) metricsWarnings() (all []string) {
	if failure := a.metricsServer.Failure(); failure != "" {
		all = append(all, failure)
	}
	if a.reviewer != nil && a.reviewer.Failure() != "" {
		all = append(all, a.reviewer.Failure())
	}
	return all
}

// proxyMode returns what /proxyMode says: kube-proxy's name of a mode that it has too.
func proxyMode(m mode.Mode) string {
	if m == mode.Windows {
		return "kernelspace"
	}
	return string(m)
}

// families are those that the data plane of a mode may serve.
func (s *Settings) families(m mode.Mode) []k8s.Family {
	if m == mode.IPTables || m == mode.NFTables {
		return s.Fallback.Families // none: both
	}
	return nil
}

// queued and inStep report the state of the main data plane to health and metrics.
func (a *Agent) queued(fs ...k8s.Family) {
	a.proxy.Queued(fs...)
	a.metrics.Queued(fs...)
}

func (a *Agent) inStep(fs ...k8s.Family) {
	a.proxy.Updated(fs...)
	a.metrics.InStep(fs...)
	if a.proxy.InStep() {
		a.startedUp()
	}
}

// snapshot is what a scrape says of the model.
type snapshot struct {
	synced           bool
	errors, warnings int
	ports, endpoints map[k8s.Family]int
	// internal and external count the Service ports whose traffic is dropped because they have no local
	// endpoint.
	internal, external map[k8s.Family]int
	planes             planes
	nodeIPs            []netip.Addr
}

// count walks the model. It runs on the loop.
func (a *Agent) count() *snapshot {
	t := &snapshot{
		synced: a.synced, errors: len(a.problems.Errors),
		warnings: len(a.problems.Warnings) + len(a.model.Warnings),
		ports:    map[k8s.Family]int{}, endpoints: map[k8s.Family]int{},
		internal: map[k8s.Family]int{}, external: map[k8s.Family]int{},
		planes: a.planes, nodeIPs: a.model.Node.IPs,
	}

	if a.leftovers != "" {
		t.warnings++
	}
	if a.hostPlaneOff != "" {
		t.warnings++
	}
	if a.synced && !a.delivered {
		t.warnings++
	}

	for n, sp := range a.model.Ports {
		t.ports[n.Family]++
		t.endpoints[n.Family] += len(sp.ClusterEndpoints)
		if len(sp.LocalEndpoints) > 0 || len(sp.ClusterEndpoints) == 0 {
			continue
		}

		inside, outside := 0, 0
		var router k8s.Router
		for i := range sp.Frontends {
			switch f := &sp.Frontends[i]; {
			case router.Routes(sp, f)[k8s.Outside].Set != k8s.OnNode:
			case f.Type == k8s.ClusterIP:
				inside = 1
			default:
				outside = 1
			}
		}

		t.internal[n.Family] += inside
		t.external[n.Family] += outside
	}

	return t
}

// collect emits the states at a scrape. If the loop does not answer in time, its values are those of the last
// scrape.
func (a *Agent) collect(emit metrics.Emit) {
	ctx, cancel := context.WithTimeout(context.Background(), loopWait)
	defer cancel()

	var now *snapshot
	if a.ask(ctx, func() { now = a.count() }) == nil {
		a.lastSnapshot.Store(now)
	} else if now = a.lastSnapshot.Load(); now == nil {
		now = &snapshot{}
	}

	working := map[string]float64{}
	for _, l := range a.watch.Working() {
		working[l.Loop] = l.For.Seconds()
	}
	for _, name := range a.watch.Names() {
		emit(metrics.LoopStalled, working[name], name)
	}

	emit(metrics.SourceSynced, metrics.Bool(now.synced))
	if server, ok := a.source.(interface{ Answers() bool }); ok {
		emit(metrics.SourceAnswers, metrics.Bool(server.Answers()))
	}
	emit(metrics.SourceErrors, float64(now.errors))

	for _, f := range dataplane.Families {
		emit(metrics.ServicePorts, float64(now.ports[f]), f.String())
		emit(metrics.Endpoints, float64(now.endpoints[f]), f.String())
		emit(metrics.NoLocalEndpoints, float64(now.internal[f]), "internal", f.String())
		emit(metrics.NoLocalEndpoints, float64(now.external[f]), "external", f.String())
	}

	conflicts, unbound := len(a.ports.Conflicts()), len(a.checks.Failures())
	emit(metrics.Conflict, float64(conflicts))
	emit(metrics.Unbound, float64(unbound))
	warnings := now.warnings + conflicts + unbound + len(a.sysctls)
	warnings += len(a.modes.Reasons()) + len(a.metricsWarnings()) + len(a.localhost.Problems())
	if a.localhost != nil {
		collectLocalhost(a.localhost.Figures(), emit)
	}

	if p := now.planes.fallback; p != nil {
		served := p.Detail()
		warnings += len(a.notForwarding(&served, now.nodeIPs))
	}

	asking, stop := context.WithTimeout(context.Background(), loopWait) // the loop may have used up its own
	defer stop()
	warnings += now.planes.collect(asking, emit)
	emit(metrics.Warnings, float64(warnings))
}

// collect emits the metrics of the data planes and returns the number of their warnings. It does not wait for
// their loops. It waits for the switch until the context ends.
func (p *planes) collect(ctx context.Context, emit metrics.Emit) (warnings int) {
	for _, pl := range p.all {
		refused := 0
		switch of := pl.Plane.(type) {
		case *bridge.Plane:
			f := of.Figures()
			warnings, refused = warnings+f.Warnings, f.Refused
			collectBridge(&f, emit)
			usage, megaflows, n := of.Asked(ctx)
			collectConntrack(&usage, emit)
			collectMegaflows(&megaflows, emit)
			warnings += n + collectCanary(of.Canary(), emit)
			collectPings(of.Pings(), pl.label, emit)
		case *windows.Plane:
			d := of.Detail()
			warnings, refused = warnings+len(d.Warnings), collectHNS(d, emit)
		default: // iptables, or a part of it
			refused = collectFallback(p.fallback.Detail(), pl.label, emit)
			warnings += collectCanary(p.fallback.Canary(), emit)
			if n, err := p.fallback.NodeCounters(ctx); err == nil {
				collectPings(n.Pings, pl.label, emit)
				for def, count := range map[*metrics.Definition]*uint64{
					metrics.LocalhostNodePorts: n.Localhost,
					metrics.InvalidDropped:     n.Invalid,
				} {
					if count != nil {
						emit(def, float64(*count))
					}
				}
			}
			if d := p.fallback.Dropped(); d != nil {
				emitDrops(d, emit)
			}
		}

		emit(metrics.Refused, float64(refused), pl.label)
	}
	return warnings
}

func collectPings(n *dataplane.Pings, plane string, emit metrics.Emit) {
	if n != nil {
		emit(metrics.Pings, float64(n.Answered), plane, "answered")
		emit(metrics.Pings, float64(n.Limited), plane, "limited")
	}
}

// collectCanary returns the number of faults.
func collectCanary(verdicts []dataplane.CanaryVerdict, emit metrics.Emit) (faults int) {
	for _, v := range verdicts {
		emit(metrics.CanaryFault, metrics.Bool(v.Fault != ""), v.Plane, v.Family)
		for result, n := range v.Sent {
			emit(metrics.Canaries, float64(n), v.Plane, v.Family, result)
		}
		if v.Fault != "" {
			faults++
		}
	}
	return faults
}

func collectBridge(f *bridge.Figures, emit metrics.Emit) {
	emit(metrics.ChannelUp, metrics.Bool(f.Connected))
	emit(metrics.FailOpen, metrics.Bool(f.FailOpen))
	emit(metrics.Channels, float64(f.Connections))
	emit(metrics.FlowsWanted, float64(f.FlowsWanted))
	emit(metrics.FlowsInstalled, float64(f.FlowsInstalled))
	emit(metrics.GroupsWanted, float64(f.GroupsWanted))
	emit(metrics.AffinityClients, float64(f.AffinityClients))
	emit(metrics.AffinityFull, float64(f.AffinityFull))
	emit(metrics.AffinityStopped, metrics.Bool(f.AffinityStopped))
	emit(metrics.RestingIDs, float64(f.RestingIDs))
	emit(metrics.Foreign, float64(f.Foreign))
	emit(metrics.Repairs, float64(f.Repairs), "ovs")
	emitDrops(f.Dropped, emit)
	emit(metrics.Rejects, float64(f.Rejects.Answered), "answered")
	emit(metrics.Rejects, float64(f.Rejects.Unanswerable), "unanswerable")
	emit(metrics.Rejects, float64(f.Rejects.Dropped), "dropped")
	emit(metrics.Rejects, float64(f.Rejects.Failed), "failed")
}

func collectLocalhost(f localhost.Figures, emit metrics.Emit) {
	emit(metrics.LocalhostListeners, float64(f.Listening), k8s.IPv6.String())
	emit(metrics.LocalhostFailures, float64(f.Failures), k8s.IPv6.String())
	emit(metrics.LocalhostUnserved, float64(f.Unserved))
	emit(metrics.LocalhostOpen, float64(f.Open))
	emit(metrics.LocalhostBuffers, float64(f.Buffers))
	for result, n := range f.Results {
		emit(metrics.LocalhostConnections, float64(n), result)
	}
}

func emitDrops(dropped map[k8s.DropReason]uint64, emit metrics.Emit) {
	for why, n := range dropped {
		emit(metrics.Dropped, float64(n), string(why))
	}
}

func collectConntrack(u *dpctl.Usage, emit metrics.Emit) {
	for _, f := range u.Fills() {
		zone := "all"
		if f.Zone != 0 {
			zone = strconv.Itoa(int(f.Zone))
		}
		emit(metrics.ConntrackEntries, float64(f.Entries), zone)
		emit(metrics.ConntrackLimit, float64(f.Limit), zone)
	}
	for why, n := range u.Failures {
		emit(metrics.ConntrackFailures, float64(n), why)
	}
}

func collectMegaflows(m *dpctl.Megaflows, emit metrics.Emit) {
	if m.NotKnown != "" {
		return
	}
	emit(metrics.Megaflows, float64(m.Entries))
	emit(metrics.MegaflowLimit, float64(m.Limit))
	if m.Refused != nil {
		emit(metrics.MegaflowsRefused, float64(*m.Refused))
	}
}

// collectFallback is for iptables and nftables. It returns how many Service ports are refused.
func collectFallback(s fallback.Status, plane string, emit metrics.Emit) (refused int) {
	pending, repairs := 0, 0
	for _, f := range s.Families {
		refused, pending, repairs = refused+len(f.Refused), pending+f.Pending, repairs+f.Repairs
		if d := f.Flowtable; d != nil {
			emit(metrics.FlowtableDevices, float64(d.Devices), f.Family, "in")
			emit(metrics.FlowtableDevices, float64(d.LeftOut), f.Family, "left_out")
		}
	}
	emit(metrics.PendingPorts, float64(pending), plane)
	emit(metrics.Repairs, float64(repairs), plane)
	return refused
}

// collectHNS returns how many Service ports are refused.
func collectHNS(s windows.Status, emit metrics.Emit) int {
	refused := map[string]bool{}
	for _, f := range s.Failures {
		refused[f.Service] = true
	}

	for call, n := range s.Calls {
		emit(metrics.HNSCalls, float64(n.OK), call, "ok")
		emit(metrics.HNSCalls, float64(n.Failed), call, "failed")
	}
	emit(metrics.HNSSyncs, float64(s.Syncs-s.SyncErrors), "ok")
	emit(metrics.HNSSyncs, float64(s.SyncErrors), "failed")

	for operation, n := range map[string]uint64{
		"created": s.Counts.Created, "modified": s.Counts.Modified, "replaced": s.Counts.Replaced,
		"deleted": s.Counts.Deleted, "failed": s.Counts.Failed,
	} {
		emit(metrics.HNSChanges, float64(n), operation)
	}
	for f, n := range s.Counts.FailedLoadBalancers {
		emit(metrics.HNSLoadBalancerFailures[f.Op], float64(n), f.Family.String(), f.Type, f.Error)
	}

	emit(metrics.HNSObjects, float64(s.Objects.Endpoints), "endpoint")
	emit(metrics.HNSObjects, float64(s.Objects.LoadBalancers), "load_balancer")
	emit(metrics.HNSObjects, float64(s.Objects.Foreign), "foreign_load_balancer")
	emit(metrics.HNSObjects, float64(s.Objects.StaleEndpoints), "stale_endpoint")
	emit(metrics.HNSObjects, float64(s.Objects.StaleLoadBalancers), "stale_load_balancer")

	if b := s.FreePortBlocks; b != nil {
		emit(metrics.HNSFreePortBlocks, float64(b.TCP), "tcp")
		emit(metrics.HNSFreePortBlocks, float64(b.UDP), "udp")
	}

	return len(refused)
}
