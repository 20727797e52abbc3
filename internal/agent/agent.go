package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Agent keeps one bridge in step with one source. Make it with New, run it once with Run.
type Agent struct {
	set      Settings
	log      *slog.Logger
	reason   string // why this mode
	source   k8s.Source
	kind     string // what the source is, for status
	openflow string // where the switch is, for status

	box   *mailbox
	db    *ovsdb.Client
	of    *ofctrl.Client
	conns chan *ofctrl.Conn // new connections, handed to the loop
	drift chan struct{}     // somebody else changed groups or meters; one token
	asks  chan func()       // questions of the socket, answered on the loop

	rejects rejectCounters

	// What follows belongs to the loop alone.
	tracker   *k8s.Tracker
	model     *k8s.Model
	problems  k8s.Problems
	compiler  *pipeline.Compiler // nil until the source has synced
	warnings  []string           // about the configuration
	conn      *ofctrl.Conn       // nil while there is none
	installed *flow.State        // what is on the switch; nil until it was read back
	gateway   flow.MAC           // last known
	noMeter   bool               // the switch refused the meter
	behind    bool               // installed differs from what is wanted
	waiting   quarantine
	conflicts map[flow.Key]*flow.Flow // foreign flows where one of ours should be
	leftovers flow.Delta              // learned flows and connections to forget with the next transaction
	stats     statistics
}

// New gives an Agent for a switch that db watches. reason says, for status, why nkp runs in this mode.
func New(set Settings, reason string, source k8s.Source, kind string, db *ovsdb.Client, log *slog.Logger) *Agent {
	return &Agent{
		set: set, log: log, reason: reason, source: source, kind: kind, db: db,
		box:     newMailbox(),
		conns:   make(chan *ofctrl.Conn),
		drift:   make(chan struct{}, 1),
		asks:    make(chan func()),
		tracker: k8s.NewTracker(set.TrackerOptions()),
		model:   &k8s.Model{},
		waiting: quarantine{},
		stats:   statistics{Started: time.Now()},
	}
}

// Run works until the context ends, and returns nil then; flows stay on the switch. Any other return is an error
// that no retry can mend.
func (a *Agent) Run(ctx context.Context) error {
	text, err := a.set.OpenFlowTarget()
	if err != nil {
		return err
	}
	a.openflow = text
	target, err := ofctrl.ParseTarget(text)
	if err != nil {
		return err
	}
	a.of = ofctrl.NewClient(target, ofctrl.ClientOptions{
		Options: ofctrl.Options{
			Bridge:     a.set.Bridge,
			TLS:        a.set.TLS,
			Log:        a.log,
			OnPacketIn: a.packetIn,
			OnForward: func(ofctrl.Forward) {
				select {
				case a.drift <- struct{}{}:
				default:
				}
			},
		},
		OnConnect: func(ctx context.Context, c *ofctrl.Conn) error {
			select {
			case a.conns <- c:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.source.Run(ctx, a.box) })
	g.Go(func() error { return a.of.Run(ctx) })
	g.Go(func() error { return a.loop(ctx) })
	if a.set.Socket != "" {
		g.Go(func() error { return a.serve(ctx) })
	}
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// loop owns the agent's state. It ends with the context.
func (a *Agent) loop(ctx context.Context) error {
	audit := time.NewTicker(a.set.AuditPeriod)
	defer audit.Stop()
	count := time.NewTicker(a.set.CountPeriod)
	defer count.Stop()
	for {
		var gone <-chan struct{}
		if a.conn != nil {
			gone = a.conn.Done()
		}
		var retry <-chan time.Time
		if t := a.waiting.next(); !t.IsZero() && a.conn != nil {
			retry = time.After(max(0, time.Until(t)))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.box.arrived:
			if err := a.takeChanges(ctx); err != nil {
				return err
			}
		case <-a.db.Changed():
			a.reconfigure(ctx)
		case a.conn = <-a.conns:
			a.log.Info("connected to the switch", "bridge", a.set.Bridge)
			a.readBack(ctx)
		case <-gone:
			a.log.Warn("connection to the switch lost; what is installed stays", "error", a.conn.Err())
			a.conn, a.installed = nil, nil
		case <-a.drift:
			a.stats.Drifts++
			a.readBack(ctx)
		case <-count.C:
			a.checkGateway(ctx)
			a.checkCount(ctx)
		case <-audit.C:
			a.readBack(ctx)
		case <-retry:
			a.sync(ctx)
		case f := <-a.asks:
			f()
		}
	}
}

// takeChanges brings the model, and then the switch, in step with the source.
func (a *Agent) takeChanges(ctx context.Context) error {
	arrived := time.Now()
	changes, synced, problems := a.box.take()
	a.reportProblems(problems)
	a.tracker.Apply(changes)
	if !synced {
		return nil
	}
	model, diff := a.tracker.Flush()
	a.model = model
	if a.compiler == nil {
		c, err := pipeline.NewCompiler(a.config())
		if err != nil {
			return err
		}
		a.compiler = c
		a.compiler.Update(diff.Ports)
		a.log.Info("source has synced", "services", len(model.Ports), "flows", len(c.State().Flows), "groups", len(c.State().Groups))
		a.readBack(ctx)
		return nil
	}
	if diff.Node {
		a.reconfigure(ctx)
	}
	for n := range diff.Ports {
		if a.waiting[n] != nil { // a changed Service port is tried at once, and all of it: what it lacks is more than the change
			delete(a.waiting, n)
			a.behind = true
		}
	}
	if a.push(ctx, a.compiler.Update(diff.Ports)) {
		a.stats.programmed(time.Since(arrived))
	}
	return nil
}

// reconfigure takes up what is new about node and switch.
func (a *Agent) reconfigure(ctx context.Context) {
	if a.compiler == nil {
		return
	}
	cfg := a.config()
	d, err := a.compiler.Reconfigure(cfg)
	if err != nil {
		a.log.Error("cannot take up the node's new configuration", "error", err)
		return
	}
	a.push(ctx, d)
}

// checkGateway takes up a router that the kernel has come to know, or that has changed.
func (a *Agent) checkGateway(ctx context.Context) {
	if a.compiler == nil || !a.set.GatewayMAC.IsZero() || a.compiler.Config().NodeMAC.IsZero() {
		return
	}
	if m := gatewayMAC(a.set.Bridge); !m.IsZero() && m != a.gateway {
		a.reconfigure(ctx)
	}
}

// config puts together what is known of node and switch.
func (a *Agent) config() pipeline.Config {
	sw := a.db.Switch()
	cfg, warnings := a.set.PipelineConfig(a.model, &sw)
	if cfg.GatewayMAC.IsZero() {
		cfg.GatewayMAC = a.gateway // the kernel may forget a neighbour it does not talk to
	}
	a.gateway = cfg.GatewayMAC
	if a.noMeter {
		cfg.NoMeter = true
		warnings = append(warnings, "the switch has no meters: packets to be refused are bounded by nkp's queue alone")
	}
	a.noteWarnings(warnings)
	return cfg
}

func (a *Agent) noteWarnings(warnings []string) {
	for _, w := range warnings {
		if !contains(a.warnings, w) {
			a.log.Warn(w)
		}
	}
	a.warnings = warnings
}

func (a *Agent) reportProblems(p k8s.Problems) {
	for _, e := range p.Errors {
		if !containsWarning(a.problems.Errors, e) {
			a.log.Error("problem at the source; its last good state stays in force", "problem", e.String())
		}
	}
	if len(a.problems.Errors) > 0 && len(p.Errors) == 0 {
		a.log.Info("the source is in order again", "source", a.kind)
	}
	for _, w := range p.Warnings {
		if !containsWarning(a.problems.Warnings, w) {
			a.log.Warn(w.String())
		}
	}
	a.problems = p
}

func contains(list []string, s string) bool {
	for _, t := range list {
		if s == t {
			return true
		}
	}
	return false
}

func containsWarning(list []k8s.Warning, w k8s.Warning) bool {
	for _, v := range list {
		if v == w {
			return true
		}
	}
	return false
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
