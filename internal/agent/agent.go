package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/localhost"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/observe/health"
	"github.com/nkp-proxy/nkp/internal/observe/metrics"
	"github.com/nkp-proxy/nkp/internal/observe/notify"
	"github.com/nkp-proxy/nkp/internal/ports"
	"github.com/nkp-proxy/nkp/internal/sysctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// Options are what an Agent works with.
type Options struct {
	Settings
	Mode   mode.Mode
	Reason string // why this mode, for status
	Source k8s.Source
	Kind   string // what the source is, for status
	Events *apiserver.Recorder
	// Reviewer decides who may read the metrics; nil: everyone who reaches the address.
	Reviewer *apiserver.Reviewer
	DB       *ovsdb.Client // the switch, for mode.OVS
	// Auto reports whether nkp has chosen the mode. Status and an Event then name the reason if it would
	// choose another one now.
	Auto bool
	// Notes returns further warnings for status; nil: there are none.
	Notes func() []string
	// Configz returns the configurations in force by their group, for /configz; nil: none is shown.
	Configz func() map[string]any
	// SetVerbosity changes how much is logged while the agent runs, by klog's number; nil: that cannot be
	// changed.
	SetVerbosity func(level uint32)
	// LogLevel is the level from which the agent logs, for nkp log-level; nil: it cannot be changed.
	LogLevel *slog.LevelVar
	// RecentLog has the newest lines of Log, for nkp bundle; nil: they are not kept.
	RecentLog *RecentLog
	Log       *slog.Logger
}

// Agent keeps the data plane of one node in step with one source. Make it with New, run it once with Run.
type Agent struct {
	set      Settings
	log      *slog.Logger
	logLevel *slog.LevelVar
	leveling sync.Mutex // of changes of logLevel, so that each knows the level before
	configz  func() map[string]any
	// recentLog has the newest lines of the log.
	recentLog *RecentLog
	mode      mode.Mode
	reason    string
	source    k8s.Source
	kind      string
	events    *apiserver.Recorder
	reviewer  *apiserver.Reviewer
	started   time.Time

	planes        // the loop's; main never changes
	main          planes
	auto          bool // nkp has chosen the mode
	db            *ovsdb.Client
	extraWarnings func() []string
	modes         mode.Watch
	noneForwarded map[k8s.Family]bool // of whose Services the kernel forwards none (toForward)
	// reversePathDrops is sysctl.ReversePathDrops at the start.
	reversePathDrops int
	watch            *dataplane.Watch // over all loops
	life             *dataplane.Loop  // progress of the agent's own loop, for watch
	proxy            *health.Proxy    // /healthz and /livez
	checks           *health.Services // health check node ports
	metrics          *metrics.Metrics
	metricsServer    *metrics.Server
	lastSnapshot     atomic.Pointer[snapshot] // of the last scrape
	ports            *ports.Watcher
	localhost        *localhost.Proxy // of NodePorts at [::1]; nil: none is served there
	sysctls          []string         // warnings
	// lastModes are the data planes of the run before this one.
	lastModes []mode.Mode

	startup  startup // of this process
	settling settling

	box  *mailbox
	asks chan func() // questions of the socket, answered on the loop

	// held by a probe, and for a while after it; apart from the rest, as a probe takes a second
	probing sync.Mutex

	// Only the loop uses the fields below.
	tracker   *k8s.Tracker
	drained   *time.Timer // fires when the drain of removed endpoints that ends next is over (Tracker.Due)
	model     *k8s.Model
	synced    bool // the source has synced
	delivered bool // the data plane has received the model
	problems  k8s.Problems
	warned    map[k8s.Warning]bool // warnings of the model that were logged
	followers []follower
	// why no data plane serves the node's own traffic alongside the bridge; "": no reason
	hostPlaneOff string
	// whether one does is decided once the node has an address
	hostPlaneOpen bool
	// why what an earlier run's data plane has installed is left; "": it is not
	leftovers string
	spawn     func(run func(context.Context) error) // runs something as long as the agent
}

// follower receives the model's changes: a data plane, the health checks, or the check of listening
// processes.
type follower interface {
	// Update takes the model's changes, the first time everything. It must not block.
	Update(*k8s.Model, k8s.Changes)
	// Run works until the context ends. An error ends the agent.
	Run(context.Context) error
}

// New returns an Agent. It fails if the settings of the data plane make no sense.
func New(o Options) (*Agent, error) {
	a := &Agent{
		set: o.Settings, log: o.Log, logLevel: o.LogLevel, mode: o.Mode, reason: o.Reason, auto: o.Auto,
		source: o.Source, kind: o.Kind, events: o.Events, reviewer: o.Reviewer, db: o.DB,
		extraWarnings: o.Notes, configz: o.Configz, recentLog: o.RecentLog, started: time.Now(),
		box:      newMailbox(),
		asks:     make(chan func()),
		tracker:  k8s.NewTracker(o.TrackerOptions(o.Mode)),
		drained:  time.NewTimer(math.MaxInt64),
		model:    &k8s.Model{},
		warned:   map[k8s.Warning]bool{},
		settling: settling{settle: settleMemory},

		noneForwarded:    map[k8s.Family]bool{},
		reversePathDrops: sysctl.ReversePathDrops(),
	}

	a.watch, a.life = dataplane.NewWatch(a.set.StuckAfter, a.log), dataplane.NewLoop("agent")
	a.watch.Add(a.life)

	a.modes.Announce = func(event, text string) {
		a.log.Warn(text)
		a.events.Node(apiserver.EventWarning, event, "Serve", text)
	}

	a.startup.record(&a.startup.chosen)
	if err := a.makeMetrics(&o); err != nil {
		return nil, err
	}

	a.proxy = health.NewProxy(health.ProxyOptions{
		Addr: o.HealthzAddr, HardFail: o.BindHardFail, Timeout: 2 * o.Fallback.SyncPeriod,
		Stuck:      a.watch.Stuck,
		OnResponse: a.metrics.HealthAnswer, Log: o.Log,
	})

	a.checks = health.NewServices(health.ServicesOptions{
		NodePortAddresses: o.NodePortAddresses, NodePortPrimary: o.NodePortPrimary, Healthy: a.proxy.Healthy,
		OnFailure: func(name k8s.ServiceName, at netip.AddrPort, err error) {
			a.warnService(name, "FailedToStartServiceHealthcheck", "Listen",
				fmt.Sprintf("cannot listen on the health check node port %s: %v", at, err))
		},
		Log: o.Log,
	})

	a.ports = ports.NewWatcher(ports.WatcherOptions{
		OnConflict: func(c ports.Conflict) {
			a.warnService(c.Service.ServiceName, "PortInUse", "Serve", c.String())
		},
		Log: o.Log,
	})

	if a.set.UserspaceLoopback6(a.mode) {
		a.localhost = localhost.New(localhost.Options{
			OnFailure: func(name k8s.PortName, text string) {
				a.warnService(name.ServiceName, "PortInUse", "Listen", text)
			},
			Log: o.Log,
		})
	}

	if err := a.makePlanes(o.DB); err != nil {
		return nil, err
	}

	a.followers = append(a.followers, a.checks, a.ports)
	if a.localhost != nil && a.bridge == nil { // beside a bridge hostPlane adds it
		a.followers = append(a.followers, a.localhost)
	}
	return a, nil
}

func (a *Agent) recordModes(modes ...mode.Mode) {
	if err := a.set.recordModes(modes...); err != nil {
		a.log.Warn("cannot record the data plane for the next start", "error", err)
	}
}

// warnService writes an Event about something that this node cannot do for a Service.
func (a *Agent) warnService(name k8s.ServiceName, reason, action, text string) {
	a.events.Service(name, apiserver.EventWarning, reason, action,
		fmt.Sprintf("node %s: %s", a.set.NodeName, text))
}

// Run blocks until the context ends, and then returns nil; installed rules stay. Any other return is a
// permanent error: retrying cannot help.
func (a *Agent) Run(ctx context.Context) error {
	a.lastModes = a.set.LastModes()
	if before := a.set.changedFrom(a.mode); before != "" {
		text := fmt.Sprintf("the data plane changed from %s to %s: %s", before, a.mode, a.reason)
		a.log.Warn(text)
		a.events.Node(apiserver.EventWarning, "DataPlaneChanged", "StartServiceProxy", text)
	}

	if len(a.lastModes) == 0 || a.lastModes[0] != a.mode {
		// What stands beside it is noted when that is decided, and what has to go stays noted until it has.
		a.recordModes(append([]mode.Mode{a.mode}, supersededModes(a.mode, a.lastModes)...)...)
	}

	a.sysctls = a.set.ApplySysctls(a.log)
	a.events.Node(apiserver.EventNormal, "Starting", "StartServiceProxy",
		"nkp "+Version+" serves Services here: "+a.reason)

	if a.auto && a.mode != mode.Windows {
		// kube-proxy's Event since 1.38, where no mode is named. It warns because its default will change.
		a.events.Node(apiserver.EventNormal, "KubeProxyDefaultMode", "StartServiceProxy",
			"no mode is named (--mode): nkp chose "+string(a.mode)+", because "+a.reason)
	}

	g, ctx := errgroup.WithContext(ctx)
	a.spawn = func(run func(context.Context) error) { g.Go(func() error { return run(ctx) }) }
	g.Go(func() error { return a.source.Run(ctx, a.box) })
	g.Go(func() error { return a.events.Run(ctx) })
	g.Go(func() error { return a.metricsServer.Run(ctx) })
	g.Go(func() error {
		err := a.proxy.Run(ctx)
		if err != nil {
			a.events.Node(apiserver.EventWarning,
				"FailedToStartProxierHealthcheck", "StartServiceProxy", err.Error())
		}
		return err
	})

	for _, f := range a.followers {
		a.spawn(f.Run)
	}

	g.Go(func() error { return a.loop(ctx) })
	g.Go(func() error { return a.watch.Run(ctx) })
	g.Go(func() error { return notify.Run(ctx, a.watchdogSign) })
	if a.auto {
		a.watchMode()
	}
	if a.fallback != nil {
		a.watchForwarding(ctx, a.mode, a.auto)
	}
	if a.set.Socket != "" {
		g.Go(func() error { return a.serve(ctx) })
	}

	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// watchMode looks whether another data plane would be chosen now, as long as the agent runs.
func (a *Agent) watchMode() {
	if a.mode == mode.NFTables {
		a.spawn(func(ctx context.Context) error { a.watchDrops(ctx, serving.Everything); return nil })
	}
	node := a.set.Choosing(serving.Everything)
	other := func(ctx context.Context, _ string) string { return node.OtherThan(ctx, a.mode, a.db) }
	a.spawn(func(ctx context.Context) error {
		a.modes.Run(ctx, mode.OtherDataPlane, mode.BridgePeriod, other)
		return nil
	})
}

// watchDrops looks whether iptables would be chosen now for what nftables serves in a scope, until the
// context ends.
func (a *Agent) watchDrops(ctx context.Context, scope serving.Scope) {
	a.modes.Run(ctx, mode.OtherDataPlane, mode.DropsPeriod, a.set.Choosing(scope).Drops)
}

// loop owns the agent's state. It ends with the context.
func (a *Agent) loop(ctx context.Context) error {
	a.life.Work("listing the node's addresses")
	ips, err := a.set.LocalAddresses(a.mode)
	if err != nil {
		a.log.Warn("cannot list the node's addresses", "error", err)
	}
	a.tracker.SetLocalAddresses(ips)

	addresses := a.set.watchAddresses(ctx, a.mode, ips, a.log)
	patience := time.NewTimer(podCIDRPatience)
	defer patience.Stop()

	for {
		a.life.Rest()
		select {
		case <-ctx.Done():
			return nil
		case <-patience.C:
			if a.waitsForPodCIDR() {
				return fmt.Errorf(
					"waited %v: node %s has no spec.podCIDRs, which --detect-local-mode NodeCIDR needs",
					podCIDRPatience, a.set.NodeName)
			}
		case <-a.box.arrived:
			a.life.Work("applying changes of the source")
			a.takeChanges(ctx)
		case ips := <-addresses:
			a.life.Work("applying changes of the node's addresses")
			a.tracker.SetLocalAddresses(ips)
			if a.synced {
				a.flush(ctx)
			}
		case <-a.drained.C:
			a.life.Work("closing connections to removed endpoints")
			a.flush(ctx)
		case f := <-a.asks:
			a.life.Work("answering a question")
			f()
		}
	}
}

// takeChanges brings the model, and then the data plane, in step with the source.
func (a *Agent) takeChanges(ctx context.Context) {
	changes, synced, problems := a.box.take()
	a.reportProblems(problems)
	a.metrics.Received(changes)
	a.tracker.Apply(changes)
	if !synced || a.delivered && !slices.ContainsFunc(changes, k8s.Change.Matters) {
		return
	}
	if !a.synced {
		a.log.Info("source has synced", "source", a.kind)
		a.synced = true
		a.startup.record(&a.startup.synced)
		a.settling.in(settleAtMost)
	}
	a.flush(ctx)
}

// podCIDRPatience is how long --detect-local-mode NodeCIDR waits for a controller to assign the node a range,
// as in kube-proxy.
const podCIDRPatience = 5 * time.Minute

// flush hands the model's changes to the data plane. The first time it hands over everything, and only once
// nkp can tell which clients are pods; until then the installed rules stay.
func (a *Agent) flush(ctx context.Context) {
	if a.waitsForPodCIDR() {
		a.log.Info("waiting for the node's spec.podCIDRs (--detect-local-mode NodeCIDR)",
			"node", a.set.NodeName, "atMost", podCIDRPatience)
		return
	}
	a.tracker.Advance(time.Now())
	model, changes := a.tracker.Flush()
	a.drained.Stop()
	if due := a.tracker.Due(); !due.IsZero() {
		a.drained.Reset(time.Until(due))
	}
	first := !a.delivered
	a.model, a.delivered = model, true
	if changes.Node {
		a.proxy.SetNode(model.Node)
	}
	a.forwardsMore(&changes)
	a.metrics.Handing(changes)
	a.startup.record(&a.startup.model)
	for _, f := range a.followers {
		f.Update(model, changes)
		a.life.Progress()
	}
	if first || a.hostPlaneOpen {
		a.life.Work("finding out what serves the node's own traffic")
		// last, because it runs programs to examine iptables, and the bridge must not wait for them
		a.hostPlane(ctx, model)
	}
	a.reportWarnings(model.Warnings)
}

// maxNewWarnings bounds how many warnings one change may log; status lists all of them.
const maxNewWarnings = 20

// reportWarnings logs new warnings about objects, and writes an Event on each Service concerned.
func (a *Agent) reportWarnings(ws []k8s.Warning) {
	changed, logged := len(ws) != len(a.warned), 0
	for _, w := range ws {
		if a.warned[w] {
			continue
		}
		changed = true
		if w.Passing {
			a.log.Debug(w.String())
		} else if logged++; logged <= maxNewWarnings {
			a.log.Warn(w.String())
		}

		if w.Ref.Kind == k8s.KindService {
			text := w.Text
			if w.Field != "" {
				text = w.Field + ": " + text
			}
			a.events.Service(k8s.ServiceName{Namespace: w.Ref.Namespace, Name: w.Ref.Name},
				apiserver.EventWarning, cmp.Or(w.Event, "NotServedAsSpecified"), "Serve", text)
		}
	}

	if logged > maxNewWarnings {
		a.log.Warn("more warnings are not logged: nkp status lists all of them",
			"more", logged-maxNewWarnings)
	}

	if changed {
		clear(a.warned)
		for _, w := range ws {
			a.warned[w] = true
		}
	}
}

func (a *Agent) waitsForPodCIDR() bool {
	return a.set.DetectLocal.Mode == k8s.DetectByNodeCIDR && !a.delivered &&
		len(a.tracker.Node().PodCIDRs) == 0
}

func (a *Agent) reportProblems(p k8s.Problems) {
	for _, e := range p.Errors {
		if !slices.Contains(a.problems.Errors, e) {
			a.log.Error("problem at the source; its last good state stays in force", "problem", e.String())
		}
	}
	if len(a.problems.Errors) > 0 && len(p.Errors) == 0 {
		a.log.Info("the source has no errors any more", "source", a.kind)
	}
	for _, w := range p.Warnings {
		if !slices.Contains(a.problems.Warnings, w) {
			a.log.Warn(w.String())
		}
	}
	a.problems = p
}

// ask runs f on the loop and waits for it.
func (a *Agent) ask(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case a.asks <- func() { defer close(done); f() }:
	case <-ctx.Done():
		return fmt.Errorf("the agent is busy: %w", ctx.Err())
	}
	<-done
	return nil
}
